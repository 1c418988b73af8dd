"""`Intake`: from lines of the input to items that are ready to run. It runs on a thread, a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal

import msgspec

from headway.core.errors import ConfigError, HeadwayError, InvalidRequest
from headway.offline.errors import InputChanged, InputUnreadable
from headway.offline.inputs import Read
from headway.offline.items import CHAT, BadLine, Item, Sketch, key_of_line
from headway.wire.json_fields import JsonFields

# A piece ends after that, so that what it has found can begin.
PIECE_S = 0.05
# Instead of a hash.
MET = -1

Models = Literal["same", "any", "override"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """How bodies are changed. `model`: what --model says; `served`: the names that can be asked for, empty for any."""

    models: Models = "same"
    model: str | None = None
    served: frozenset[str] = frozenset()
    max_output: int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    item: Item
    sketch: Sketch


class Intake:
    """`done`: of each key that is finished, the hash of its body. It is taken over: a million keys are large."""

    def __init__(
        self, lines: Iterable[Read], done: dict[int, int], fitting: Fitting, prepare: Callable[[Item], Sketch]
    ) -> None:
        self._lines = iter(lines)
        self._known = done  # and MET for those that this input has
        self._fitting = fitting
        self._prepare = prepare
        self._model: str | None = None  # of the first line that names one
        self._items = 0  # that were met
        self.ended = False
        self.position = 0  # bytes of the input that have been read
        self.lines = 0  # that were read
        self.sketched_tokens = self.sketched_bytes = 0  # of items taken

    def piece(self, most: int) -> list[Taken | BadLine]:
        """What is new in the next lines: up to `most`, or what is found in a short while.

        Raises `InputUnreadable`, `InputChanged` and `ConfigError`: then there is no going on.
        """
        found: list[Taken | BadLine] = []
        ends_at = monotonic() + PIECE_S
        for line in self._lines:
            before, self.position = self.position, line.position
            self.lines += 1
            new = self._look(line.line)
            if isinstance(new, Taken):
                self.sketched_tokens += new.sketch.input_tokens + new.sketch.output_tokens
                self.sketched_bytes += max(1, self.position - before)
            if new is not None:
                found.append(new)
            if len(found) >= most or monotonic() >= ends_at:
                return found
        self.ended = True
        if not self.lines:
            raise InputUnreadable("The input holds no items: it is empty, or all of its lines are blank.")
        return found

    def _look(self, line: Item | BadLine) -> Taken | BadLine | None:
        line, before = self._met(line)
        self._items += isinstance(line, Item)
        if before is not None:
            if before != line.body_hash and isinstance(line, Item):
                raise InputChanged(
                    f"Line {line.line}: the item {line.custom_id!r} has another body than when it was finished. Put "
                    "the old input back, or say --allow-changed-input: then it runs again."
                )
            if isinstance(line, Item):
                self._note_model(line)
            return None
        if isinstance(line, BadLine):
            return line
        try:
            self._fit(line)
            return Taken(line, self._prepare(line))
        except ConfigError:
            raise
        except HeadwayError as error:
            code = error.code or error.type
            return BadLine(
                line.line, line.custom_id, code, f"Line {line.line}: {error.message}", line.key, line.body_hash
            )

    def _met(self, line: Item | BadLine) -> tuple[Item | BadLine, int | None]:
        """The line as it is after those before it; and the hash that its body had when it was finished, if it was."""
        known = self._known.get(line.key)
        if known == MET:
            if isinstance(line, BadLine):
                line = replace(line, custom_id=None, key=key_of_line(line.line))
            else:
                message = f"the custom_id {line.custom_id!r} is an earlier line's; give each line its own."
                line = BadLine(line.line, None, "duplicate_id", f"Line {line.line}: {message}", key_of_line(line.line))
            known = self._known.get(line.key)
        self._known[line.key] = MET
        return line, known

    @property
    def surplus(self) -> int:
        """How many are finished, and were not met in the input. Ask when it has ended."""
        return sum(one != MET for one in self._known.values())

    # -- what a body asks ----------------------------------------------------------------------------------------------

    def _note_model(self, item: Item) -> None:
        """The first line says whose batch it is, also when it is finished."""
        if self._model is None and self._fitting.models == "same" and b'"model"' in item.body:
            asked = _text(JsonFields(item.body).raw("model"))
            self._model = asked if asked in (self._fitting.served or {asked}) else None

    def _fit(self, item: Item) -> None:
        """Change the body into what is sent. Raises `InvalidRequest`, and `ConfigError` for the whole batch."""
        fields, wanted = JsonFields(item.body, name="`body`"), self._fitting
        asked = _text(fields.raw("model"))
        if wanted.models == "override" and wanted.model is not None:
            fields.set("model", msgspec.json.encode(wanted.model))
        elif asked is not None:
            self._check_model(asked, item.line)
        for name in ("stream", "stream_options"):
            if name in fields:
                fields.set(name, None)
        if wanted.max_output is not None:
            _cap(fields, wanted.max_output, chat=item.url == CHAT)
        item.body = fields.encoded()

    def _check_model(self, asked: str, line: int) -> None:
        """Raises `ConfigError` where the very first item is for somebody else: then so is the batch."""
        wanted = self._fitting
        if wanted.models == "any":
            return
        if self._model is None and asked in (wanted.served or {asked}):
            self._model = asked
        if asked == self._model:
            return
        ours = " or ".join(sorted(wanted.served))
        if self._items == 1:
            raise ConfigError(
                f"Line {line} asks for the model {asked!r}, and this is {ours}. --models override answers every line "
                "with it."
            )
        whose = f", by its first line, is {self._model!r}" if self._model else f" is {ours}"
        raise InvalidRequest(
            f"its model is {asked!r}, and the batch's{whose}. Make a batch of its own for it, or say --models any or "
            "--models override.",
            param="model",
            code="mismatched_model",
        )


def _cap(fields: JsonFields, most_tokens: int, *, chat: bool) -> None:
    limited = False
    for name in ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",):
        raw = fields.raw(name)
        asked = None if raw is None else msgspec.json.decode(raw)
        if isinstance(asked, int) and not isinstance(asked, bool):
            limited = True
            if asked > most_tokens:
                fields.set(name, b"%d" % most_tokens)
    if not limited:
        fields.set("max_tokens", b"%d" % most_tokens)


def _text(raw: bytes | None) -> str | None:
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, str) else None


@dataclass(slots=True)
class Surveyed:
    """A whole input, looked through before anything runs."""

    lines: int
    bad: int
    first_bad: BadLine | None
    changed: set[int]  # keys of finished items whose bodies are others now


def survey(lines: Iterator[Read], done: Mapping[int, int], fitting: Fitting) -> Surveyed:
    """Raises `InputUnreadable`."""
    found = Surveyed(0, 0, None, set())
    intake = Intake(lines, {}, fitting, lambda _: Sketch(0, 1, 1))
    while not intake.ended:
        for one in intake.piece(1000):
            if isinstance(one, BadLine):
                found.bad += 1
                found.first_bad = found.first_bad or one
            elif done.get(one.item.key, one.item.body_hash) != one.item.body_hash:
                found.changed.add(one.item.key)
    found.lines = intake.lines
    return found
