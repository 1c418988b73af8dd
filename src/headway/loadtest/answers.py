"""Is what came back what was asked for? Empty answers, lengths that contradict the request, streams that are none.

An answer that is wrong in these ways still has times, and they look good: nothing is faster than an empty answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from headway.loadtest.record import IN_ONE_PIECE, CountedBy, Record
from headway.loadtest.result import Load

LENGTH_RATIO = 0.2  # how far from what was asked a length may be
# Asked-for inputs hold the chat template; one that is shorter than the template cannot be made.
TEMPLATE_TOKENS = 32
# A request is not as long as asked where it is off by more than both; a run says so of more than this share of them.
OFF_RATIO, OFF_TOKENS = 0.03, 2
OFF_REQUESTS = 0.01
AT_ONCE_S = 0.0001  # a token: no model makes one stream that fast
BY_SERVER = (CountedBy.USAGE, CountedBy.USAGE_BY_CHUNK)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that ended well, of requests due in the window."""

    records: Sequence[Record]
    streamed: bool
    choices: int

    @property
    def empty(self) -> int:
        """How many hold no token at all. Of an answer in one piece only the server's count tells."""
        return sum(
            record.chunks == 0 and (record.output_tokens == 0 or (self.streamed and record.output_tokens < 0))
            for record in self.records
            if record.asked_output_tokens > 0
        )

    @property
    def unseen(self) -> int:
        """How many streams showed no text, though their usage counts tokens: they have no first token."""
        if not self.streamed:
            return 0
        return sum(
            record.chunks == 0 and record.output_tokens > 0 and not record.error.startswith(IN_ONE_PIECE)
            for record in self.records
        )

    def contradictions(self) -> list[str]:
        """Where lengths are not what was asked: a line each."""
        return [*self._too_long(), *self._too_short(), *self._other_inputs()]

    def off_lengths(self, could_not: Sequence[int], *, of: int, given: bool) -> dict[str, str]:
        """Remarks by name, where requests were not as long as asked. `could_not`: of prompts of which was known, before
        they were sent, that they are off: tokens too many or too few; `of` so many. `given`: prompts were sent as they
        are, so that nobody asked for a length.
        """
        about_inputs = []
        if could_not:
            most = max(map(abs, could_not))
            about_inputs.append(
                f"{len(could_not):,} of {of:,} prompts could not be made as long as asked: off by up to {most} tokens"
            )
        inputs = [(one.asked_input_tokens, one.input_tokens) for one in self.records if one.input_tokens >= 0]
        if not given and (told := _off(inputs, "prompts")):
            about_inputs.append(f"{told}; --tokenizer PATH or server makes them exact, where they are estimated")
        outputs = [(self._asked(one), one.output_tokens) for one in self.records if one.output_tokens >= 0]
        said = {"prompt lengths": "; ".join(about_inputs), "output lengths": _off(outputs, "answers")}
        return {name: told for name, told in said.items() if told}

    def at_once(self) -> list[str]:
        """A stream whose tokens all come together is an answer in one piece."""
        several = [
            (record.last_ns - record.first_ns) * 1e-9 / shown < AT_ONCE_S
            for record in self.records
            if record.first_ns >= 0 and (shown := record.output_tokens - record.hidden_tokens) > 1
        ]
        if not several or 2 * sum(several) <= len(several):
            return []
        return [f"all tokens of an answer arrive at once ({_share(sum(several), len(several))}): ITL says nothing"]

    def hidden(self) -> list[str]:
        """Tokens that the usage counts and nobody saw are in no figure about how tokens came."""
        unseen = sum(record.hidden_tokens for record in self.records)
        if not unseen:
            return []
        total = sum(max(record.output_tokens, 0) for record in self.records)
        counted = f"{unseen:,} of {total:,} output tokens ({unseen / total:.0%})"
        return [f"{counted} were reasoning that was not shown: ITL, TPOT and output tokens/s are of the others"]

    def _asked(self, record: Record) -> int:
        return record.asked_output_tokens * self.choices

    def _too_long(self) -> list[str]:
        """A limit is exact, so one token more is too many."""
        over = [
            record
            for record in self.records
            if record.counted in BY_SERVER and record.output_tokens > self._asked(record) > 0
        ]
        if not over:
            return []
        worst = max(over, key=lambda record: record.output_tokens / self._asked(record))
        where = _share(len(over), len(self.records))
        most = f"up to {worst.output_tokens:,} where {self._asked(worst):,} were asked"
        return [f"the server counts more output tokens than max_tokens allows in {where} ({most})"]

    def _too_short(self) -> list[str]:
        told = [record for record in self.records if record.output_tokens > 0 and record.asked_output_tokens > 0]
        short = [record for record in told if record.output_tokens < (1 - LENGTH_RATIO) * self._asked(record)]
        if not told or 2 * len(short) <= len(told):
            return []
        came, asked = (median(each) for each in ((r.output_tokens for r in told), map(self._asked, told)))
        medians = f"median {came:,.0f} of {asked:,.0f} tokens"
        return [
            f"outputs are over {LENGTH_RATIO:.0%} shorter than asked in {_share(len(short), len(told))} ({medians})"
        ]

    def _other_inputs(self) -> list[str]:
        told = [record for record in self.records if record.input_tokens >= 0 and record.asked_input_tokens > 0]
        if not told:
            return []
        asked, counted = (
            float(median(each)) for each in ((r.asked_input_tokens for r in told), (r.input_tokens for r in told))
        )
        off = median(record.input_tokens - record.asked_input_tokens for record in told)
        if abs(off) <= max(LENGTH_RATIO * asked, TEMPLATE_TOKENS):
            return []
        return [f"the server counts {counted:,.0f} input tokens where {asked:,.0f} were asked (medians)"]


def answers(records: Iterable[Record], load: Load) -> Answers:
    """`records`: of the window, or all."""
    choices = load.settings.get("n", "1")
    return Answers(
        [record for record in records if record.ok],
        streamed=load.settings.get("stream") != "no",
        choices=int(choices) if choices.isdecimal() else 1,
    )


def _off(lengths: Sequence[tuple[int, int]], what: str) -> str:
    """Of pairs of asked and delivered tokens; empty where they agree."""
    off = [(asked, came) for asked, came in lengths if abs(came - asked) > max(OFF_TOKENS, OFF_RATIO * asked)]
    if len(off) <= OFF_REQUESTS * len(lengths):
        return ""
    asked, came = (sum(pair[place] for pair in lengths) / len(lengths) for place in (0, 1))
    fewest, most = (end(came / max(asked, 1) - 1 for asked, came in off) for end in (min, max))
    between = f"{fewest:+.0%}" if fewest == most else f"{fewest:+.0%} to {most:+.0%}"
    return (
        f"by the server's count {len(off):,} of {len(lengths):,} {what} were not as long as asked ({between} tokens; "
        f"mean {came:.4g} where {asked:.4g} were asked)"
    )


def _share(some: int, of: int) -> str:
    return f"{some:,} of {of:,} answers"
