"""`Probe`: one run at one load as the search for the stable region sees it, and what it says about that load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import hypot

from headway.loadtest import verdict
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Interval, Run, Struct, Word
from headway.metrics.percentiles import key

CURVE = ("ttft", "itl", "e2e")  # whose p99 is drawn against throughput


class Probe(Struct):
    """A run at `load`, requests/s or requests at a time. Kept, so that a search can be taken up again."""

    load: float
    window_s: float
    requests: int
    good: Interval  # the share of requests that kept every promise
    slo_ratios: dict[str, float]  # and of those that kept each
    request_rate: float  # finished well, per s
    goodput: float
    p99_s: dict[str, Interval]  # of TTFT, ITL and E2E
    error_ratio: float
    verdict: str
    kv_used_ratio: float | None = None  # p95 over the window; None: the server does not say
    preempted_ratio: float | None = None  # preemptions to a request
    evidence: str = ""  # of the verdict
    undecided: int = 0  # of the requests: not in the shares


class Bound(Enum):
    """What is in the way of more load."""

    PROMISE = "promise"
    ERRORS = "errors"
    MEMORY = "memory"
    UNSTEADY = "unsteady"
    CLIENT = "client"
    LIMIT = "limit"  # --highest of the search itself
    PROBES = "probes"  # --most-probes of the search itself


class LoadAnswer(Enum):
    """What the probes at one load say."""

    HOLDS = "holds"
    BREAKS = "breaks"
    OPEN = "open"  # another probe may tell
    CLIENT = "client"  # this machine cannot offer that load


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a load must keep besides the promises."""

    good_ratio: float = 0.99  # the share of requests that keep every promise
    errors: float = 0.01  # share of requests that may fail
    kv_used_ratio: float = 0.9
    preempted_ratio: float = 0.01  # preemptions to a request


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the probes at one load say, all of them pooled, and in one line why."""

    answer: LoadAnswer
    bound: Bound | None = None
    reason: str = ""


def probe_of(run: Run, load: float) -> Probe:
    """What a run at `load` says. Raises `InvalidPlan` when it promises nothing: there is no region to find then."""
    group = run.summary.overall
    start_s, end_s = window_s = run.summary.window_s
    preemptions = run.signals.preemptions(window_s)
    if group.good_ratio is None and group.requests:
        raise InvalidPlan(
            "A stable region is one in which promises hold: give at least one of --slo-ttft, --slo-itl, --slo-e2e."
        )
    failed = sum(group.fates.get(fate.value, 0) for fate in verdict.ERRORS)
    findings = run.verdict.findings
    return Probe(
        load=load,
        window_s=end_s - start_s,
        requests=group.requests,
        good=group.good_ratio or Interval(value=None),
        slo_ratios=group.slo_ratios,
        request_rate=group.request_rate,
        goodput=group.goodput or 0.0,
        p99_s={name: group.distributions[name].percentiles[key(99)] for name in CURVE},
        error_ratio=failed / group.requests if group.requests else 0.0,
        verdict=run.verdict.name,
        kv_used_ratio=run.signals.kv_used_ratio(window_s),
        preempted_ratio=preemptions / group.requests if preemptions is not None and group.requests else None,
        evidence=findings[0].evidence if findings else "",
        undecided=group.undecided_requests,
    )


def opinion(probes: Sequence[Probe], wanted: Requirements, *, repeats: int) -> Opinion:
    """What the probes of one load say together. After `repeats` of them it is not OPEN any more."""
    usable = [probe for probe in probes if probe.verdict != Word.CLIENT_LIMITED]
    last = len(probes) >= repeats
    if not usable:
        # Once may be a hiccup of this machine, twice is its limit.
        answer = LoadAnswer.CLIENT if len(probes) > 1 or last else LoadAnswer.OPEN
        return Opinion(answer, Bound.CLIENT, f"this machine cannot offer that load: {probes[-1].evidence}")
    broken = [found for probe in usable if (found := _broken(probe, wanted))]
    if 2 * len(broken) > len(usable) or (last and 2 * len(broken) == len(usable)):
        return broken[-1]
    if 2 * len(broken) == len(usable):
        return Opinion(LoadAnswer.OPEN)
    return _promises(usable, wanted, last=last)


def _promises(probes: Sequence[Probe], wanted: Requirements, *, last: bool) -> Opinion:
    """Were enough requests good? Their interval says so, or, when it is the last word, their share."""
    good = pooled(probes)
    if good.value is None:
        return Opinion(
            LoadAnswer.BREAKS if last else LoadAnswer.OPEN, Bound.PROMISE, "no request was due in the window"
        )
    said = f"{good.value:.2%} of the requests kept every promise, {wanted.good_ratio:.2%} must{_worst_promise(probes)}"
    if good.high is not None and good.high < wanted.good_ratio:
        return Opinion(LoadAnswer.BREAKS, Bound.PROMISE, said)
    if good.low is not None and good.low >= wanted.good_ratio:
        return Opinion(LoadAnswer.HOLDS)
    if not last:
        return Opinion(LoadAnswer.OPEN)
    if good.value >= wanted.good_ratio:
        return Opinion(LoadAnswer.HOLDS)
    return Opinion(LoadAnswer.BREAKS, Bound.PROMISE, f"{said}; too close to call after {len(probes)} probes")


def pooled(probes: Sequence[Probe]) -> Interval:
    """The share of good requests of all of them; errors of independent runs add up in squares."""
    told = [(probe.requests - probe.undecided, probe.good) for probe in probes]
    total = sum(judged for judged, good in told if good.value is not None)
    if not total:
        return Interval(value=None)
    value = low = high = 0.0
    for judged, good in told:
        share = judged / total
        if good.value is None:
            continue
        value += share * good.value
        low = hypot(low, share * (good.value - (good.low if good.low is not None else 0.0)))
        high = hypot(high, share * ((good.high if good.high is not None else 1.0) - good.value))
    return Interval(value=value, low=max(value - low, 0.0), high=min(value + high, 1.0))


def _broken(probe: Probe, wanted: Requirements) -> Opinion | None:
    """What is wrong with a probe besides promises that were not kept."""
    if probe.error_ratio > wanted.errors:
        line = f"{probe.error_ratio:.1%} of the requests failed, {_percent(wanted.errors)} may"
        return Opinion(LoadAnswer.BREAKS, Bound.ERRORS, line)
    if probe.verdict == Word.SERVER_ERRORS:
        return Opinion(LoadAnswer.BREAKS, Bound.ERRORS, probe.evidence)
    if (used := probe.kv_used_ratio) is not None and used > wanted.kv_used_ratio:
        return Opinion(
            LoadAnswer.BREAKS, Bound.MEMORY, f"KV use {used:.0%}, {_percent(wanted.kv_used_ratio)} may be used"
        )
    if (lost := probe.preempted_ratio) is not None and lost > wanted.preempted_ratio:
        line = (
            f"{lost:.1%} preemptions to a request, {_percent(wanted.preempted_ratio)} may be: KV memory was exhausted"
        )
        return Opinion(LoadAnswer.BREAKS, Bound.MEMORY, line)
    if probe.verdict == Word.UNSTEADY:
        return Opinion(LoadAnswer.BREAKS, Bound.UNSTEADY, probe.evidence)
    return None


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g}%"


def unseen(probes: Sequence[Probe]) -> str:
    """In words, what of memory no probe could tell: it counts as not tight. Empty where both were told."""
    untold = [
        what
        for what, values in (
            ("KV use", [probe.kv_used_ratio for probe in probes]),
            ("preemptions", [probe.preempted_ratio for probe in probes]),
        )
        if values and all(value is None for value in values)
    ]
    return f"Memory was not seen to be tight or not: the server told no {' and no '.join(untold)}." if untold else ""


def _worst_promise(probes: Sequence[Probe]) -> str:
    ratios = [(ratio, name) for probe in probes for name, ratio in probe.slo_ratios.items()]
    if not ratios:
        return ""
    ratio, name = min(ratios)
    return f" ({name.upper()} broke first: {ratio:.2%} within its limit)"
