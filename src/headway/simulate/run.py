"""What a simulation tells: a `Record` for each request, a `StepRecord` for each step, and the totals, as a `Run`."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headway.core.errors import HeadwayError
from headway.core.front.ladder import Level
from headway.core.pace import Shape
from headway.core.request import RequestId
from headway.core.scheduler.kv import KvCounters
from headway.core.scheduler.limits import Counters
from headway.executors.simulated import StepCost


@dataclass(slots=True)
class Record:
    """One request's passage. Times are virtual ns; 0 means not reached.

    `end` is "stop" or "length" when it finished, else "cancelled", "expired", "failed", "refused" or "diverted";
    `error` says why it was refused, expired or failed. `sent_ns` is when a gateway sent it to a worker, `started_ns`
    when an engine began it.
    """

    id: RequestId
    arrival_ns: int
    prompt_tokens: int
    lane: str
    worker: int | None = None
    started_ns: int = 0
    first_token_ns: int = 0
    ended_ns: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    end: str = ""
    error: HeadwayError | None = None
    tenant: str = ""
    asked: int = 0  # how often its client came
    sent_ns: int = 0
    degraded: str = ""  # what the ladder made of it, in the header's words
    token_ns: array[int] | None = None  # when each token came, where that was asked for

    @property
    def finished(self) -> bool:
        return self.end in {"stop", "length"}

    @property
    def ttft_ns(self) -> int | None:
        """Arrival to first token; None without one."""
        return self.first_token_ns - self.arrival_ns if self.first_token_ns else None

    @property
    def tpot_ns(self) -> float | None:
        """Mean time between tokens; None for fewer than two."""
        if self.output_tokens < 2:
            return None
        return (self.ended_ns - self.first_token_ns) / (self.output_tokens - 1)


class RowRecord(NamedTuple):
    """What one sequence had in a step: `tokens` fed from position `start`."""

    seq: int
    start: int
    tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one worker, or as many equal decode steps as were taken at once (`repeat`)."""

    worker: int
    planned_ns: int
    ended_ns: int
    repeat: int
    prefill_tokens: int
    decode_tokens: int
    context_tokens: int
    pad_tokens: int
    rows: tuple[RowRecord, ...]

    def singles(self, cost: StepCost) -> Iterator[StepRecord]:
        """The steps that a leap stands for."""
        planned_ns = self.planned_ns
        if self.repeat == 1:
            yield self
            return
        for done in range(self.repeat):
            context = self.context_tokens + done * self.decode_tokens
            ended_ns = planned_ns + cost.of_decode(self.decode_tokens, context, 1)
            yield replace(
                self,
                planned_ns=planned_ns,
                ended_ns=ended_ns,
                repeat=1,
                context_tokens=context,
                rows=tuple(row._replace(start=row.start + done) for row in self.rows),
            )
            planned_ns = ended_ns


@dataclass(slots=True)
class Reach:
    """The largest of each that any step had: outside of what a fit has seen, it only extrapolates."""

    prefill_tokens: int = 0
    decode_seqs: int = 0
    context_tokens: int = 0
    attention_tokens: int = 0

    def met(self, shape: Shape, steps: int = 1) -> None:
        """A step was like this, and so many decoded on from there."""
        prefill, decode, context, attention = shape
        context += (steps - 1) * decode
        self.prefill_tokens = max(self.prefill_tokens, prefill)
        self.decode_seqs = max(self.decode_seqs, decode)
        self.context_tokens = max(self.context_tokens, context)
        self.attention_tokens = max(self.attention_tokens, attention)

    def beyond(self, prefill_tokens: int, decode_seqs: int, context_tokens: int) -> str:
        """One sentence about what was larger than a fit has seen; empty: nothing was."""
        pairs = (
            ("prompt tokens", self.prefill_tokens, prefill_tokens),
            ("decoding sequences", self.decode_seqs, decode_seqs),
            ("tokens of context", self.context_tokens, context_tokens),
        )
        said = [f"{met:,} {what} (the fit saw {seen:,})" for what, met, seen in pairs if met > seen]
        if not said:
            return ""
        return f"Outside what was measured: steps had up to {', '.join(said)}. There the fit only extrapolates."


class Sample(NamedTuple):
    """A gateway as it stood at one time. `running` and `queued` are by worker: in its steps, and waiting inside it."""

    at_ns: int
    waiting: int
    waiting_tokens: int
    height: int  # of the ladder
    running: tuple[int, ...]
    queued: tuple[int, ...]


class Shift(NamedTuple):
    """A level of the ladder was entered or left."""

    at_ns: int
    level: Level
    active: bool
    height: float


@dataclass(frozen=True, slots=True)
class Run:
    """`records` in order of arrival; `steps` in order of their end, empty unless asked for; per worker its totals.

    `samples` and `shifts` are a gateway's, and empty without one.
    """

    records: list[Record]
    steps: list[StepRecord]
    ended_ns: int  # when the last request did
    counters: tuple[Counters, ...]
    kv: tuple[KvCounters, ...]
    reach: Reach = field(default_factory=Reach)  # of all workers
    samples: tuple[Sample, ...] = ()
    shifts: tuple[Shift, ...] = ()

    @property
    def ends(self) -> dict[str, int]:
        """How many requests ended how."""
        return dict(Counter(record.end for record in self.records))

    @property
    def output_tokens(self) -> int:
        return sum(record.output_tokens for record in self.records)

    @property
    def engine_steps(self) -> int:
        return sum(counters.steps for counters in self.counters)
