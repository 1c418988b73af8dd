"""What one call's timing was: observed into the metrics as it happens, and told in `Server-Timing`.

A call's time is network (its body coming in), tokenise, then queue, prefill and decode of the sequence that ended last,
and gateway: whatever is left of the total.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from headway.core.errors import HeadwayError
from headway.core.front.admission import NS_PER_S
from headway.core.request import NO_SLO, Slo, Times, Usage
from headway.engine.stream import Delta
from headway.metrics.breakdown import Ended
from headway.metrics.exporter import Exporter
from headway.metrics.gaps import Gaps

MAX_PATH_CHARS = 200


class Timing:
    """Clocks one call from its arrival: `received` and `ready` once, `token` per delta, `finished` at the end."""

    __slots__ = (
        "_arrival_ns",
        "_gaps",
        "_labels",
        "_last_ns",
        "_metrics",
        "_parts",
        "_ready_ns",
        "_received_ns",
        "_slo",
        "_times",
        "_told",
        "_ttft_s",
    )

    def __init__(self, metrics: Exporter) -> None:
        self._metrics = metrics
        self._arrival_ns = self._received_ns = self._ready_ns = time.monotonic_ns()
        self._times: Sequence[Times] = ()
        self._parts: dict[str, float] = {}
        self._last_ns: dict[int, int] = {}  # by choice: when its last token came
        self._ttft_s: float | None = None
        self._gaps: Gaps | None = None
        self._slo = NO_SLO
        self._labels: Mapping[str, str] = {}
        self._told = False  # how it ended

    def received(self) -> None:
        """The body is there."""
        self._received_ns = time.monotonic_ns()
        self._parts["network"] = (self._received_ns - self._arrival_ns) / NS_PER_S
        self._metrics.network_s.note(self._parts["network"])

    def ready(self, labels: Mapping[str, str], slo: Slo) -> None:
        """The prompt is tokenised. `labels` is what it is counted by, `slo` what it is promised."""
        self._labels, self._slo = labels, slo
        self._ready_ns = time.monotonic_ns()
        self._parts["tokenise"] = (self._ready_ns - self._received_ns) / NS_PER_S
        self._metrics.tokenise_s.note(self._parts["tokenise"])

    def token(self, index: int, delta: Delta) -> None:
        count = len(delta.tokens)
        if not count:
            return
        now = time.monotonic_ns()
        last = self._last_ns.get(index)
        self._last_ns[index] = now
        if last is None:
            ttft_s = (now - self._arrival_ns) / NS_PER_S
            if self._ttft_s is None:
                self._ttft_s = ttft_s
            self._metrics.ttft_s.observe(ttft_s)
            return
        gap_s = (now - last) / NS_PER_S / count
        if self._gaps is None:
            self._gaps = Gaps(self._metrics.gaps)
        self._metrics.gaps.note(self._gaps, gap_s, count)

    def ended(self, outcome: str, usage: Usage) -> None:
        """How it ended, as far as it got, and what it cost; the first to say so is believed."""
        if self._told:
            return
        self._told = True
        self._metrics.calls.ended(
            Ended(
                outcome=outcome,
                input_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                output_tokens=usage.output_tokens,
                ttft_s=self._ttft_s,
                duration_s=(time.monotonic_ns() - self._arrival_ns) / NS_PER_S,
                gaps=self._gaps,
                promises=promises_kept(self._slo, self._ttft_s, self._gaps),
                labels=self._labels,
            )
        )

    @property
    def ttft_s(self) -> float | None:
        """When the first token of any choice came, None before that."""
        return self._ttft_s

    def parts(self) -> list[Part]:
        """For a span: the parts before its sequences, and of each sequence its own."""
        parts = [
            Part("network", self._arrival_ns, self._received_ns),
            Part("tokenise", self._received_ns, self._ready_ns),
        ]
        for index, one in enumerate(self._times):
            facts = {"headway.choice": index}
            if one.first_token_ns:
                parts.append(Part("queue", one.arrival_ns, one.started_ns, facts))
                parts.append(Part("prefill", one.started_ns, one.first_token_ns, facts))
                parts.append(Part("decode", one.first_token_ns, one.ended_ns, facts))
        return parts

    def begun(self) -> str:
        """The `Server-Timing` of a stream, whose headers leave with its first token: what is known then."""
        return _server_timing({**self._parts, "ttft": (time.monotonic_ns() - self._arrival_ns) / NS_PER_S})

    def finished(self, times: Sequence[Times | None]) -> str:
        """Observe the parts of every sequence; the `Server-Timing` value tells those of the one that ended last."""
        self._times = [one for one in times if one is not None]
        total_s = (time.monotonic_ns() - self._arrival_ns) / NS_PER_S
        self._metrics.duration_s.note(total_s)
        parts = self._parts
        reached = [one for one in times if one is not None and one.first_token_ns]
        for one in sorted(reached, key=lambda one: one.ended_ns):
            parts["queue"] = (one.started_ns - one.arrival_ns) / NS_PER_S
            parts["prefill"] = (one.first_token_ns - one.started_ns) / NS_PER_S
            parts["decode"] = (one.ended_ns - one.first_token_ns) / NS_PER_S
            self._metrics.queue_s.note(parts["queue"])
            self._metrics.prefill_s.note(parts["prefill"])
            self._metrics.decode_s.note(parts["decode"])
        parts["gateway"] = max(0.0, total_s - sum(parts.values()))
        self._metrics.gateway_s.note(parts["gateway"])
        return _server_timing({**parts, "total": total_s})


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a call's time, on the monotonic clock. `facts` are attributes of its span."""

    name: str
    begin_ns: int
    end_ns: int
    facts: Mapping[str, str | int | float] = field(default_factory=dict)


class Tally(Protocol):
    """What a call came to, as far as it got."""

    @property
    def model(self) -> str: ...
    @property
    def finish_reasons(self) -> Sequence[str]: ...
    @property
    def failure(self) -> str:
        """The code of what ended it badly after its status was sent; empty when nothing did."""

    @property
    def cached_tokens(self) -> int: ...
    @property
    def facts(self) -> Mapping[str, str | Sequence[str]]:
        """What else is worth a span's attribute, by its name there."""

    def parts(self) -> Sequence[Part]: ...
    def over(self, outcome: str) -> None:
        """It is over and was not answered well, by `metrics.names.OUTCOMES`. Nothing where it has told its end."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def ttft_s(self) -> float | None: ...


TALLY = web.RequestKey("headway.tally", Tally)
REFUSAL = web.RequestKey("headway.refusal", HeadwayError)  # what a call was answered with instead
# Called with a request and the status of its answer when that is over, whatever became of it.
OVER = web.AppKey[Callable[[web.Request, int], None]]("headway.over")


def promises_kept(slo: Slo, ttft_s: float | None, gaps: Gaps | None) -> dict[str, bool]:
    """Of each promise that was made, whether it was kept: TTFT, and the mean gap between tokens. What nobody saw, such
    as the gaps of an answer in one piece, breaks none.
    """
    kept = {}
    if slo.ttft_ns and ttft_s is not None:
        kept["ttft"] = ttft_s * NS_PER_S <= slo.ttft_ns
    if slo.itl_ns and gaps is not None and (count := gaps.count):
        kept["itl"] = gaps.sum / count * NS_PER_S <= slo.itl_ns
    return kept


def call_line(request: web.Request, status: int, total_s: float) -> str:
    """A call in one line, for the log. What it did not get to is not there."""
    line = f"{request.method} {request.path[:MAX_PATH_CHARS]!r} {status}"
    tally = request.get(TALLY)
    if tally is not None:
        line += f", prompt {tally.prompt_tokens} tokens, output {tally.output_tokens} tokens"
        if tally.ttft_s is not None:
            line += f", ttft {tally.ttft_s * 1000:.1f} ms"
    return f"{line}, total {total_s * 1000:.1f} ms"


def _server_timing(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in parts.items())
