"""`Settings`: what `tune` varies, and how each kind of server is told of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.metrics.server_flags import FLAGS, flag_of


@dataclass(frozen=True, slots=True)
class Settings:
    """One point of the search. A lane's cap that is None is the server's own share of `max_num_seqs`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prompt_slots: int | None = None
    long_output_slots: int | None = None

    @property
    def fields(self) -> dict[str, int | None]:
        """By name, in order of declaration."""
        return dataclasses.asdict(self)

    @property
    def given(self) -> dict[str, int]:
        """Those that have a value."""
        return {name: value for name, value in self.fields.items() if value is not None}

    @property
    def label(self) -> str:
        """For people: short, and unlike any other's."""
        said = f"{self.max_num_seqs} seqs × {self.max_num_batched_tokens:,} tokens"
        if self.long_prompt_slots is not None:
            said += f", {self.long_prompt_slots} long-prompt slots"
        if self.long_output_slots is not None:
            said += f", {self.long_output_slots} long-output slots"
        return said

    def flags(self, kind: str) -> str:
        """As the command line of a server of this kind has them; what it knows no flag for is left out."""
        known = kind if kind == "headway" or kind in FLAGS else "vllm"
        named = [(flag_of(known, name), value) for name, value in self.given.items()]
        return " ".join(f"{flag} {value}" for flag, value in named if flag is not None)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Settings | None:
        """From a server's configuration; None where it does not tell both limits."""
        values = {name: _count(told.get(name)) for name in (field.name for field in dataclasses.fields(cls))}
        seqs, tokens = values.pop("max_num_seqs"), values.pop("max_num_batched_tokens")
        return cls(seqs, tokens, **values) if seqs is not None and tokens is not None else None


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
