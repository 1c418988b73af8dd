"""From records to figures: `summarise` makes a `Summary`, `client_figures` says how well the load was made.

What belongs to the window:

- *Counts, shares and latencies* are of the requests that were due in it, by their scheduled time, whenever they
  ended. What was in flight at its beginning belongs to the warm-up, what is in flight at its end belongs to it, and
  is waited for. Where it was cut instead, shares are of those that were due long enough before (`goodput.judged`).
- *Rates* count what left the server in it: requests that ended in it, tokens that arrived in it, prompts whose first
  token did; whenever they were scheduled. The two differ when there is a backlog: a server that is offered 10
  requests/s and finishes 5 does not become faster by working the rest off after the load has ended. An answer in one
  piece arrives when it ends.

Rates have intervals from how they varied over the window, in bins of equal time. They are made here because gaps are
known here: a saved run has no single gaps any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.loadtest import steady
from headway.loadtest.knee import knee_of
from headway.loadtest.record import Fate, Record
from headway.loadtest.recovery import recoveries
from headway.loadtest.result import ClientFigures, Distribution, Freeze, Group, Interval, Load, Slo, Summary
from headway.loadtest.table import RecordTable, measured_window
from headway.metrics import goodput, latency, rivals
from headway.metrics.blocks import deviations
from headway.metrics.latency import S_PER_NS, Bools, Floats, Ints, Timings, bounds_ns, within
from headway.metrics.percentiles import distribution

Window = tuple[float, float]

# Text counted again gives other numbers where a stop string or a special token was cut off. More is a mistake.
MISMATCH_TOKENS = 2
MISMATCH_RATIO = 0.02
TOP_ERRORS = 10
MIN_BINS = 8  # with something in them
CATCH_UP_NS = 50_000_000  # after a freeze; what had arrived in it is stamped by then, where the kernel did not do it
RATE_BINS = 256  # of the window: how rates vary over it


def summarise(
    table: RecordTable,
    load: Load,
    slo: Slo,
    *,
    elapsed_s: float | None = None,
    rival_tools: Sequence[str] = (),
    bursts_s: Sequence[Window] = (),
) -> Summary:
    """The figures of a run. `elapsed_s`: when it was over. `bursts_s`: when the bursts of a `burst` profile were."""
    window = measured_window(load, table, elapsed_s=elapsed_s)
    due = table.scheduled_within(window)
    about = _About(window, slo, load.seed, late_wait_longer=_late_wait_longer(table, load, window))
    measured = [record for record, here in zip(table.records, due, strict=True) if here]
    recovery = recoveries(table.timings, bursts_s, until_s=window[1]) if bursts_s else None
    return Summary(
        window_s=window,
        overall=_group(table, np.ones(len(table), np.bool_), about),
        by_kind=_groups(table, lambda record: record.kind, about),
        by_tenant=_groups(table, lambda record: record.tenant, about),
        rivals={tool: rivals.by_definition_of(tool, table.timings.due_within(window)) for tool in rival_tools},
        counting=dict(Counter(record.counted.value for record in measured if record.chunks)),
        count_mismatches=sum(map(_mismatch, measured)),
        errors=_errors(measured),
        recovery_s=recovery.worst_s if recovery else None,
        unrecovered_bursts=recovery.unrecovered if recovery else 0,
        knee=knee_of(table.timings, load, window) if load.profile == "ramp" else None,
    )


def client_figures(
    table: RecordTable,
    load: Load,
    window_s: Window,
    *,
    processes: int,
    cpu_ratio: float,
    loop_lags_s: npt.ArrayLike,
    freezes: Sequence[tuple[float, float, int]] = (),
    stolen_ratio: float = 0.0,
) -> ClientFigures:
    """How well the load was made in the window. `cpu_ratio` is of the busiest process, `loop_lags_s` of the latest, in
    equal steps of the window. `freezes`: when which process did not look at all, (from, until) and its number.
    """
    times, seconds = table.timings, window_s[1] - window_s[0]
    due = table.scheduled_within(window_s)
    return ClientFigures(
        processes=processes,
        offered_rate=_per(due.sum(), seconds) if load.loop == "open" else None,
        sent_rate=_per(within(times.sent_ns, window_s).sum(), seconds),
        lag=distribution(latency.lag_s(times)[due], seed=load.seed),
        cpu_ratio=cpu_ratio,
        loop_lag=distribution(np.asarray(loop_lags_s, np.float64), seed=load.seed),
        freezes=_touching(freezes, table, due, processes, load.concurrency or processes),
        stolen_ratio=stolen_ratio,
    )


def _touching(
    freezes: Sequence[tuple[float, float, int]], table: RecordTable, due: Bools, processes: int, slots: int
) -> list[Freeze]:
    """Those in which requests of the window were in flight, of the process that stood still: it has every so many-th
    slot of a closed loop, or every so many-th request (`Prefetch`).
    """
    times = table.timings
    index = np.fromiter((record.index for record in table.records), np.int64, len(table))
    ends_ns = np.where(times.ended_ns < 0, np.iinfo(np.int64).max, times.ended_ns)
    found = []
    for start_s, end_s, process in freezes:
        start_ns, end_ns = bounds_ns((start_s, end_s))
        mine = due & (index % max(slots, 1) % max(processes, 1) == process)
        inside = mine & (times.scheduled_ns < end_ns) & (ends_ns > start_ns)
        late = np.zeros(len(table), np.bool_)
        for at_ns, until_ns in (
            (times.scheduled_ns, end_ns),
            (times.first_ns, end_ns + CATCH_UP_NS),
            (times.ended_ns, end_ns + CATCH_UP_NS),
        ):
            late |= (at_ns >= start_ns) & (at_ns < until_ns)
        if inside.any():
            in_flight, mistimed = int(inside.sum()), int((inside & late).sum())
            found.append(Freeze(start_s=start_s, end_s=end_s, in_flight=in_flight, mistimed=mistimed))
    return found


@dataclass(frozen=True, slots=True)
class _About:
    """What is the same for all groups of a run."""

    window: Window
    slo: Slo
    seed: int
    late_wait_longer: bool  # so that what was cut at the end was not cut by chance


def _late_wait_longer(table: RecordTable, load: Load, window: Window) -> bool:
    """Asked only where something was cut. A load that changes makes it so on purpose."""
    cut = bool(np.any(table.timings.cut))
    return cut and (not load.stationary or steady.rising(table.timings, window))


def _group(table: RecordTable, rows: Bools, about: _About) -> Group:
    """Figures over those of `rows` that the window holds."""
    window, slo, seed = about.window, about.slo, about.seed
    seconds = window[1] - window[0]
    everything = table.timings.select(rows)
    here = within(everything.scheduled_ns, window)
    mine = rows & table.scheduled_within(window)
    due = everything.due_within(window)
    group = Group(
        requests=len(due),
        fates=dict(Counter(table.records[row].fate.value for row in np.flatnonzero(mine).tolist())),
        distributions=_distributions(due, seed, due.given_up & (about.late_wait_longer | np.logical_not(due.cut))),
        request_rate=_per((everything.ok & within(everything.ended_ns, window)).sum(), seconds),
        input_token_rate=_per(everything.input_tokens[within(_answered_ns(everything), window)].sum(), seconds),
        output_token_rate=_per(_tokens_within(everything, window), seconds),
    )
    series = _binned(everything, window)
    limits = {"ttft_s": slo.ttft_s, "itl_s": slo.itl_s, "e2e_s": slo.e2e_s}
    met = goodput.promises_met(everything, **limits)
    if met and len(due):
        good = np.logical_and.reduce(list(met.values()))
        told = here & goodput.judged(table.timings, **limits)[rows]  # by when the whole run was cut
        group.slo_ratios = {name: float(kept[told].mean()) for name, kept in met.items() if told.any()}
        group.good_requests = int(good[told].sum())
        group.undecided_requests = int((here & ~told).sum())
        group.good_ratio = goodput.share(good[told])
        finished = good & everything.ok
        group.goodput = _per((finished & within(everything.ended_ns, window)).sum(), seconds)
        series["goodput"] = _in_bins(everything.ended_ns, finished, window)
    group.rates = {name: _interval(getattr(group, name), each, seed) for name, each in series.items()}
    return group


def _binned(t: Timings, window: Window) -> dict[str, Floats]:
    """What left the server in each bin of the window, per s."""
    chunks = _in_bins(latency.chunk_times_ns(t), t.gap_tokens, window)
    return {
        "request_rate": _in_bins(t.ended_ns, t.ok, window),
        "input_token_rate": _in_bins(_answered_ns(t), t.input_tokens, window),
        "output_token_rate": chunks + _in_bins(_answered_ns(t), _first_tokens(t), window),
    }


def _in_bins(at_ns: Ints, amounts: npt.NDArray[np.generic], window: Window) -> Floats:
    seconds = window[1] - window[0]
    if seconds <= 0:
        return np.zeros(0)
    here, start_ns = within(at_ns, window), bounds_ns(window)[0]
    place = ((at_ns[here] - start_ns) * (RATE_BINS * S_PER_NS / seconds)).astype(np.int64)
    told = np.bincount(np.clip(place, 0, RATE_BINS - 1), weights=amounts[here], minlength=RATE_BINS)
    rates: Floats = told.astype(np.float64) * (RATE_BINS / seconds)
    return rates


def _interval(rate: float, series: Floats, seed: int) -> Interval:
    """Where the window holds too little to see how a rate varies, there is no interval."""
    if np.count_nonzero(series) < MIN_BINS:
        return Interval(value=rate)
    low, high = rate + np.quantile(deviations(series, np.random.default_rng([seed, len(series)])), [0.025, 0.975])
    return Interval(value=rate, low=max(min(float(low), rate), 0.0), high=max(float(high), rate))


def _groups(table: RecordTable, name_of: Callable[[Record], str], about: _About) -> dict[str, Group]:
    """A group for each name there is; none when there is but one, which would repeat the whole."""
    names = [name_of(record) for record in table.records]
    different = sorted(set(names))
    if len(different) < 2:
        return {}
    number = {name: index for index, name in enumerate(different)}
    numbers = np.fromiter((number[name] for name in names), np.int64, len(names))
    return {name: _group(table, numbers == number[name], about) for name in different}


def _distributions(t: Timings, seed: int, doubted: Bools) -> dict[str, Distribution]:
    """One after the other: gaps are by far the most samples, and no two columns of them are needed at a time.

    `doubted`: which were given up for what they may have been. A gap is not long because others waited.
    """
    waited_s, waited_from_send_s = latency.waited_s(t), latency.waited_from_send_s(t)
    distributions = {
        "ttft": distribution(latency.ttft_s(t), None, waited_s, doubted, seed=seed),
        "ttft_from_send": distribution(latency.ttft_from_send_s(t), None, waited_from_send_s, doubted, seed=seed),
        "tpot": distribution(latency.tpot_s(t), seed=seed),
        "e2e": distribution(latency.e2e_s(t), None, waited_s, doubted, seed=seed),
        "e2e_from_send": distribution(latency.e2e_from_send_s(t), None, waited_from_send_s, doubted, seed=seed),
        "lag": distribution(latency.lag_s(t), seed=seed),
        "input_tokens": distribution(_of_the_finished(t, t.input_tokens), seed=seed),
        "output_tokens": distribution(_of_the_finished(t, t.output_tokens), seed=seed),
        "icl": distribution(*latency.chunk_gaps_in_time(t), seed=seed),
    }
    one_each = bool((t.gap_tokens == 1).all())  # then they are the same
    itl = None if one_each else distribution(*latency.token_gaps_in_time(t), seed=seed)
    distributions["itl"] = itl or distributions["icl"]
    return distributions


def _of_the_finished(t: Timings, tokens: npt.NDArray[np.int64]) -> Floats:
    return tokens[t.ok & (tokens >= 0)].astype(np.float64)


def _tokens_within(t: Timings, window: Window) -> int:
    first = _first_tokens(t)[within(_answered_ns(t), window)].sum()
    return int(first + t.gap_tokens[within(latency.chunk_times_ns(t), window)].sum(dtype=np.int64))


def _answered_ns(t: Timings) -> Ints:
    """When the answer began to arrive; in one piece, all of it does so at its end."""
    return np.where((t.first_ns < 0) & t.ok, t.ended_ns, t.first_ns)


def _first_tokens(t: Timings) -> Ints:
    """How many tokens arrived then."""
    return np.where((t.first_ns < 0) & t.ok, np.maximum(t.output_tokens - t.hidden_tokens, 0), t.first_tokens)


def _mismatch(record: Record) -> bool:
    """The server's count and the client's own differ by more than cut-off ends explain."""
    if record.recounted_tokens < 0 or record.output_tokens < 0:
        return False
    shown = record.output_tokens - record.hidden_tokens
    return abs(shown - record.recounted_tokens) > max(MISMATCH_TOKENS, MISMATCH_RATIO * shown)


def _errors(records: Iterable[Record]) -> dict[str, int]:
    said = Counter(
        record.error or f"HTTP {record.status}"
        for record in records
        if not record.ok and (record.error or record.status) and (record.error or record.fate is not Fate.CANCELLED)
    )
    # Equal counts in order of words: merged records must give the same report in whatever order they came.
    return dict(sorted(said.items(), key=lambda item: (-item[1], item[0]))[:TOP_ERRORS])


def _per(amount: float | np.number[npt.NBitBase], seconds: float) -> float:
    return float(amount) / seconds if seconds > 0 else 0.0
