"""The verdict on a run: may its figures be believed? Every reason is one line with its numbers.

Worst first. Each verdict takes away more than those after it:

| verdict | what it takes away | exit code |
|---|---|---|
| CLIENT-LIMITED | the load was not what was asked for: the figures are of this machine, not of the server | 3 |
| SERVER-ERRORS | the figures are of the requests that survived | 4 |
| UNSTEADY | the figures depend on how long the run lasted | 5 |
| TOO-FEW-SAMPLES | the figures may be right, but nobody can tell | 6 |
| VALID | nothing | 0 |

Where most of the load failed at the server, or the server ended it, that comes first: the client's lateness is then of
the few that are left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.loadtest import steady
from headway.loadtest.answers import Answers, answers
from headway.loadtest.record import CLIENT_ERROR, Fate
from headway.loadtest.result import ClientFigures, Distribution, Finding, Group, Load, Summary, Verdict, Word
from headway.loadtest.table import RecordTable
from headway.metrics import latency
from headway.metrics.percentiles import key, samples_needed

# A limit that was kept on purpose (429, 503 with a time) is an answer. What was cancelled had not ended when the run no
# longer waited for it; when a user ended the run, that says nothing about the server.
ERRORS = (*(fate for fate in Fate if fate.failed), Fate.CANCELLED)


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Where a verdict begins. Shares are of the requests that were due in the window."""

    missed_rate: float = 0.01  # of the offered rate
    # The client may be late by this much, or by this share of what its lag adds to where that is more, up to the last:
    # a late send to TTFT, a late loop to the gaps between chunks.
    lag_s: float = 0.002
    loop_lag_s: float = 0.005
    lag_share: float = 0.1
    most_lag_s: float = 0.1
    # The client may stand still while requests are in flight if it puts wrong times on no more of them than this, and
    # if what it adds to as many is a small part of their E2E. It is told in any case.
    frozen: float = 0.01
    frozen_share: float = 0.25
    # A closed loop promises so many at a time. So many of its slots must be taken, unless they stand empty for less
    # than this between two requests.
    slots_taken: float = 0.9
    empty_s: float = 0.02
    cpu_ratio: float = 0.9  # of one core, by the busiest client process
    busy_ratio: float = 0.5  # of one core: from here on it is the client's own work that makes it late
    stolen_ratio: float = 0.02  # of this machine's time: from here on its host's other guests may be what makes it late
    span_s: float = 0.5  # a rate or a share of a core over less than that says nothing about the client
    errors: float = 0.01
    mostly: float = 0.5  # of the requests: where so many failed at the server, that is what is wrong
    # Refusals by a limit: more than this is told with a VALID run, and with more than that the few that were served
    # say little about the load that was offered.
    limited_told: float = 0.01
    limited: float = 0.5
    unseen: float = 0.5  # of the answers: text in none of the fields that are known, and tokens in the usage
    queue_growth: float = 0.02  # over the window, of the requests due in it, when there is no doubt about it
    queue_much_growth: float = 0.05  # the same, when it is merely likely
    queue_ratio: float = 0.2  # and of the requests in flight
    queue_surplus: float = 3.0  # in flight at the end, as a multiple of what Little's law expects
    queue_surplus_requests: float = 10.0  # and by so many at least
    latency_drift: float = 0.2  # over the window, or in one step, of the median or of an upper quantile
    # A smaller change is nobody's: it is as much as the client itself may be late, and no user feels it. A server that
    # answers in 0.5 ms is not unsteady for 0.1 ms.
    drift_s: float = 0.002
    percentile: float = 99.0  # the highest that the run is for


DEFAULT = Tolerances()


def judge(
    table: RecordTable,
    summary: Summary,
    client: ClientFigures,
    load: Load,
    tolerances: Tolerances = DEFAULT,
    *,
    interrupted: bool = False,
    ended_early: str = "",
    client_failed: bool = False,
) -> Verdict:
    """All that is wrong with a run, worst first.

    `interrupted`: by a user. `ended_early`: why, if the load ended before its time by itself; because the client
    failed, or else the server.
    """
    early = [f"the load ended early: {ended_early}"] if ended_early else []
    due = table.scheduled_within(summary.window_s)
    measured = [record for record, here in zip(table.records, due, strict=True) if here]
    came = answers(measured, load)
    own = [record.error for record in measured if record.fate in ERRORS and record.error.startswith(CLIENT_ERROR)]
    unsteady, perhaps = _unsteady(table, summary, client, load, tolerances)
    said = {
        Word.CLIENT_LIMITED: [
            *(early if client_failed else ()),
            *_own_failures(own, summary.overall, tolerances, told=False),
            *_client_limited(table, client, summary, tolerances),
            *_empty_slots(table, summary, load, tolerances),
        ],
        Word.SERVER_ERRORS: [
            *(early if not client_failed else ()),
            *_failures(summary, tolerances, own=len(own), interrupted=interrupted, told=False),
            *_mostly_limited(summary.overall, tolerances),
            *_empty(came, summary.overall, tolerances, told=False),
            *_unseen(came, tolerances, told=False),
        ],
        Word.UNSTEADY: unsteady,
        Word.TOO_FEW_SAMPLES: _too_few(table, summary, load, tolerances, cut_short=interrupted or bool(early)),
    }
    order = list(Word)
    failed = sum(record.fate in ERRORS for record in measured) - len(own)
    if not client_failed and (early or failed > tolerances.mostly * len(measured)):
        order.sort(key=lambda word: word is not Word.SERVER_ERRORS)
    findings = [Finding(verdict=word, evidence=line) for word in order for line in said.get(word, ())]
    name = findings[0].verdict if findings else Word.VALID
    remarks = _failures(summary, tolerances, own=len(own), interrupted=interrupted, told=True)
    remarks += _own_failures(own, summary.overall, tolerances, told=True)
    remarks += _remarks(summary.overall, came, tolerances)
    remarks += _frozen(client, summary.overall, tolerances, told=True)
    remarks += [] if unsteady else perhaps
    return Verdict(name=name, findings=findings, remarks=remarks)


def _client_limited(table: RecordTable, client: ClientFigures, summary: Summary, tolerances: Tolerances) -> list[str]:
    said = []
    ended_s = float(table.timings.ended_ns.max(initial=0)) * latency.S_PER_NS
    offered, sent = client.offered_rate, client.sent_rate
    seconds = summary.window_s[1] - summary.window_s[0]
    if offered and seconds >= tolerances.span_s:
        missed = offered - sent
        # One request may cross the window's end by being a little late; that is no missed rate.
        if missed > tolerances.missed_rate * offered and missed * seconds > 1.5:
            said.append(
                f"{sent:.4g} of {offered:.4g} requests/s were sent: {missed / offered:.1%} missed,"
                f" {tolerances.missed_rate:.0%} allowed"
            )
    by_name = summary.overall.distributions
    first_s = _typical(by_name["ttft_from_send"]) or _typical(by_name["e2e_from_send"]) or 0.0
    for what, lag, floor_s, typical_s in (
        ("requests were sent", client.lag, tolerances.lag_s, first_s),
        ("the client's event loop was", client.loop_lag, tolerances.loop_lag_s, _typical(by_name["icl"]) or first_s),
    ):
        late = _highest(lag, 99)
        allowed_s = min(max(floor_s, tolerances.lag_share * typical_s), tolerances.most_lag_s)
        if late and late[1] > allowed_s:
            said.append(f"{what} {_span(late[1])} late at p{key(late[0])}, {_span(allowed_s)} allowed")
    said += _frozen(client, summary.overall, tolerances, told=False)
    if client.cpu_ratio > tolerances.cpu_ratio and ended_s >= tolerances.span_s:
        said.append(f"the client used {client.cpu_ratio:.0%} of a core, {tolerances.cpu_ratio:.0%} allowed")
    return [*said, _what_to_do(client, tolerances)] if said else []


def _empty_slots(table: RecordTable, summary: Summary, load: Load, tolerances: Tolerances) -> list[str]:
    """Of a closed loop: a slot is not free before its answer is over, which the server may tell long after its end."""
    group, (start_s, end_s) = summary.overall, summary.window_s
    slots, seconds = load.concurrency or 0, end_s - start_s
    if load.loop != "closed" or "think" in load.settings or seconds < tolerances.span_s:
        return []
    if group.fates.get(Fate.OK.value, 0) < tolerances.slots_taken * group.requests:
        return []  # what failed is waited for, and told
    times, (start_ns, end_ns) = table.timings, latency.bounds_ns((start_s, end_s))
    sent = times.sent_ns >= 0
    ended_ns = np.where(times.ended_ns < 0, end_ns, times.ended_ns)
    taken_ns = np.minimum(ended_ns, end_ns) - np.maximum(times.sent_ns, start_ns)
    taken = float(np.clip(taken_ns, 0, None)[sent].sum()) * latency.S_PER_NS / seconds
    empty_s = (slots - taken) * seconds / max(group.requests, 1)
    if taken >= tolerances.slots_taken * slots or empty_s < tolerances.empty_s:
        return []
    said = f"{taken:.3g} requests were in flight on average, and {slots} were asked for: a slot stood empty for "
    return [f"{said}{_span(empty_s)} between two, as an answer's last word was not seen to be its last"]


def _frozen(client: ClientFigures, group: Group, tolerances: Tolerances, *, told: bool) -> list[str]:
    """A finding where it could be seen in a p99, or else one that is `told` with the figures."""
    if not client.freezes:
        return []
    allowed = tolerances.frozen * group.requests
    longest = max(client.freezes, key=lambda freeze: freeze.seconds)
    typical_s = _typical(group.distributions["e2e_from_send"]) or 0.0
    much = [freeze for freeze in client.freezes if freeze.seconds > tolerances.frozen_share * typical_s]
    bad = sum(freeze.mistimed for freeze in client.freezes) > allowed or sum(one.in_flight for one in much) > allowed
    if bad is told:
        return []
    number = len(client.freezes)
    often = "" if number == 1 else f" {number} times, the longest"
    hit = f"{longest.in_flight} of {group.requests} measured requests were in flight"
    when = f"{longest.seconds:.3g} s ({longest.start_s:.2f}–{longest.end_s:.2f} s)"
    little = ": too short, or too few, to matter here" if told else ""
    return [f"the client itself stood still or fell behind{often} for {when} while {hit}{little}"]


def _what_to_do(client: ClientFigures, tolerances: Tolerances) -> str:
    """By what kept the client: its host, its own work, or somebody else's."""
    used = f"the busiest client process used {client.cpu_ratio:.0%} of a core"
    if client.stolen_ratio > tolerances.stolen_ratio:
        return f"to do: run it again, or elsewhere: the host of this machine kept {client.stolen_ratio:.0%} of its time"
    if client.cpu_ratio > tolerances.busy_ratio:
        return f"to do: --processes {max(client.processes, 1) * 2}, for {used}"
    return f"to do: look for other work on this machine (the server itself?), for {used}; more --processes do not help"


def _own_failures(errors: list[str], group: Group, tolerances: Tolerances, *, told: bool) -> list[str]:
    """Requests that this machine could not even send: no file, port or memory was left for a connection."""
    if not errors or told is (len(errors) > tolerances.errors * group.requests):
        return []
    share = _share(len(errors), group) + ("" if told else f", {tolerances.errors:.0%} allowed")
    return [f"{len(errors)} of {group.requests} requests failed here, not at the server ({share}): {errors[0]}"]


def _failures(summary: Summary, tolerances: Tolerances, *, own: int, interrupted: bool, told: bool) -> list[str]:
    """A finding where there are more than may be, or else one that is `told` with the figures."""
    group = summary.overall
    counted = [fate for fate in ERRORS if not (interrupted and fate is Fate.CANCELLED)]
    failed = {fate.value: group.fates[fate.value] for fate in counted if group.fates.get(fate.value)}
    if own:  # of these nothing reached the server
        failed[Fate.CONNECTION.value] = failed.get(Fate.CONNECTION.value, 0) - own
        failed = {fate: number for fate, number in failed.items() if number > 0}
    count = sum(failed.values())
    if not count or told is (count > tolerances.errors * group.requests):
        return []
    parts = ", ".join(f"{number} {_IN_WORDS.get(fate, fate)}" for fate, number in failed.items())
    often = f"; most often: {next(iter(summary.errors))}" if summary.errors else ""
    share = _share(count, group) + ("" if told else f", {tolerances.errors:.0%} allowed")
    return [f"{count} of {group.requests} requests failed ({share}): {parts}{often}"]


def _share(count: int, group: Group) -> str:
    """A few of many are not none."""
    return f"{count / group.requests:.1%}" if count * 1000 >= group.requests else f"{100 * count / group.requests:.1g}%"


def _mostly_limited(group: Group, tolerances: Tolerances) -> list[str]:
    limited = group.fates.get(Fate.LIMITED.value, 0)
    if limited <= tolerances.limited * group.requests:
        return []
    return [f"{_limited(limited, group)}, {tolerances.limited:.0%} allowed: what was served says little of it"]


_IN_WORDS = {Fate.CANCELLED.value: "not ended when the run stopped waiting for them"}


def _empty(came: Answers, group: Group, tolerances: Tolerances, *, told: bool) -> list[str]:
    """A finding where there are more than errors may be, or else one that is `told` with the figures."""
    count = came.empty
    if not count or told is (count > tolerances.errors * group.requests):
        return []
    share = f"{count / len(came.records):.1%}" + ("" if told else f", {tolerances.errors:.0%} allowed")
    return [f"{count} of {len(came.records)} answers were empty ({share}): no token came"]


def _unseen(came: Answers, tolerances: Tolerances, *, told: bool) -> list[str]:
    """As `_empty`, but a finding only where there are so many that TTFT and ITL are of the exceptions."""
    count = came.unseen
    if not count or told is (count > tolerances.unseen * len(came.records)):
        return []
    share = f"{count / len(came.records):.1%}" + ("" if told else f", {tolerances.unseen:.0%} allowed")
    counted = "though the server's usage counts tokens: they have no TTFT and no ITL"
    return [f"{count} of {len(came.records)} answers showed no text ({share}), {counted}"]


def _remarks(group: Group, came: Answers, tolerances: Tolerances) -> list[str]:
    said = [*_empty(came, group, tolerances, told=True), *_unseen(came, tolerances, told=True)]
    said += [*came.contradictions(), *came.at_once(), *came.hidden()]
    limited = group.fates.get(Fate.LIMITED.value, 0)
    if tolerances.limited_told * group.requests < limited <= tolerances.limited * group.requests:
        said.insert(0, f"{_limited(limited, group)}: the latencies are of those that were served")
    return said


def _limited(limited: int, group: Group) -> str:
    return f"{limited} of {group.requests} requests were turned away by a limit ({limited / group.requests:.1%})"


def _unsteady(
    table: RecordTable, summary: Summary, client: ClientFigures, load: Load, tolerances: Tolerances
) -> tuple[list[str], list[str]]:
    """What is certain, and what may be.

    A load that is not the same all along is meant to change queues and latencies: of it is only asked whether, at
    the end, far more requests are in flight than the highest rate explains, and whether bursts were recovered from. A
    ramp, whose knee is looked for, goes beyond what a server can do on purpose.
    """
    if summary.knee is not None:
        return [], []
    times, window_s = table.timings, summary.window_s
    said = _silent(steady.silence(times, window_s, concurrency=load.concurrency, open_loop=load.loop == "open"))
    queue = steady.queue(times, window_s, stationary=load.stationary) if load.loop == "open" else None
    if queue:
        said += _queue_grew(queue, tolerances) if load.stationary else _queue_left(queue, tolerances)
    if not load.stationary:
        left = summary.unrecovered_bursts
        bursts = "1 burst was" if left == 1 else f"{left} bursts were"
        return said + [f"{bursts} not recovered from before the next, or the end"] * (left > 0), []
    perhaps: list[str] = []
    late = [late[1] for late in (_highest(client.lag, 99), _highest(client.loop_lag, 99)) if late]
    least_s = max(tolerances.drift_s, *late, 0.0)  # what the client was late by is not the server's
    for name, seconds in (("E2E", latency.e2e_s(times)), ("TTFT", latency.ttft_s(times))):
        drifts = [steady.drift(times, seconds, window_s, quantile) for quantile in QUANTILES]
        lines = [line for drift in drifts if drift and (line := _drifted(name, drift, tolerances, least_s))]
        said += lines[:1]
        perhaps += _perhaps_stepped(name, drifts[0], tolerances)
    return said, perhaps


QUANTILES = (0.5, 0.9, 0.95, 0.99)  # that must not drift
PERHAPS = 0.01  # less certain than a finding must be, and told as that


def _drifted(name: str, drift: steady.Drift, tolerances: Tolerances, least_s: float) -> str:
    """Empty where it did not, or by so little that it does not matter."""
    trend, shift = drift.trend, drift.shift
    what, level = (
        (name, "median") if drift.quantile == 0.5 else (f"{name} at p{drift.quantile * 100:g}", "median block")
    )

    def matters(change: float, relative: float) -> bool:
        return abs(relative) > tolerances.latency_drift and abs(change) > least_s

    if trend.real() and matters(trend.change, trend.relative):
        return (
            f"{what} drifted by {trend.change:+.3g} s over the window ({trend.relative:+.0%} of its {level}"
            f" {trend.level:.3g} s, p = {trend.p_value:.1g})"
        )
    if drift.steps() and matters(shift.change, shift.relative):
        return (
            f"{what} stepped from {shift.before:.3g} s to {shift.after:.3g} s at {drift.shift_at_s:.3g} s"
            f" ({shift.relative:+.0%}, p = {shift.p_value:.1g})"
        )
    return ""


def _perhaps_stepped(name: str, median: steady.Drift | None, tolerances: Tolerances) -> list[str]:
    """A change that is large and not quite certain: a run of a few hundred requests cannot tell more."""
    if median is None:
        return []
    shift = median.shift
    large = abs(shift.relative) > 2 * tolerances.latency_drift and abs(shift.change) > tolerances.drift_s
    if not large or shift.p_value >= PERHAPS:
        return []
    stepped = f"from {shift.before:.3g} s to {shift.after:.3g} s at {median.shift_at_s:.3g} s (p = {shift.p_value:.1g})"
    return [f"{name} may have stepped {stepped}: a longer run would tell"]


def _silent(silence: steady.Silence | None) -> list[str]:
    if silence is None:
        return []
    requests = "request was" if silence.in_flight == 1 else "requests were"
    never = f", of which {silence.never_ended} never ended" if silence.never_ended else ""
    seconds, when = silence.end_s - silence.start_s, f"{silence.start_s:.2f}–{silence.end_s:.2f} s"
    return [f"no token for {seconds:.3g} s ({when}) while {silence.in_flight} {requests} in flight{never}"]


def _queue_grew(queue: steady.Queue, tolerances: Tolerances) -> list[str]:
    trend, least = queue.trend, tolerances.queue_growth * queue.arrivals
    much = trend.change > tolerances.queue_much_growth * queue.arrivals
    if trend.real(steady.LIKELY if much else steady.CERTAIN) and trend.change > max(
        least, tolerances.queue_ratio * trend.level
    ):
        share = f"{trend.change / queue.arrivals:.1%} of those due, p = {trend.p_value:.1g}"
        return [f"the queue grew by {trend.change:.3g} requests over the window ({share}): the server does not keep up"]
    return _queue_left(queue, tolerances)


def _queue_left(queue: steady.Queue, tolerances: Tolerances) -> list[str]:
    surplus = queue.at_end - queue.expected
    many = surplus > max(tolerances.queue_growth * queue.arrivals, tolerances.queue_surplus_requests)
    if many and queue.at_end > tolerances.queue_surplus * queue.expected:
        return [f"{queue.at_end:.3g} requests were in flight at the end, Little's law expects {queue.expected:.3g}"]
    return []


def _too_few(table: RecordTable, summary: Summary, load: Load, tolerances: Tolerances, *, cut_short: bool) -> list[str]:
    start_s, end_s = summary.window_s
    if end_s <= start_s and cut_short:
        sent = f"{len(table)} request was" if len(table) == 1 else f"{len(table) or 'no'} requests were"
        return [f"the run ended before anything was measured: {sent} sent"]
    if end_s <= start_s:
        times = table.timings
        lasted_s = float(max(times.ended_ns.max(initial=0), times.scheduled_ns.max(initial=0))) * latency.S_PER_NS
        edges = f"a warm-up of {load.warmup_s:g} s and a cool-down of {load.cooldown_s:g} s"
        return [f"{edges} leave nothing of {lasted_s:.3g} s of load: use shorter ones, or a longer load"]
    needed = samples_needed(tolerances.percentile)
    ttft, e2e = (summary.overall.distributions[name].samples for name in ("ttft", "e2e"))
    name, there = ("a TTFT", ttft) if ttft or not e2e else ("an end", e2e)  # answers in one piece have no TTFT
    if there >= needed:
        return []
    return [f"{there} requests in the window have {name}, p{key(tolerances.percentile)} needs {needed:,}"]


def _span(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _typical(figures: Distribution) -> float | None:
    """Where half of them were not waited for, what is known: how long the median took at least."""
    median = figures.percentiles["50"]
    return median.known or figures.mean


def _highest(figures: Distribution, percentile: float) -> tuple[float, float] | None:
    """The highest percentile up to this one that is told, and its value; the maximum of a few samples."""
    told = [
        (float(name), figure.value)
        for name, figure in figures.percentiles.items()
        if figure.value is not None and float(name) <= percentile
    ]
    if told:
        return max(told)
    return (100.0, figures.max) if figures.max is not None else None
