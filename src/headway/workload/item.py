"""`Item`: what one request of a load asks for. When it is sent is another matter (`arrivals`), as is its text
(`prompts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Item:
    """Lengths are in the model's tokens; a simulation needs nothing else."""

    input_tokens: int
    output_tokens: int
    kind: str = ""  # a share of a mix: "short", "long"
    tenant: str = ""
    # Shared beginnings, as numbered blocks of `prefix_block_tokens`: equal numbers mean equal text (Mooncake's
    # hash_ids).
    prefix_blocks: tuple[int, ...] = ()
    prefix_block_tokens: int = 0
    # Given text: chat messages that are sent as they are. None has the text made from the numbers above.
    messages: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """An item and when it is due, in ns after the start of the load."""

    at_ns: int
    item: Item
