"""`plan`: traffic, a promise and candidates in; what each takes to keep it out. Deterministic by seed.

found = plan(Steady(20.0, Mix((Share("", 1, lengths),))), Promise(ttft_s=1.0, itl_s=0.05), [candidate])
found.best.count, found.best.max_num_seqs
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from headway.core.errors import ConfigError
from headway.executors.simulated import StepCost
from headway.simulate.advice import advise
from headway.simulate.plan.alone import broken_alone
from headway.simulate.plan.candidate import Candidate, Limits
from headway.simulate.plan.curve import CurvePoint, batches, curve_of, knee_of
from headway.simulate.plan.promise import Promise, duration
from headway.simulate.plan.result import Asked, Cost, Estimate, Option, Plan
from headway.simulate.plan.search import Plenty, Progress, Search, budgets_of, fitting_budget, most_seqs, smallest
from headway.simulate.plan.steps import Work, facts_of, strange, work_of
from headway.simulate.plan.traffic import Traffic, check_context
from headway.simulate.plan.trial import Pool, Trial

ROUND_TOKENS = 256  # the longest request is rounded up to these
# Shares of the replicas that are tried with steps as fast as they may be, and as slow.
FEWER, MORE = (0.5, 0.7, 0.85), (1.0, 1.5, 2.0, 3.0)
TRIALS = 40  # that a candidate takes, about
KV_FULL = 0.9
IDLE = 0.5


def plan(
    traffic: Traffic,
    promise: Promise,
    candidates: Sequence[Candidate],
    *,
    max_model_len: int | None = None,
    requests: int | None = None,
    seed: int = 0,
    progress: Progress = lambda _doing, _done, _of: None,
) -> Plan:
    """What each candidate takes. `requests`: simulated on each of the days on which a plan must hold; by default what
    the percentile needs.

    Raises:
        ConfigError: no candidate, two of one name, or a request longer than a model's context or `max_model_len`.
    """
    if not candidates:
        raise ConfigError("there is nothing to plan with: give at least one --hardware NAME=PRICE", param="hardware")
    names = [candidate.name for candidate in candidates]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"hardware {twice[0]} is given twice; give each once", param="hardware")
    for candidate in candidates:
        check_context(traffic, max_model_len or candidate.context_tokens, candidate.model or candidate.name)
    plenty = Plenty.of(promise, requests)
    options = []
    for number, candidate in enumerate(candidates):
        counter = _Counter(candidate.name, number, len(candidates), progress)
        options.append(_option(_Asked(traffic, promise, max_model_len, plenty, seed), candidate, counter))
    options.sort(key=lambda option: option.cost.per_hour if option.cost is not None else math.inf)
    lengths = traffic.lengths
    asked = Asked(
        traffic=traffic.description,
        request_rate=traffic.rate,
        peak_request_rate=traffic.peak_rate,
        prompt_tokens_mean=float(lengths.prompt.mean()),
        output_tokens_mean=float(lengths.output.mean()),
        longest_request_tokens=lengths.longest,
        ttft_s=promise.ttft_s,
        itl_s=promise.itl_s,
        e2e_s=promise.e2e_s,
        percentile=promise.percentile,
        seed=seed,
    )
    chosen = next((option.name for option in options if option.status == "holds"), None)
    return Plan(asked=asked, options=options, chosen=chosen)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The same for every candidate."""

    traffic: Traffic
    promise: Promise
    max_model_len: int | None
    plenty: Plenty
    seed: int


class _Counter:
    """Counts simulations, for a progress bar."""

    def __init__(self, name: str, number: int, of: int, progress: Progress) -> None:
        self._name, self._number, self._of, self._progress, self._done = name, number, of, progress, 0

    def __call__(self) -> None:
        self._done += 1
        mine = min(TRIALS - 1, self._done)
        self._progress(f"Trying {self._name}", self._number * TRIALS + mine, self._of * TRIALS)


def _option(asked: _Asked, candidate: Candidate, counter: _Counter) -> Option:
    traffic, promise = asked.traffic, asked.promise
    base = Option(
        name=candidate.name,
        devices=candidate.devices,
        price_per_hour=candidate.price_per_hour,
        status="holds",
        notes=list(candidate.notes),
    )
    longest = asked.max_model_len or _rounded(traffic.lengths.longest, candidate.context_tokens)
    try:
        most = most_seqs(candidate, traffic, longest)
    except ConfigError as error:
        return _without(base, "too-large", [error.message])
    budget = budgets_of(candidate, 1, longest)[-1]
    if said := broken_alone(candidate, traffic, promise, max_model_len=longest, budget=budget):
        return _without(base, "impossible", said)
    sizes = [most] if candidate.seqs is not None else batches(most)
    sizes = [batch for batch in sizes if candidate.fits(smallest(candidate, batch), longest)]

    def fitting(batch: int) -> int:
        return fitting_budget(candidate, traffic, promise, batch, max_model_len=longest)

    curve = curve_of(
        candidate, traffic, promise, max_model_len=longest, budget=fitting, sizes=sizes, seed=asked.seed,
        progress=counter,
    )  # fmt: skip
    if all(point.outside for point in curve):
        return _without(base, "outside", [_outside(curve[0].outside)], curve)
    search = Search(candidate, traffic, promise, longest, curve, asked.plenty, asked.seed, counter)
    found = search.best()
    proven = search.proven(*found) if found is not None else None
    if found is None or proven is None:
        worst = search.cell(search.first(), search.at_least).broken(promise)
        why = f"no number of replicas keeps it with any limits that were tried; {worst or 'chance'} breaks it first"
        return _without(base, "impossible", [why], curve)
    replicas, pool = proven
    if said_outside := strange(pool.trials[0].run.steps, candidate.valid):
        return _without(base, "outside", [_outside(said_outside)], curve)
    return _told(base, search, found[0], replicas, pool)


def _told(base: Option, search: Search, limits: Limits, replicas: int, pool: Pool) -> Option:
    """All that is known of what holds."""
    candidate, promise, costs = search.candidate, search.promise, search.candidate.costs
    worker, day = search.worker(limits), pool.trials[0]
    work = work_of(day.run.steps, worker, replicas=replicas, seconds=day.seconds)
    fast, slow = (search.fleet(limits, replicas, search.seed + 1, cost) for cost in (costs.fast, costs.slow))
    facts = facts_of(day, work, worker, promise, replicas=replicas)
    return replace(
        base,
        replicas=_replicas(search, limits, replicas),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=worker.limits.max_num_batched_tokens,
        max_model_len=search.max_model_len,
        kv_tokens=worker.capacity_tokens,
        latencies=_latencies(pool, fast, slow, promise),
        kv_used_ratio=_kv_used(work.kv_used_ratio, pool, fast, slow),
        running=work.running,
        busy_ratio=work.busy_ratio,
        cost=_cost(candidate, search.traffic, replicas),
        headroom_ratio=search.headroom(limits, replicas),
        bound_by=bound_by(work, day, worker.capacity_tokens, limits),
        advice=[str(finding) for finding in advise(facts)],
        curve=list(search.curve),
        knee=knee_of(search.curve),
        why=_one_fewer(search, limits, replicas),
    )


def _without(base: Option, status: str, why: list[str], curve: Sequence[CurvePoint] = ()) -> Option:
    return replace(base, status=status, why=why, curve=list(curve), knee=knee_of(curve))


def _outside(what: str) -> str:
    return f"{what}: fit again from a load like this one, or give the model and the device instead"


def _rounded(tokens: int, context_tokens: int | None) -> int:
    rounded = -(-tokens // ROUND_TOKENS) * ROUND_TOKENS
    return rounded if context_tokens is None else max(tokens, min(rounded, context_tokens))


def _replicas(search: Search, limits: Limits, replicas: int) -> Estimate:
    """With steps as fast as they may be, and as slow: roughly, for nobody knows these bounds well."""
    costs = search.candidate.costs

    def holds(count: int, cost: StepCost) -> bool:
        return search.cell(limits, count, cost).strain(search.promise) <= 1

    low = high = None
    if costs.fast != costs.usual:
        fewer = sorted({max(1, math.ceil(replicas * share)) for share in FEWER} - {replicas})
        low = next((count for count in fewer if holds(count, costs.fast)), None)
    if costs.slow != costs.usual:
        more = sorted({math.ceil(replicas * share) for share in MORE})
        high = next((count for count in more if holds(count, costs.slow)), None)
    else:
        high = replicas
    return Estimate(value=replicas, low=low or replicas, high=high)


def _kv_used(peak_ratio: float, pool: Pool, fast: Trial, slow: Trial) -> Estimate:
    """At the peak. Requests that take so much longer hold their blocks so much longer (Little's law)."""
    usual_s, fast_s, slow_s = (float(np.mean(trial.samples["e2e"])) for trial in (pool.trials[0], fast, slow))
    if not math.isfinite(usual_s) or usual_s <= 0:
        return Estimate(value=peak_ratio, low=0.0, high=1.0)
    low, high = (min(1.0, peak_ratio * one_s / usual_s) for one_s in (fast_s, slow_s))
    return Estimate(value=peak_ratio, low=min(low, peak_ratio), high=max(high, peak_ratio))


def _latencies(pool: Pool, fast: Trial, slow: Trial, promise: Promise) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for name in ("ttft", "itl", "e2e"):
        for key, percentile in ((name, promise.percentile), (f"{name}_p50", 50.0)):
            mine = pool.interval(name, percentile)
            lows = [fast.at(name, percentile), *([mine.low] if mine.low is not None else [])]
            highs = [slow.at(name, percentile), *([mine.high] if mine.high is not None else [])]
            value = mine.value if mine.value is not None else None
            high = None if slow.grows or not math.isfinite(max(highs)) else max(highs)
            low = min([*lows, *([value] if value is not None else [])])
            if high is not None and value is not None:
                high = max(high, value)
            found[key] = Estimate(value=value, low=low if math.isfinite(low) else None, high=high)
    return found


def _cost(candidate: Candidate, traffic: Traffic, replicas: int) -> Cost:
    per_hour = candidate.price_per_hour * replicas
    output = traffic.rate * float(traffic.lengths.output.mean())
    every = output + traffic.rate * float(traffic.lengths.prompt.mean())
    per_token = per_hour / 3600 * 1e6
    return Cost(per_hour=per_hour, per_million_output_tokens=per_token / output, per_million_tokens=per_token / every)


def bound_by(work: Work, day: Trial, kv_tokens: int, limits: Limits) -> list[str]:
    """What sets the limit, in words with numbers, the nearest first."""
    said = []
    preemptions = sum(counters.preemptions for counters in day.run.counters)
    if work.kv_used_ratio >= KV_FULL or preemptions:
        said.append(
            f"KV: {work.kv_used_ratio:.0%} of {kv_tokens:,} tokens used at the peak, {preemptions:,} preemptions"
        )
    kinds = work.kinds
    reading = kinds.get("weights", 0.0) + kinds.get("kv", 0.0)
    shares = (
        f"{kinds.get('arithmetic', 0.0):.0%} of the time of steps grows with tokens (arithmetic), "
        f"{kinds.get('weights', 0.0):.0%} is there in every step (weights are read, kernels launched), "
        f"{kinds.get('kv', 0.0):.0%} reads KV"
    )
    said.append(f"Memory bandwidth: {shares}" if reading > 0.5 else f"Compute: {shares}")
    if work.running >= 0.95 * limits.max_num_seqs and limits.max_num_seqs > 1:
        said.append(f"Slots: {work.running:,.0f} of {limits.max_num_seqs:,} run at the peak")
    if work.busy_ratio < IDLE:
        said.append(
            f"Latency, not throughput: a replica computes {work.busy_ratio:.0%} of the time; "
            "so many are needed for the promise"
        )
    if work.kv_used_ratio < KV_FULL and not preemptions:
        said.append(f"Not KV: {work.kv_used_ratio:.0%} of {kv_tokens:,} tokens used at the peak")
    return said


def _one_fewer(search: Search, limits: Limits, replicas: int) -> list[str]:
    """What breaks first."""
    if replicas == 1:
        return []
    promise = search.promise
    trial = search.cell(limits, replicas - 1)
    name = trial.broken(promise)
    if not name:
        return [f"With {replicas - 1} it holds on most days, but not surely"]
    if name == "queue":
        return [f"With {replicas - 1} the queue grows without end"]
    at = duration(trial.at(name, promise.percentile))
    return [f"With {replicas - 1} {name.upper()} {promise.tail} would be {at}"]
