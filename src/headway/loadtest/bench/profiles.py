"""`offer`: a profile and its options become a load that can be planned, and the words in which a report tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt
from typing import Any

import msgspec

from headway.loadtest.bench.options import (
    Burst,
    LongContext,
    LongOutput,
    Mixed,
    Profile,
    Ramp,
    Rate,
    TextOptions,
    Trace,
    WindowOptions,
    load_options,
    name_of,
)
from headway.loadtest.bench.texts import Asked, asked, kind_of, shares_of, source_items, tenants_of
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Load
from headway.loadtest.runner.plan import ClosedLoad, OpenLoad
from headway.metrics.percentiles import key, samples_needed
from headway.workload import arrivals
from headway.workload.arrivals import Arrivals
from headway.workload.draws import fork, stream
from headway.workload.item import Arrival, Item
from headway.workload.lengths import parse_lengths
from headway.workload.mix import Share, parse_shares, parse_tenants, short_and_long
from headway.workload.schedule import Stop, schedule
from headway.workload.tokens import Measure
from headway.workload.traces import Cut, read_trace

INPUT_LEN, OUTPUT_LEN = "512", "128"
LONG_OUTPUT_INPUT_LEN, LONG_CONTEXT_OUTPUT_LEN = "64", "64"
LONG_TOKENS = 4096  # where the server does not tell its longest context
DURATION_S = 60.0
# Where no length is asked for, a run is made long enough for its percentile, within these bounds.
MOST_S, MOST_CLOSED_S = 1800.0, 600.0
PERCENTILE, PERCENTILE_OF_CHANGE = 95.0, 50.0
SURE = 2.5  # standard deviations: in one run of a hundred, chance sends too few
COUNTED = 0.85  # of a load between its usual warm-up and cool-down, at least
NS_PER_S = 1e9
FEWEST_CALM = 30  # requests between two bursts: with 20, one recovery in thirty is not seen
LENGTH = "length"  # the setting that says why a run lasts as long as it does


@dataclass(frozen=True, slots=True)
class Terms:
    """What all profiles are subject to: options, and what is known of the server."""

    window: WindowOptions
    text: TextOptions
    measure: Measure
    max_model_len: int | None


@dataclass(frozen=True, slots=True)
class Offered:
    """A load that can be made, and how a report tells it."""

    load: OpenLoad | ClosedLoad
    described: Load
    items: Callable[[], Iterator[Item]]  # in order, for whoever wants to look at them first
    percentile: float = PERCENTILE  # the highest that the run is for
    bursts_s: tuple[tuple[float, float], ...] = ()
    until_degraded: bool = False  # ends once service has clearly degraded
    tenants: frozenset[str] = frozenset()  # that requests may be of; "" is nobody


@dataclass(frozen=True, slots=True)
class Extent:
    """How long a load lasts and what of it counts, with all defaults filled in."""

    duration_s: float | None
    requests: int | None
    warmup_s: float
    cooldown_s: float
    seed: int
    warmup_requests: int = 0  # of a load that lasts a number of requests, and nobody knows how long that takes

    @property
    def stop(self) -> Stop:
        return Stop(self.duration_s, self.requests)


def extent(window: WindowOptions, usual_s: float | None, *, rate: float | None = None, whole: bool = False) -> Extent:
    """`usual_s`: the profile's own duration. `rate`: makes a time of a number of requests. `whole`: all of it counts.

    Raises InvalidPlan when warm-up and cool-down leave nothing.
    """
    asked_s = window.duration
    if asked_s is None and window.requests is None:
        asked_s = usual_s
    lasts_s = asked_s
    if window.requests is not None and rate:
        lasts_s = min(window.requests / rate, asked_s or float("inf"))
    trimmed_s = 0.0 if whole or lasts_s is None else lasts_s
    warmup_s = min(trimmed_s / 10, 10.0) if window.warmup is None else window.warmup
    cooldown_s = min(trimmed_s / 20, 5.0) if window.cooldown is None else window.cooldown
    if lasts_s is not None and warmup_s + cooldown_s >= lasts_s:
        raise InvalidPlan(
            f"A warm-up of {warmup_s:g} s and a cool-down of {cooldown_s:g} s leave nothing of {lasts_s:.3g} s. "
            "Use a longer --duration, or a shorter --warmup and --cooldown."
        )
    first = window.requests // 10 if window.requests and lasts_s is None and window.warmup is None and not whole else 0
    return Extent(asked_s, window.requests, warmup_s, cooldown_s, window.seed or 0, first)


def percentile_of(profile: Profile, window: WindowOptions) -> float:
    """The highest that a run is for. One over a ramp or bursts says nothing about any one load."""
    if window.percentile is not None:
        return window.percentile
    return PERCENTILE_OF_CHANGE if isinstance(profile, Ramp | Burst) else PERCENTILE


def length_s(percentile: float, rate: float, burstiness: float = 1.0) -> float:
    """How long requests must come at this rate for the percentile to be told, warm-up and cool-down included."""
    needed = samples_needed(percentile)
    measured_s = (needed + SURE * sqrt(needed / min(burstiness, 1.0)) + 1) / rate
    return min(MOST_S, max(DURATION_S, ceil(min(measured_s / COUNTED, measured_s + 15.0))))


def _as_needed(profile: Rate | Mixed, rate: float, terms: Terms) -> tuple[Extent, dict[str, str]]:
    """Of an open loop at one rate; and why so long, as a setting, where nobody asked for a length."""
    window, percentile = terms.window, percentile_of(profile, terms.window)
    usual_s = length_s(percentile, rate, getattr(profile, "burstiness", 1.0))
    usual_s += (window.warmup or 0.0) + (window.cooldown or 0.0)
    lasts = extent(window, usual_s, rate=rate)
    if window.duration is not None or window.requests is not None:
        return lasts, {}
    why = f"{usual_s:g} s, for the {samples_needed(percentile):,} requests that a p{key(percentile)} needs"
    return lasts, {LENGTH: why if usual_s < MOST_S else f"{why}; more would be better: give --duration"}


def offer(profile: Profile, terms: Terms) -> Offered:
    """The load. Raises InvalidPlan and WorkloadError for what makes no sense."""
    found = _offer(profile, terms)
    described = msgspec.structs.replace(found.described, options=load_options(profile, terms.text))
    return replace(found, described=described, percentile=percentile_of(profile, terms.window))


def _offer(profile: Profile, terms: Terms) -> Offered:
    match profile:
        case Trace():
            return _trace(profile, terms)
        case Ramp():
            return _ramp(profile, terms)
        case Burst():
            return _burst(profile, terms)
        case Rate():
            process = _process(profile)
            return _open(profile, process, *_as_needed(profile, process.peak_rate, terms), terms)
        case Mixed(concurrency=None):
            poisson = arrivals.Poisson(profile.request_rate)
            return _open(profile, poisson, *_as_needed(profile, poisson.rate, terms), terms)
        case _:
            return _closed(profile, extent(terms.window, DURATION_S), terms)


# -- closed loops ------------------------------------------------------------------------------------------------------


def _closed(profile: Any, lasts: Extent, terms: Terms) -> Offered:
    found = _asked(profile, terms)
    think_s = getattr(profile, "think", 0.0)
    made = source_items(found.source, lasts.seed)
    description = f"{profile.concurrency:,} at a time; {found.description}"
    settings = {"think": f"{think_s:g} s"} if think_s else {}
    load = ClosedLoad(made, profile.concurrency, requests=lasts.requests, duration_s=lasts.duration_s, think_s=think_s)
    if terms.window.duration is None and terms.window.requests is None:
        load, settings[LENGTH] = _until_enough(load, percentile_of(profile, terms.window), terms.window)
    return Offered(
        load,
        _described(profile, "closed", description, lasts, settings, concurrency=profile.concurrency),
        made,
        tenants=found.tenants,
    )


def _until_enough(load: ClosedLoad, percentile: float, window: WindowOptions) -> tuple[ClosedLoad, str]:
    """Nobody knows how fast a closed loop will be: it goes on until there are samples enough. And that in words."""
    assert load.duration_s is not None
    at_least = ceil(1.05 * samples_needed(percentile) / COUNTED) + load.concurrency
    edges_s = (window.warmup or 0.0) + (window.cooldown or 0.0)
    load = replace(load, at_least=at_least, most_s=max(MOST_CLOSED_S, load.duration_s) + edges_s)
    why = f"{load.duration_s:g} s, and until {at_least:,} requests were sent, which a p{key(percentile)} needs"
    return load, f"{why}; {load.most_s:g} s at most"


def _asked(profile: Profile, terms: Terms) -> Asked:
    shares = _shares(profile, terms.text, terms.max_model_len)
    return asked(terms.text, terms.measure, shares, terms.window.requests)


def _shares(profile: Profile, text: TextOptions, max_model_len: int | None) -> tuple[Share, ...]:
    match profile:
        case Mixed():
            if text.input_len or text.output_len:
                raise InvalidPlan("The lengths of a mix are in its shares: use --share NAME=WEIGHT/INPUT/OUTPUT.")
            if kind_of(text.prompts) == "given" and profile.share:
                raise InvalidPlan("Given prompts have their own lengths: --share means nothing for them.")
            return parse_shares(profile.share) if profile.share else short_and_long()
        case LongContext():
            return shares_of(text, text.input_len or _long_input(text, max_model_len), LONG_CONTEXT_OUTPUT_LEN)
        case LongOutput():
            longest = (max_model_len or LONG_TOKENS) // 4
            return shares_of(text, LONG_OUTPUT_INPUT_LEN, str(min(1024, max(1, longest))))
        case _:
            return shares_of(text, INPUT_LEN, OUTPUT_LEN)


def _long_input(text: TextOptions, max_model_len: int | None) -> str:
    """As long as fits beside the longest answer, with a tenth to spare. Raises InvalidPlan where nothing does."""
    output = text.output_len or LONG_CONTEXT_OUTPUT_LEN
    most = parse_lengths(output, "--output-len").most
    room = (max_model_len or LONG_TOKENS) - most
    if room < 1 and kind_of(text.prompts) != "given":
        whose = "the server takes" if max_model_len else "are assumed where a server does not tell"
        raise InvalidPlan(
            f"--output-len {output} may be {most:,} tokens, which leaves a prompt nothing of the "
            f"{max_model_len or LONG_TOKENS:,} that {whose}. Ask for shorter answers, or give --input-len."
        )
    return str(max(1, room * 9 // 10))


# -- open loops --------------------------------------------------------------------------------------------------------


def _process(profile: Rate) -> Arrivals:
    if profile.constant:
        if profile.burstiness != 1:
            raise InvalidPlan("--constant means equal gaps: they have no --burstiness.")
        return arrivals.Constant(profile.request_rate)
    if profile.burstiness == 1:
        return arrivals.Poisson(profile.request_rate)
    return arrivals.Gamma(profile.request_rate, profile.burstiness)


def _open(profile: Profile, process: Arrivals, lasts: Extent, settings: dict[str, str], terms: Terms) -> Offered:
    found = _asked(profile, terms)
    description = f"{process.description}; {found.description}"
    return Offered(
        OpenLoad(partial(schedule, process, found.source, lasts.stop, lasts.seed)),
        _described(profile, "open", description, lasts, settings, rate=process.peak_rate),
        source_items(found.source, lasts.seed),
        tenants=found.tenants,
    )


def _ramp(profile: Ramp, terms: Terms) -> Offered:
    if profile.end_rate is None:
        raise InvalidPlan("A ramp must end somewhere: give --end-rate.")
    if profile.end_rate <= profile.start_rate:
        raise InvalidPlan(
            f"A ramp rises: --end-rate must be above --start-rate, and {profile.end_rate:g} is not above "
            f"{profile.start_rate:g}."
        )
    if profile.steps == 1:
        raise InvalidPlan("--steps must be 0 (a straight line) or 2 and more.")
    lasts = replace(
        extent(terms.window, 2 * DURATION_S, whole=True), duration_s=terms.window.duration or 2 * DURATION_S
    )
    assert lasts.duration_s is not None
    process = arrivals.RisingRate(profile.start_rate, profile.end_rate, lasts.duration_s, profile.steps)
    return replace(_open(profile, process, lasts, {}, terms), until_degraded=profile.until_degraded)


def _burst(profile: Burst, terms: Terms) -> Offered:
    process = arrivals.Bursts(profile.base_rate, profile.burst_rate, profile.period, profile.burst_share)
    calm_s = profile.period * (1 - profile.burst_share)
    if 0 < profile.base_rate * calm_s < FEWEST_CALM:
        raise InvalidPlan(
            f"Between two bursts there would be about {profile.base_rate * calm_s:.2g} requests: too few to tell "
            f"whether latency is back to what it was, which takes {FEWEST_CALM}. Use --period "
            f"{ceil(FEWEST_CALM / profile.base_rate / (1 - profile.burst_share))}, or a higher --base-rate."
        )
    # The calm after the last burst is as long as after the others.
    lasts = extent(terms.window, 3 * profile.period + calm_s / 2, whole=True)
    ends_s = lasts.duration_s
    if ends_s is None:
        assert lasts.requests is not None
        ends_s = lasts.requests / (process.expected(profile.period) / profile.period)
    offered = _open(profile, process, lasts, {}, terms)
    bursts_s = tuple((one.start_ns / NS_PER_S, one.end_ns / NS_PER_S) for one in process.windows(ends_s))
    if not bursts_s:
        first_s = process.windows(profile.period)[0].start_ns / NS_PER_S
        raise InvalidPlan(
            f"No burst falls into {ends_s:.3g} s: the first begins after {first_s:.3g} s. Use a longer --duration "
            f"(three bursts and their calm take {3 * profile.period + calm_s / 2:.3g} s), or a shorter --period."
        )
    return replace(offered, bursts_s=bursts_s)


# -- traces ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """The arrivals of a trace, read again in every process."""

    path: str
    cut: Cut
    sort: bool
    tenants: str | None
    seed: int

    def __call__(self) -> Iterator[Arrival]:
        """Tenants are given to those requests that have none."""
        read = read_trace(self.path, self.cut, sort=self.sort).arrivals
        if self.tenants is None:
            return iter(read)
        names = parse_tenants(self.tenants).names(fork(stream(self.seed, "tenants")))
        return (
            arrival if arrival.item.tenant else replace(arrival, item=replace(arrival.item, tenant=name))
            for arrival, name in zip(read, names, strict=False)
        )

    def items(self) -> Iterator[Item]:
        return (arrival.item for arrival in self())


def _trace(profile: Trace, terms: Terms) -> Offered:
    window, text = terms.window, terms.text
    if text.input_len or text.output_len or text.shared_prefix_tokens or kind_of(text.prompts) == "given":
        raise InvalidPlan(
            "A trace has its own lengths, prefixes and perhaps prompts: no --input-len, --output-len, "
            "--shared-prefix-tokens and no --prompts of a file."
        )
    cut = Cut(
        time_scale=profile.time_scale,
        start_s=profile.start,
        duration_s=None if window.duration is None else window.duration / profile.time_scale,
        limit=window.requests,
        max_input_tokens=profile.max_input_len,
        max_output_tokens=profile.max_output_len,
        over=profile.over,
    )
    trace = read_trace(profile.file, cut, sort=profile.sort)
    rate = len(trace.arrivals) / trace.duration_s if trace.duration_s else None
    # It lasts as long as its requests do, not as long as there was room for.
    known = replace(window, duration=None, requests=len(trace.arrivals))
    lasts = extent(known, None, rate=rate, whole=True)
    made = TraceArrivals(profile.file, cut, profile.sort, text.tenants, lasts.seed)
    settings = {
        "trace": trace.description,
        "time scale": f"{profile.time_scale:g}",
        "slice": f"from {profile.start:g} s" + (f" for {cut.duration_s:g} s" if cut.duration_s is not None else ""),
    }
    described = _described(profile, "open", trace.description, lasts, settings, rate=rate)
    return Offered(OpenLoad(made), described, made.items, tenants=tenants_of(made.items(), text))


# -- in words ----------------------------------------------------------------------------------------------------------


def _described(
    profile: Profile,
    loop: str,
    description: str,
    lasts: Extent,
    settings: dict[str, str],
    *,
    rate: float | None = None,
    concurrency: int | None = None,
) -> Load:
    return Load(
        profile=name_of(profile),
        loop=loop,
        description=description,
        rate=rate,
        concurrency=concurrency,
        duration_s=lasts.duration_s,
        requests=lasts.requests,
        warmup_s=lasts.warmup_s,
        cooldown_s=lasts.cooldown_s,
        warmup_requests=lasts.warmup_requests if loop == "closed" else 0,
        stationary=not isinstance(profile, Burst | Ramp | Trace),
        seed=lasts.seed,
        settings=settings,
    )
