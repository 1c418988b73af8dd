"""From tokens to text a client may see: whole characters, stop strings found and never leaked.

`TextStage` is one per sequence. Text that could be the beginning of a stop string is held back, together with the
tokens it came from, until it is known not to be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.scheduler.step import TokenLogprob


class Detokenizer(Protocol):
    """Incremental decoding: `add` returns the characters that are complete, `flush` whatever is left."""

    def add(self, tokens: Sequence[int]) -> str: ...
    def flush(self) -> str: ...


class StopMatcher:
    """Finds the first of several strings in a stream of characters, one state per string (Knuth-Morris-Pratt).

    Each character costs O(number of strings), amortised, whatever their length.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._failure = [_failure_function(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)

    def feed(self, char: str) -> int:
        """Advance by one character. The length of the longest stop string that ends here, or 0."""
        found = 0
        for i, stop in enumerate(self._stops):
            k = self._matched[i]
            while k and (k == len(stop) or stop[k] != char):
                k = self._failure[i][k - 1]
            if stop[k] == char:
                k += 1
            self._matched[i] = k
            if k == len(stop):
                found = max(found, k)
        return found

    @property
    def held(self) -> int:
        """How many of the last characters could still be the beginning of a stop string."""
        return max(self._matched, default=0)


def _failure_function(text: str) -> list[int]:
    """failure[i]: length of the longest proper prefix of text[:i+1] that is also its suffix."""
    failure = [0] * len(text)
    k = 0
    for i in range(1, len(text)):
        while k and text[k] != text[i]:
            k = failure[k - 1]
        if text[k] == text[i]:
            k += 1
        failure[i] = k
    return failure


@dataclass(slots=True)
class Piece:
    """What may be sent now: `text`, and the tokens (with `logprobs`, when asked) whose text ends in it or before it."""

    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None


class TextStage:
    """Turns one sequence's tokens into `Piece`s. `stopped` is set when a stop string ended the text."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops) if stops else None
        self._min_tokens = min_tokens
        self._seen_tokens = 0
        self._text = ""  # decoded and not released
        self._released = 0  # characters released
        self._decoded = 0  # characters decoded
        self._waiting: deque[tuple[int, TokenLogprob | None, int]] = deque()  # token, logprob, end of its text
        self.stopped = False

    def add(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None, *, hidden: int = 0) -> Piece:
        """Take new tokens. The last `hidden` of them are not shown at all: an end-of-sequence or stop token."""
        for i, token in enumerate(tokens[: len(tokens) - hidden]):
            if self.stopped:
                break
            self._seen_tokens += 1
            text = self._detokenizer.add((token,))
            self._decoded += len(text)
            self._waiting.append((token, logprobs[i] if logprobs else None, self._decoded))
            self._text += text
            self._search(text)
        held = self._matcher.held if self._matcher and not self.stopped else 0
        return self._release(len(self._text) - held, with_logprobs=logprobs is not None)

    def finish(self, *, with_logprobs: bool = False) -> Piece:
        """No more tokens: release what was held back, incomplete characters included."""
        if not self.stopped:
            rest = self._detokenizer.flush()
            self._decoded += len(rest)
            self._text += rest
            self._search(rest)
        piece = self._release(len(self._text), with_logprobs=with_logprobs)
        if not self.stopped:
            while self._waiting:  # tokens whose text was still incomplete
                token, logprob, _ = self._waiting.popleft()
                piece.tokens.append(token)
                if piece.logprobs is not None and logprob is not None:
                    piece.logprobs.append(logprob)
        return piece

    def _search(self, text: str) -> None:
        """Look for a stop string in the characters just appended, and cut there."""
        if self._matcher is None:
            return
        for i, char in enumerate(text):
            length = self._matcher.feed(char)
            if length and self._seen_tokens >= self._min_tokens:
                self._text = self._text[: len(self._text) - len(text) + i + 1 - length]
                self.stopped = True
                return

    def _release(self, chars: int, *, with_logprobs: bool) -> Piece:
        text, self._text = self._text[:chars], self._text[chars:]
        self._released += len(text)
        tokens: list[int] = []
        logprobs: list[TokenLogprob] | None = [] if with_logprobs else None
        while self._waiting and self._waiting[0][2] <= self._released:
            token, logprob, _ = self._waiting.popleft()
            tokens.append(token)
            if logprobs is not None and logprob is not None:
                logprobs.append(logprob)
        return Piece(text, tokens, logprobs)
