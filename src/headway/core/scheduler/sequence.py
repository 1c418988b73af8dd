"""`Sequence`: a started request as its scheduler sees it, and the events its owner hears."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.errors import HeadwayError
from headway.core.request import Reason, Request, State, Times, Usage
from headway.core.scheduler.kv import Table
from headway.core.scheduler.step import TokenLogprob
from headway.core.spans import tokens_of


class Sequence:
    """A request's tokens, how many of them are resident in KV, and where."""

    __slots__ = (
        "cached_tokens",
        "cancelled",
        "committed",
        "computed",
        "handle",
        "in_flight",
        "known",
        "length",
        "preemptions",
        "prompt_tokens",
        "request",
        "table",
        "times",
        "tokens",
        "unfed",
    )

    def __init__(self, handle: int, request: Request, now: int) -> None:
        self.handle = handle  # in order of start
        self.request = request
        self.tokens = tokens_of(request.prompt)  # prompt, then output
        self.prompt_tokens = self.length = request.prompt_tokens  # `length` is of `tokens`: they are asked for it often
        self.unfed: list[int] = []  # while decoding, the one token that is not fed yet
        self.computed = 0  # tokens whose KV is resident
        self.table = Table(scope=request.cache_scope)
        self.cached_tokens = 0  # of the prompt, found in the prefix cache at the first start
        self.committed = False  # KV for its worst case is set aside: it never waits for a block again
        self.preemptions = 0
        self.known = False  # the executor has its `Begin`
        self.in_flight = False  # a planned step that is not committed holds a row of it
        self.cancelled = False  # to be ended by the commit of the step in flight
        self.times = Times(arrival_ns=request.arrival_ns, started_ns=now)

    def produce(self, tokens: list[int]) -> None:
        """These were drawn."""
        self.tokens += tokens
        self.length += len(tokens)
        self.unfed = tokens[-1:]

    @property
    def output_tokens(self) -> int:
        return self.length - self.prompt_tokens

    @property
    def remaining(self) -> int:
        """Tokens that must be fed before the next one can be drawn: 1 while decoding."""
        return self.length - self.computed

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.output_tokens, self.cached_tokens)


@dataclass(slots=True)
class Produced:
    """New tokens of a request, in order. Made for every token, and so not frozen: that would triple its cost."""

    request: Request
    tokens: list[int]
    logprobs: list[TokenLogprob] | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The one terminal event of a started request: `reason` when it FINISHED, `error` when the core FAILED it."""

    request: Request
    state: State
    reason: Reason | None
    usage: Usage
    times: Times
    error: HeadwayError | None = None


Event = Produced | Ended
