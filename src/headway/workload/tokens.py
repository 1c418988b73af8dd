"""How long a text is in tokens: counted by a tokenizer, or estimated from what a server said of other texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.workload.errors import MAX_TOKENS, WorkloadError, check_number, check_whole

Count = Callable[[str], int]


class TokenizerFile:
    """A Hugging Face `tokenizer.json`. Called with a text, it says how many tokens that is.

    Special tokens that a model wants around a text are left out: they belong to the overhead, as the chat template's
    do. Thread-safe, and releases the GIL while it works.

    Raises (constructor):
        WorkloadError: the file is missing or is no tokenizer.
    """

    def __init__(self, path: str | Path) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise WorkloadError(
                f"cannot read the tokenizer {path}: {error}. Give a Hugging Face tokenizer.json", field="tokenizer"
            ) from error
        self._tokenizer.no_truncation()  # one that silently shortens cannot be counted with
        self._tokenizer.no_padding()

    def __call__(self, text: str) -> int:
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return len(encoding)


@dataclass(frozen=True, slots=True)
class Counted:
    """Lengths by a tokenizer: prompts come out exact. `overhead_tokens` is what the chat template, or the start token
    of a plain prompt, adds to a text; an item's input length includes it.
    """

    count: Count
    overhead_tokens: int = 0

    def __post_init__(self) -> None:
        check_whole("overhead_tokens", self.overhead_tokens, 0, MAX_TOKENS, "tokens")


class Calibration:
    """Tokens of a text by its words, for want of a tokenizer: tokens = overhead + per word × words, by least squares
    over pairs that a server's `usage` told. As long as all pairs are of one length, a line cannot be drawn through them
    and the overhead counts as part of the words.

    Feed it before a load, not during it: the text of a request depends on what it knows.
    """

    def __init__(self, tokens_per_word: float = 1.1, overhead_tokens: float = 0.0) -> None:
        """Guesses to begin with, for common English words."""
        self._first = (
            check_number("overhead_tokens", overhead_tokens, 0, MAX_TOKENS, "tokens"),
            check_number("tokens_per_word", tokens_per_word, 0.01, 1000),
        )
        self.samples = 0
        self._mean_words = self._mean_tokens = 0.0
        self._words_words = self._words_tokens = 0.0  # sums of products of the distances from the means

    def add(self, words: int, tokens: int) -> None:
        """A text of `words` words was `tokens` tokens."""
        check_whole("words", words, 1, MAX_TOKENS)
        check_whole("tokens", tokens, 1, MAX_TOKENS)
        self.samples += 1
        away = words - self._mean_words
        self._mean_words += away / self.samples
        self._mean_tokens += (tokens - self._mean_tokens) / self.samples
        self._words_words += away * (words - self._mean_words)
        self._words_tokens += away * (tokens - self._mean_tokens)

    @property
    def overhead_tokens(self) -> float:
        """What is there without any word."""
        return self._line()[0]

    @property
    def tokens_per_word(self) -> float:
        return self._line()[1]

    def words_for(self, tokens: int) -> int:
        """How many words make about so many tokens; at least 1."""
        overhead, slope = self._line()
        return max(1, round((tokens - overhead) / slope))

    def tokens_for(self, words: int) -> int:
        """About how many tokens so many words make; at least 1."""
        overhead, slope = self._line()
        return max(1, round(overhead + slope * words))

    def _line(self) -> tuple[float, float]:
        if not self.samples:
            return self._first
        if self._words_words > 0:
            slope = self._words_tokens / self._words_words
            overhead = self._mean_tokens - slope * self._mean_words
            if slope > 0 and overhead >= 0:
                return overhead, slope
        return 0.0, self._mean_tokens / self._mean_words


Measure = Counted | Calibration


def words_in(text: str) -> int:
    """Words as `Calibration` counts them: what white space separates."""
    return len(text.split())
