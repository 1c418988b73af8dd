"""Texts of exactly so many tokens. Only a count is needed: what a tokenizer merges over a word's border is found out by
counting again, not foreseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from headway.workload.tokens import Count

# Each makes a text a little longer; tried one after another to close a gap that no further piece fits into.
_FILLERS = (" a", " I", ".", ",", "!", " the", " to", "s", "e", "1", " 1", " ;", "\nx")
_GUESSES = 30
_LEAPS = 8
_STEPS_BACK = 6
_FILLINGS = 16
_Tried = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A text and its count, which is the wanted one or, where none could be made, the nearest that was found."""

    text: str
    tokens: int


class _Beginnings:
    """The beginnings of an endless text, by number of pieces. Keeps what it has drawn."""

    def __init__(self, pieces: Iterator[str], before: str) -> None:
        self._source, self._drawn, self._before = pieces, list[str](), before

    def text(self, pieces: int) -> str:
        missing = pieces - len(self._drawn)
        if missing > 0:
            self._drawn.extend(islice(self._source, missing))
        return (self._before + "".join(self._drawn[:pieces])).lstrip()


def fit(
    count: Count, pieces: Iterator[str], tokens: int, *, before: str = "", have: int = 0, per_piece: float = 1.0
) -> Fitted:
    """`before` and as many of `pieces` as make `tokens` tokens together, with fillers at the end if they must be.

    A piece begins with its white space and ends without, so that a text neither begins nor ends with any. `have` is
    about the tokens of `before`, `per_piece` about those of a piece: good guesses save counts. Always ends: after a
    bounded number of counts it gives the nearest that it has seen.
    """
    beginnings = _Beginnings(pieces, before)
    best = Fitted("", 0)

    def tried(text: str) -> int:
        nonlocal best
        if not text:
            return 0
        found = Fitted(text, count(text))
        if not best.text or abs(found.tokens - tokens) < abs(best.tokens - tokens):
            best = found
        return found.tokens

    low = _longest_below(beginnings, tokens, have, per_piece, tried)
    for pieces_less in range(min(_STEPS_BACK, low + 1)):
        if best.tokens == tokens:
            break
        _fill(beginnings.text(low - pieces_less), tokens, tried)
    return best


def _longest_below(beginnings: _Beginnings, tokens: int, have: int, per_piece: float, tried: _Tried) -> int:
    """A number of pieces that count less than `tokens` while one more counts more; or one that fits."""
    low, high = 0, 4 * tokens + 16  # a tokenizer that counts even less for so many words is left to its nearest
    pieces = round((tokens - have) / per_piece)
    for guess in range(_GUESSES):
        pieces = min(max(pieces, low + 1), high - 1)
        found = tried(beginnings.text(pieces))
        if found == tokens:
            return pieces
        if found < tokens:
            low = pieces
        else:
            high = pieces
        if high - low <= 1:
            break
        # Leaps find it in two or three counts where pieces are alike; halving always does.
        leap = round((tokens - found) / per_piece) or (1 if found < tokens else -1)
        pieces = pieces + leap if guess < _LEAPS else (low + high) // 2
    return low


def _fill(text: str, tokens: int, tried: _Tried) -> None:
    """Lengthens `text` filler by filler, never beyond `tokens`."""
    have = tried(text)
    for _ in range(_FILLINGS):
        for filler in _FILLERS:
            longer = (text + filler).lstrip()
            now = tried(longer)
            if have < now <= tokens:
                text, have = longer, now
                break
        else:
            return  # none of them helps
        if have == tokens:
            return
