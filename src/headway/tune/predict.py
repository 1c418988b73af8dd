"""`World`: the measured server on virtual time, with any settings; `Prediction`: what a load test of it would find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from headway.core.errors import ConfigError
from headway.core.scheduler.policies import POLICIES
from headway.loadtest.result import Slo
from headway.metrics import goodput, latency
from headway.metrics.latency import Floats, Timings
from headway.simulate import Record, Run, VirtualSettings, simulate
from headway.simulate.fit import StepFit
from headway.tune.settings import Settings
from headway.tune.workload import Outside, Workload

# Of steps that a fit is off by at p95, so much is believed at least and at most; and of what a live test teaches.
LEAST_ERROR, MOST_ERROR, MOST_TAUGHT = 0.03, 0.25, 2.0

# The service of a fit with other settings. Raises `ConfigError` for settings that the server would not take.
Build = Callable[[StepFit, Settings], VirtualSettings]


class Figures(msgspec.Struct, kw_only=True, frozen=True):
    """What a load comes to, predicted or measured. Times in s; None: not promised, or there is nothing to tell."""

    goodput: float  # good requests per s of the window, by the time of their end
    good_ratio: float  # of all requests due in the window
    request_rate: float
    output_token_rate: float
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    e2e_p95_s: float | None = None
    preemptions: float | None = None
    kv_used_ratio: float | None = None


class Prediction(Figures, kw_only=True, frozen=True):
    """`strain`: the promise that is nearest to breaking, as p95 over limit; None: p95 lies among those given up.
    `covered`: the share of the steps' time that is in steps like those which the fit saw; the rest is extrapolated.
    """

    strain: float | None
    covered: float

    @property
    def load_on_promises(self) -> float:
        """`strain` to order by: infinite where too few got so far as to tell."""
        return float("inf") if self.strain is None else self.strain


@dataclass(frozen=True, slots=True)
class Doubt:
    """What simulated times are made longer by before promises are held against them. A paced engine sizes its steps to
    just what was promised: without a doubt it would seem to keep every promise, and any noise breaks them all.
    """

    itl_ratio: float = 1.0
    itl_s: float = 0.0
    ttft_ratio: float = 1.0

    def after(self, predicted: Prediction, measured: Figures) -> Doubt:
        """What a live test taught. It makes doubts larger, never smaller: another test may have been lucky."""
        itl = _ratio(measured.itl_p95_s, predicted.itl_p95_s)
        ttft = _ratio(measured.ttft_p50_s, predicted.ttft_p50_s)
        return Doubt(max(self.itl_ratio, itl), self.itl_s, max(self.ttft_ratio, ttft))


def _ratio(measured: float | None, predicted: float | None) -> float:
    return min(MOST_TAUGHT, measured / predicted) if measured and predicted else 1.0


NO_DOUBT = Doubt()


@dataclass(frozen=True, slots=True, eq=False)
class Foreseen:
    """A simulated load test: figures, and of each request that was due in the window (n) what promises are about, s.

    `gap_s` is the p99 of its gaps; 0 with none. NaN: it never came. `here`: it ended in the window as well.
    """

    figures: Prediction
    ttft_s: Floats
    gap_s: Floats
    e2e_s: Floats
    ok: latency.Bools
    here: latency.Bools
    window_s: float
    slo: Slo

    def judged(self, doubt: Doubt) -> Prediction:
        """With promises held against times as they may be."""
        slo, good = self.slo, self.ok.copy()
        if slo.ttft_s is not None:
            good &= self.ttft_s * doubt.ttft_ratio <= slo.ttft_s
        if slo.itl_s is not None:
            # More than half of a promise is never given up to noise: then nothing at all would seem to keep it.
            gap_s = self.gap_s * doubt.itl_ratio + np.minimum(doubt.itl_s, slo.itl_s / 2) * (self.gap_s > 0)
            good &= gap_s <= slo.itl_s
        if slo.e2e_s is not None:
            good &= self.e2e_s <= slo.e2e_s
        return msgspec.structs.replace(
            self.figures,
            good_ratio=float(good.mean()),
            goodput=float((good & self.here).sum()) / self.window_s,
        )


@dataclass(frozen=True, slots=True)
class World:
    """What the fit says of the server. `build` makes it with settings other than those it had."""

    fit: StepFit
    build: Build

    @property
    def by_promise(self) -> bool:
        """Does the server heed promises?"""
        return POLICIES[self.fit.server.policy].by_promise

    @property
    def kv_tokens(self) -> int | None:
        """What its KV cache holds; None: unknown."""
        server = self.fit.server
        return server.num_blocks * server.block_size if server.num_blocks else None

    def takes(self, settings: Settings) -> bool:
        """Whether the server would take them at all."""
        try:
            self.build(self.fit, settings)
        except ConfigError:
            return False
        return True

    def foresee(self, settings: Settings, workload: Workload) -> Foreseen:
        """Deterministic. Raises `ConfigError` for settings that contradict each other."""
        service = replace(self.build(self.fit, settings), log_tokens=True, log_steps=True)
        return _foreseen(self.fit, simulate(workload.requests, service), workload)

    def doubt(self, outside: Outside) -> Doubt:
        """How far a step, and the gap that a client sees of it, may be from what is simulated."""
        kinds = {residual.kind: residual.p95_error for residual in self.fit.residuals}
        error = kinds.get("step", kinds.get("decode", LEAST_ERROR))
        return Doubt(itl_ratio=1 + min(MOST_ERROR, max(LEAST_ERROR, error)), itl_s=outside.jitter_ns / 1e9)


def other_server(fit: StepFit, settings: Settings) -> VirtualSettings:
    """A `Build` for a server of which only its fit is known: one queue, its own policy, no lanes."""
    from headway.core.front.front import FrontLimits

    server = msgspec.structs.replace(
        fit.server, max_num_seqs=settings.max_num_seqs, max_num_batched_tokens=settings.max_num_batched_tokens
    )
    if server.max_num_batched_tokens < server.max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens is {server.max_num_batched_tokens}, and must be at least max_num_seqs "
            f"({server.max_num_seqs})."
        )
    return VirtualSettings(workers=(server.worker(fit.cost),), front=FrontLimits(age_bound_ns=0))


def _foreseen(fit: StepFit, run: Run, workload: Workload) -> Foreseen:
    timings = _timings(run, workload)
    window, slo = workload.window_s, workload.slo
    due = timings.due_within(window)
    seconds = window[1] - window[0]
    ended = (timings.ended_ns >= window[0] * 1e9) & (timings.ended_ns < window[1] * 1e9)
    ttft, e2e = latency.ttft_s(due), latency.e2e_s(due)
    gaps = np.asarray(due.gaps_ns, np.float64) / 1e9
    p95 = {"ttft": _percentile(ttft, 95), "itl": _percentile(gaps, 95), "e2e": _percentile(e2e, 95)}
    figures = Prediction(
        goodput=0.0,  # both are judged
        good_ratio=0.0,
        request_rate=float((timings.ok & ended).sum()) / seconds,
        output_token_rate=_tokens_within(timings, window) / seconds,
        ttft_p50_s=_percentile(ttft, 50),
        ttft_p95_s=p95["ttft"],
        itl_p50_s=_percentile(gaps, 50),
        itl_p95_s=p95["itl"],
        e2e_p95_s=p95["e2e"],
        preemptions=float(sum(counters.preemptions for counters in run.counters)),
        strain=_strain(p95, slo),
        covered=_covered(fit, run),
    )
    return Foreseen(
        figures,
        ttft,
        np.nan_to_num(latency.request_gap_s(due, goodput.GAP_PERCENTILE), nan=0.0),
        e2e,
        due.ok,
        due.ended_ns < window[1] * 1e9,
        seconds,
        slo,
    )


def _strain(p95_s: dict[str, float | None], slo: Slo) -> float | None:
    limits = {"ttft": slo.ttft_s, "itl": slo.itl_s, "e2e": slo.e2e_s}
    parts = [(p95_s[name], limit) for name, limit in limits.items() if limit]
    known = [at / limit for at, limit in parts if at is not None]
    return max(known, default=0.0) if len(known) == len(parts) else None


def _percentile(values: Floats, q: float) -> float | None:
    """None where there are none, or where the percentile lies among those who were given up."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    found = float(np.percentile(known, q, method="higher"))
    return found if np.isfinite(found) else None


def _timings(run: Run, workload: Workload) -> Timings:
    """As a load test's client would have seen it: from when a request was due."""
    by_id = {record.id: record for record in run.records}
    records = [by_id[request.id] for request in workload.requests]
    late_ns = workload.outside.request_ns
    times = [np.asarray(record.token_ns if record.token_ns is not None else (), np.int64) for record in records]
    gaps = [np.diff(each) for each in times]

    def column(values: list[int]) -> latency.Ints:
        return np.array(values, np.int64)

    due = column([request.arrival_ns - late_ns for request in workload.requests])
    all_gaps = np.concatenate([np.empty(0, np.int64), *gaps])
    return Timings(
        scheduled_ns=due,
        sent_ns=due,
        first_ns=column([int(each[0]) if len(each) else latency.UNKNOWN for each in times]),
        last_ns=column([int(each[-1]) if len(each) else latency.UNKNOWN for each in times]),
        ended_ns=column([record.ended_ns for record in records]),
        ok=np.array([record.finished for record in records], np.bool_),
        given_up=np.array([record.end == "cancelled" for record in records], np.bool_),
        input_tokens=column([record.prompt_tokens for record in records]),
        output_tokens=column([_outputs(record) for record in records]),
        first_tokens=column([int(len(each) > 0) for each in times]),
        gap_counts=column([len(each) for each in gaps]),
        gaps_ns=all_gaps,
        gap_tokens=np.ones(len(all_gaps), np.uint16),
    )


def _outputs(record: Record) -> int:
    return len(record.token_ns) if record.token_ns is not None else 0


def _tokens_within(timings: Timings, window: tuple[float, float]) -> float:
    """Tokens that came in the window."""
    came = np.concatenate([timings.first_ns[timings.first_ns >= 0], latency.chunk_times_ns(timings)])
    return float(((came >= window[0] * 1e9) & (came < window[1] * 1e9)).sum())


def _covered(fit: StepFit, run: Run) -> float:
    """By time: which share of what was computed is like what was seen."""
    seen = total = 0
    valid = fit.valid
    for step in run.steps:
        took = step.ended_ns - step.planned_ns
        total += took
        seen += took * (
            step.prefill_tokens <= valid.max_prefill_tokens
            and step.decode_tokens <= valid.max_decode_seqs
            and step.context_tokens <= valid.max_context_tokens
        )
    return seen / total if total else 1.0
