"""The text of an item: prompts of an exact length in tokens, with equal beginnings where items ask for them.

The text of request `index` depends on the seed, the index and the item, and on nothing that went before: any process
can make any prompt. Items that carry messages of their own are sent as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, Protocol

from headway.workload.draws import stream
from headway.workload.errors import WorkloadError
from headway.workload.fit import Fitted, fit
from headway.workload.item import Item
from headway.workload.passages import Passages, Prose, RandomWords
from headway.workload.tokens import Calibration, Count, Counted, Measure, words_in
from headway.workload.words import WORDS, single_token_words

_CONTEXT = "The words before"  # what a block is measured behind
_TAG_WORDS = 4
_BLOCKS_KEPT = 2048
_TRIED_WORDS = 4096
_RECOUNTED = 64


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent. `text` is the same for the completions endpoint; None where messages hold more than text."""

    messages: Sequence[Mapping[str, Any]]
    text: str | None
    # Input tokens by the tokenizer, the overhead included; of a given text, the item's; -1: nobody counted.
    tokens: int
    off_by: int = 0  # counted less asked tokens: not 0 only where no text of the asked length could be made


class PromptSource(Protocol):
    """Gives items their text."""

    @property
    def description(self) -> str:
        """One line for people."""
        ...

    def make(self, item: Item, index: int) -> Prompt:
        """The prompt of the request with that index, the same each time."""
        ...


class Synthetic:
    """Prompts made up, of as many tokens as the item asks for.

    With `Counted` they are exact; `Prompt.off_by` tells the exceptions: an item shorter than its overhead, or a
    tokenizer that has no text of that length. Every prompt is counted for that; of random words only every 64th, when
    each word has been found to be one token and a long text of them to add up. With a `Calibration` lengths are about
    right. For one thread at a time.

    Equal prefix blocks give equal text in the same place, so an item's blocks are what a prefix cache can find.
    `unique_prefix` instead begins every prompt with four words that no other of the run begins with (as long as there
    are fewer than some ten million prompts), inside its length, and leaves blocks aside: nothing can be found. Two runs
    of one seed still send the same prompts.
    """

    def __init__(
        self,
        measure: Measure,
        *,
        seed: int = 0,
        text: Literal["words", "sample"] = "words",
        unique_prefix: bool = False,
    ) -> None:
        """Asks the tokenizer for some hundred counts."""
        if text not in {"words", "sample"}:
            raise WorkloadError(f"text must be words or sample, not {text!r}", field="text")
        self._ruler: _Ruler = _Tokens(measure) if isinstance(measure, Counted) else _Words(measure)
        singles = single_token_words(self._ruler.count)
        self._words = singles or WORDS
        self._passages: Passages = RandomWords(self._words) if text == "words" else Prose()
        pieces = self._passages.pieces
        self._seed, self._unique, self._text = seed, unique_prefix, text
        self._each_is_one = isinstance(measure, Calibration) or (bool(singles) and text == "words" and self._adds_up())
        self._per_piece = 1.0
        if not self._each_is_one:
            self._per_piece = max(self._ruler.count("".join(pieces).lstrip()) / len(pieces), 0.01)
        self._blocks: dict[tuple[int, int, bool], str] = {}

    @property
    def description(self) -> str:
        what = {"words": "random words", "sample": "slices of the sample text"}[self._text]
        return f"{what}, {self._ruler.description}{', unique first words' if self._unique else ''}"

    def make(self, item: Item, index: int) -> Prompt:
        """The prompt of the request with that index, the same each time."""
        if item.messages is not None:
            return as_given(item)
        wanted = max(1, self._ruler.units(item.input_tokens))
        fitted = self._fitted(item, index, wanted)
        tokens = self._ruler.tokens(fitted.tokens)
        off_by = tokens - item.input_tokens if tokens >= 0 else 0
        return Prompt([{"role": "user", "content": fitted.text}], fitted.text, tokens, off_by)

    def _fitted(self, item: Item, index: int, wanted: int) -> Fitted:
        parts = self._parts(item, index, wanted)
        if self._each_is_one and index % _RECOUNTED:
            return Fitted((parts.before + "".join(islice(parts.pieces, wanted - parts.have))).lstrip(), wanted)
        best = self._fit(parts, wanted)
        # Where a tokenizer merges over the borders of blocks, whole ones may leave too little to cut: cut earlier.
        for fewer in (1, 2, 4, 8):
            if best.tokens == wanted or not parts.before:
                break
            parts = self._parts(item, index, wanted - fewer * item.prefix_block_tokens)
            best = min(best, self._fit(parts, wanted), key=lambda fitted: abs(fitted.tokens - wanted))
        return best

    def _fit(self, parts: _Parts, wanted: int) -> Fitted:
        count, per_piece = self._ruler.count, self._per_piece
        return fit(count, parts.pieces, wanted, before=parts.before, have=parts.have, per_piece=per_piece)

    def _adds_up(self) -> bool:
        """Whether a long text of single words is as many tokens: a tokenizer could still merge some neighbours."""
        words = islice(self._passages.body(stream(self._seed, "try")), _TRIED_WORDS)
        return self._ruler.count("".join(words).lstrip()) == _TRIED_WORDS

    def _parts(self, item: Item, index: int, room: int) -> _Parts:
        """Whole blocks stand before the cut part, as far as there is room; the last one is cut, even if it turns out
        whole.
        """
        body = self._passages.body(stream(self._seed, "body", index))
        if self._unique:
            return _Parts("", 0, chain(self._tag(index), body))
        units = self._ruler.block_units(item.prefix_block_tokens) if item.prefix_block_tokens else 0
        if not units:
            return _Parts("", 0, body)
        whole = min(max(0, room - 1) // units, len(item.prefix_blocks))
        before = "".join(self._block(item.prefix_blocks[place], units, first=place == 0) for place in range(whole))
        if whole < len(item.prefix_blocks):
            return _Parts(before, whole * units, self._block_pieces(item.prefix_blocks[whole]))
        return _Parts(before, whole * units, body)

    def _tag(self, index: int) -> list[str]:
        """The index as a number whose digits are words, counted on from a place of the seed's. Its last digit comes
        first: neighbours differ in their first word.
        """
        base = len(self._words)
        number = int(stream(self._seed, "tag").random() * base**_TAG_WORDS) + index
        return [" " + self._words[number // base**place % base] for place in range(_TAG_WORDS)]

    def _block_pieces(self, number: int) -> Iterator[str]:
        return self._passages.block(stream(self._seed, "block", number))

    def _block(self, number: int, units: int, *, first: bool) -> str:
        """The text of a whole block; one at the beginning of a prompt is without the space before it."""
        key = (number, units, first)
        text = self._blocks.pop(key, None)
        if text is None:
            text = self._make_block(number, units, first=first)
            if len(self._blocks) >= _BLOCKS_KEPT:
                self._blocks.pop(next(iter(self._blocks)))  # the one that was longest not asked for
        self._blocks[key] = text
        return text

    def _make_block(self, number: int, units: int, *, first: bool) -> str:
        pieces = self._block_pieces(number)
        if self._each_is_one:
            text = "".join(islice(pieces, units))
            return text.lstrip() if first else text
        context = "" if first else _CONTEXT
        have = self._ruler.count(context) if context else 0
        fitted = fit(self._ruler.count, pieces, have + units, before=context, have=have, per_piece=self._per_piece)
        return fitted.text[len(context) :]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a prompt is put together from."""

    before: str  # what stands before the part that is cut to length
    have: int  # about how long that is
    pieces: Iterator[str]  # what is cut


class _Ruler(Protocol):
    """Lengths in the unit that can be counted here."""

    @property
    def count(self) -> Count: ...

    @property
    def description(self) -> str: ...

    def units(self, input_tokens: int) -> int:
        """Of a prompt's text."""
        ...

    def block_units(self, tokens: int) -> int: ...

    def tokens(self, units: int) -> int:
        """Input tokens of a text; -1 where that is only an estimate."""
        ...


class _Tokens:
    """Counts tokens."""

    description = "exact lengths"

    def __init__(self, counted: Counted) -> None:
        self.count = counted.count
        self._overhead = counted.overhead_tokens

    def units(self, input_tokens: int) -> int:
        return input_tokens - self._overhead

    def block_units(self, tokens: int) -> int:
        return tokens

    def tokens(self, units: int) -> int:
        return units + self._overhead


class _Words:
    """Counts words, which the calibration takes for tokens."""

    description = "lengths estimated by words"

    def __init__(self, calibration: Calibration) -> None:
        self.count = words_in
        self._calibration = calibration

    def units(self, input_tokens: int) -> int:
        return self._calibration.words_for(input_tokens)

    def block_units(self, tokens: int) -> int:
        return max(1, round(tokens / self._calibration.tokens_per_word))

    def tokens(self, units: int) -> int:  # noqa: ARG002 - words are not tokens
        return -1


class AsGiven:
    """For loads whose every item carries its messages: nothing is made up.

    `make` raises WorkloadError for an item without messages.
    """

    description = "given prompts"

    def make(self, item: Item, index: int) -> Prompt:
        """The item's own messages."""
        if item.messages is None:
            raise WorkloadError(
                f"request {index} has no messages; use synthetic prompts for items without text", field="messages"
            )
        return as_given(item)


def as_given(item: Item) -> Prompt:
    """The prompt of an item that carries its messages."""
    messages = item.messages or ()
    return Prompt(messages, plain_text(messages), item.input_tokens)


def plain_text(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The text of messages, with empty lines between; None if any holds something else, e.g. an image."""
    contents = [message.get("content") for message in messages]
    parts = sum(len(content) if isinstance(content, list) else content is not None for content in contents)
    found = list(texts(messages))
    return "\n\n".join(found) if len(found) == parts else None


def texts(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Every piece of text in messages; what is no text is left out."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(text := part.get("text"), str):
                yield text
