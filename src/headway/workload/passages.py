"""What synthetic prompts are made of: single words, or the sample of prose that comes with the package.

Both give pieces of text without end, each beginning with its white space; the first with exactly one space, so that
whatever stands before it stays a token border in the usual vocabularies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from random import Random
from typing import Protocol

from headway.workload.draws import below
from headway.workload.words import WORDS


class Passages(Protocol):
    """A supply of text."""

    @property
    def pieces(self) -> Sequence[str]:
        """Every piece there is, once."""
        ...

    def body(self, random: Random) -> Iterator[str]:
        """The text of one prompt."""
        ...

    def block(self, random: Random) -> Iterator[str]:
        """A text that begins like no other: blocks of different numbers must not be alike."""
        ...


class RandomWords:
    """Words in any order. They mean nothing, and no two texts share more than a word by chance."""

    def __init__(self, words: Sequence[str]) -> None:
        self.pieces = [" " + word for word in words]

    def body(self, random: Random) -> Iterator[str]:
        pieces, total = self.pieces, len(self.pieces)
        while True:
            yield pieces[below(random, total)]

    def block(self, random: Random) -> Iterator[str]:
        return self.body(random)


class Prose:
    """Slices of `sample.txt`, each from a word of its own; after the last word comes the first again.

    A slice may begin at any word, not only at a sentence: the fewer beginnings there are, the more often a prefix cache
    finds one again.
    """

    def __init__(self) -> None:
        self.pieces = _pieces(sample())
        ends = [place for place, piece in enumerate(self.pieces) if piece[-1] in ".?!"]
        starts = [0, *(end + 1 for end in ends[:-1])]
        self._sentences = [self.pieces[start : end + 1] for start, end in zip(starts, ends, strict=True)]

    def body(self, random: Random) -> Iterator[str]:
        place = below(random, len(self.pieces))
        yield " " + self.pieces[place].strip()
        while True:
            place = (place + 1) % len(self.pieces)
            yield self.pieces[place]

    def block(self, random: Random) -> Iterator[str]:
        """Sentences in any order, after two words of its own: there are too few sentences to tell blocks apart."""
        yield from (" " + WORDS[below(random, len(WORDS))] for _ in range(2))
        while True:
            first, *others = self._sentences[below(random, len(self._sentences))]
            yield " " + first.strip()
            yield from others


def sample() -> str:
    """The sample of prose. Its lines are wrapped for those who edit it, its paragraphs are not."""
    text = files("headway.workload").joinpath("sample.txt").read_text(encoding="utf-8")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def _pieces(text: str) -> list[str]:
    """Words with what stands before them. The first one's is a paragraph's, since it follows the last one."""
    first, *others = re.findall(r"\s*\S+", text)
    return ["\n\n" + first, *others]
