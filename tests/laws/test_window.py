"""Windows follow the queue inside a worker: it is kept busy, little waits in it, and a new one is soon known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.fleet.window import GROW_EVERY_NS, Window
from headway.core.fleet.worker import WorkerLoad, WorkerSpec, WorkerState
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.request import Request, State, Usage

MS = 1_000_000
S = 1_000 * MS
LIMITS = AdmissionLimits(1 << 20, 1 << 50, max_waiting=1 << 40, max_waiting_tokens=1 << 50)


def served(
    slots: int,
    seconds: int,
    *,
    signals: bool,
    first: int = 8,
    told_late_ns: int = 0,
    gauges_late_ns: int = 0,
    stay_ns: int = 200 * MS,
) -> tuple[list[float], list[int], int]:
    """One worker that runs `slots` at a time for `stay_ns` each, in order, and as much waiting as it takes.

    Its signals are told late, and say so; or its gauges are of some time ago, and it takes them to be of now.
    Returns, every 100 ms, the window and how many queued inside the worker; and how many it served.
    """
    front = Front(LIMITS, FrontLimits(), remote=True)
    front.add_worker(WorkerSpec("w", first_sequences=first), 0)
    inside: list[list[object]] = []  # name, when it ends (0: queued)
    windows, queued, done, count, now = [], [], 0, 0, 0
    gauges: list[tuple[int, int]] = []  # running and waiting, every 100 ms
    told, late = told_late_ns // (100 * MS), gauges_late_ns // (100 * MS)
    while now < seconds * S:
        while front.admission.waiting < 50:
            front.submit(Request(f"r{count}", range(100), 20), now)
            count += 1
        inside += [[dispatch.request.id, 0] for dispatch in front.plan(now)]
        for one in inside[:slots]:
            if not one[1]:
                one[1] = now + stay_ns
        now += 10 * MS
        for one in inside:
            if one[1] and one[1] - now <= stay_ns - 50 * MS:  # type: ignore[operator]
                front.began(str(one[0]), now)
        for one in [one for one in inside if one[1] and one[1] <= now]:  # type: ignore[operator]
            inside.remove(one)
            front.settle(str(one[0]), Usage(100, 20), now, end=State.FINISHED)
            done += 1
        if now % (100 * MS) == 0:
            waiting = max(0, len(inside) - slots)
            gauges.append((min(slots, len(inside)), waiting))
            if signals and len(gauges) > told + late:
                running, waits = gauges[-1 - told - late]
                front.observe("w", WorkerLoad.at(now - told_late_ns, running=running, waiting=waits), now)
            windows.append(front.fleet.workers["w"].window.sequences)
            queued.append(waiting)
    return windows, queued, done


@pytest.mark.parametrize("slots", [2, 16, 48])
def test_a_window_keeps_a_worker_busy_and_its_queue_near_empty(slots):
    windows, queued, done = served(slots, 40, signals=True)
    later = queued[150:]
    assert sum(later) / len(later) <= 1 + slots / 8
    assert done >= 0.85 * 40 * slots * 5
    assert sum(windows[150:]) / len(windows[150:]) <= 1.4 * slots + 2


@pytest.mark.parametrize("late", ["told_late_ns", "gauges_late_ns"])
@pytest.mark.parametrize("slots", [8, 48])
def test_a_window_does_not_outgrow_a_worker_whose_signals_are_a_second_old(slots, late):
    windows, queued, done = served(slots, 60, signals=True, stay_ns=2 * S, first=4, **{late: S})
    assert max(windows) <= 1.6 * slots + 2
    assert sum(queued[150:]) / len(queued[150:]) <= 2 + slots / 4
    assert done >= 0.87 * 60 * slots / 2, "it is kept waiting"


@pytest.mark.parametrize(("slots", "stay_ns"), [(16, 2 * S), (64, 200 * MS), (64, 2 * S), (256, 2 * S)])
def test_a_new_window_is_soon_as_large_as_its_worker(slots, stay_ns):
    """Of what it could do in its first five seconds a worker does most, and it is not flooded."""
    windows, queued, done = served(slots, 5, signals=True, stay_ns=stay_ns)
    assert done >= 0.7 * slots * (5 * S - stay_ns) / stay_ns
    assert max(windows) <= 1.8 * slots + 2
    assert max(queued) <= slots / 2 + 2


def test_first_bytes_let_a_young_window_grow_so_far_and_then_its_worker_is_asked():
    """There are servers that send a first byte to whoever comes."""
    window = Window(8)
    for _ in range(100):
        window.begun(MS, int(window.sequences))
    assert 12 <= window.sequences <= 32, "untold, at most to four times"
    told = int(window.sequences)
    window.filled()
    window.adjust(S, queued=0, sequences=told, tokens=100 * told, true_ns=S)
    for _ in range(100):
        window.begun(S, int(window.sequences))
    assert 1.5 * told <= window.sequences <= 4 * told


def together(
    speed: Callable[[int], float], seconds: int, *, signals: bool, stay_ns: int, lengths: random.Random | None = None
) -> tuple[list[float], float]:
    """One worker that begins whatever comes: each of n requests has `speed(n)` of what one alone would have.

    Alone one of 50 tokens takes `stay_ns`, a quarter of it until its first. Returns the window, every 100 ms, and how
    many tokens a second of the second half.
    """
    front = Front(LIMITS, FrontLimits(), remote=True)
    front.add_worker(WorkerSpec("w"), 0)
    inside: dict[str, tuple[int, float]] = {}  # how many tokens, and what is done, in ns of one alone
    windows, tokens, count, now = [], 0, 0, 0
    while now < seconds * S:
        while front.admission.waiting < 50:
            front.submit(Request(f"r{count}", range(100), 1_000), now)
            count += 1
        for dispatch in front.plan(now):
            inside[dispatch.request.id] = (max(2, int(lengths.expovariate(1 / 50))) if lengths else 50, 0.0)
        now += 20 * MS
        step_ns = 20 * MS * speed(len(inside))
        for name, (length, done_ns) in list(inside.items()):
            inside[name] = (length, done_ns + step_ns)
            if done_ns < stay_ns / 4 <= done_ns + step_ns:
                front.began(name, now)
            if done_ns + step_ns >= stay_ns / 4 + stay_ns * 3 / 4 * (length - 1) / 49:
                del inside[name]
                front.settle(name, Usage(100, length), now, end=State.FINISHED)
                tokens += length if now > seconds * S / 2 else 0
        if now % (100 * MS) == 0:
            if signals:
                front.observe("w", WorkerLoad.at(now, running=len(inside), waiting=0), now)
            windows.append(front.fleet.workers["w"].window.sequences)
    return windows, tokens * 2 / seconds


@pytest.mark.parametrize("lengths", [None, 1], ids=["alike", "mixed"])
@pytest.mark.parametrize("signals", [True, False], ids=["signals", "none"])
def test_a_window_ends_where_more_in_flight_only_takes_longer(signals, lengths):
    """Eight at a time is what the worker can do. It never queues; and has no signal, or none that would tell."""
    draws = random.Random(lengths) if lengths else None
    windows, rate = together(lambda n: min(1.0, 8 / n), 20, signals=signals, stay_ns=400 * MS, lengths=draws)
    assert max(windows) <= 8 * 6
    assert sum(windows[100:]) / len(windows[100:]) <= 8 * 3
    assert rate >= 0.8 * 8 * 50 / 0.4


@pytest.mark.parametrize("signals", [True, False], ids=["signals", "none"])
def test_a_window_grows_as_long_as_that_gains_throughput(signals):
    """What a step takes grows with the batch, by less than the batch does: 32 at a time do 3.2 times what 8 do."""
    windows, rate = together(lambda n: 101 / (100 + n), 15, signals=signals, stay_ns=400 * MS)
    assert max(windows[100:]) > 64
    assert rate >= 0.9 * 50 / 0.4 * 64 * 101 / 164


def test_of_a_worker_that_gains_little_by_more_a_window_shrinks_to_what_is_useful():
    """Each beside another costs as much as it is: one alone does all that can be done."""
    window = Window(32)
    assert window.useful == math.inf
    for number in range(1, 40):
        window.ended(number, 20, 20 * number * MS)
    window.filled()
    window.adjust(S, queued=0, sequences=32, tokens=3_200, true_ns=S)
    assert window.sequences == pytest.approx(16, rel=0.01), "by no more than a half, since what is known is older"
    assert window.slow_start is None
    assert window.useful == 1.0
    for now, in_flight, size in ((3 * S, 32, 16), (4 * S, 16, 8), (6 * S, 8, 8)):
        for _ in range(8):
            window.ended(16, 20, 320 * MS)
        window.filled()
        window.adjust(now, queued=0, sequences=in_flight, tokens=3_200, true_ns=now)
        assert window.sequences == pytest.approx(size, rel=0.2), (
            "not before those that were too many are gone, and no further than half of what was seen"
        )


def test_a_window_with_too_many_in_flight_shrinks_though_its_last_places_stay_empty():
    """Prompts that are to be read, or tokens, keep it from ever being full."""
    window = Window(8)
    window.sequences = 32.0
    for number in range(1, 40):
        window.ended(number, 20, 20 * number * MS)
    window.adjust(S, queued=0, sequences=20, tokens=2_000, true_ns=S)
    assert window.sequences == pytest.approx(16, rel=0.1)


def test_a_window_that_is_not_full_shrinks_no_further_than_to_what_it_began_with():
    """Few beside each other, whose tokens come later while others' prompts are read: that tells nothing of many."""
    window = Window(8)
    for number in range(1, 40):
        window.ended(1 + number % 5, 20, 20 * (1 + number % 5) * MS)
    assert window.useful == 1.0
    window.adjust(S, queued=0, sequences=5, tokens=2_000, true_ns=S)
    assert window.sequences == 8


@pytest.mark.parametrize("knee", [4, 8])
def test_of_slow_requests_too_a_window_soon_ends_where_more_only_takes_longer(knee):
    """Of 2 s and more each, so nobody has ended when it has grown; and prompts that are to be read hold it below full.

    Nor does it fall to next to nothing on the way back: of few in flight it has seen nothing yet.
    """
    windows, _ = together(lambda n: min(1.0, knee / n), 40, signals=True, stay_ns=2 * S, lengths=random.Random(1))
    assert max(windows) <= 8 * 6
    assert sum(windows[200:]) / len(windows[200:]) <= 3 * knee
    assert min(windows) >= knee / 2


def test_a_window_never_grows_beyond_the_tokens_its_worker_can_hold():
    window = Window(8)
    window.bound_tokens(1_000)
    window.ended(8, 20, MS)
    for step in range(1, 20):
        window.filled()
        window.adjust(step * S, queued=0, sequences=8, tokens=100, true_ns=step * S)
    assert window.sequences > 8
    assert window.tokens == 1_000


def test_what_a_worker_does_not_account_for_may_queue_in_it_so_its_window_does_not_grow():
    """Sent and not ended, and neither running nor waiting as it says: its gauges are old, or it queues elsewhere."""

    def grown(unaccounted: int) -> bool:
        state = WorkerState(WorkerSpec("w", first_sequences=16))
        for number in range(16):
            state.send(Request(f"r{number}", range(100), 10), 10, 0)
        state.window.ended(16, 20, MS)
        state.observe(WorkerLoad.at(S, running=16 - unaccounted, waiting=0), S)
        return state.window.sequences > 16

    assert [grown(count) for count in range(6)] == [True] * 4 + [False] * 2  # 1 + 16 / 8


@pytest.mark.parametrize("slots", [4, 16])
def test_a_worker_that_tells_nothing_is_known_by_its_first_tokens(slots):
    windows, queued, done = served(slots, 40, signals=False)
    assert max(queued[150:]) <= 6 * slots  # what waits in it stays bounded, though nobody says how much
    assert done >= 0.85 * 40 * slots * 5
    assert max(windows) < 1_000


def test_a_window_shrinks_to_what_runs():
    window = Window(32)
    window.adjust(0, queued=20, sequences=32, tokens=3_200, true_ns=0)
    assert window.sequences == 13
    assert window.tokens < 3_200


def test_a_window_that_is_not_full_does_not_grow():
    window = Window(8)
    window.ended(8, 20, MS)
    for step in range(50):
        window.adjust(step * GROW_EVERY_NS, queued=0, sequences=2, tokens=100, true_ns=step * GROW_EVERY_NS)
    assert window.sequences == 8


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2 * S), st.integers(0, 60), st.integers(0, 90), st.integers(0, 9_000)), max_size=80
    ),
    st.integers(1, 10),
    st.integers(0, 40),
)
def test_a_window_stays_between_one_and_its_bound(moves, first, most):
    window = Window(first, most)
    now = 0
    for wait, sequences, queued, tokens in moves:
        now += wait
        if not window.open(sequences):
            window.filled()
        window.ended(sequences + 1, tokens, wait)
        window.adjust(now, queued=queued, sequences=sequences, tokens=tokens, true_ns=now)
        assert window.sequences >= 1
        assert not most or window.sequences <= max(most, 1)
        assert window.tokens >= 1
        assert window.holds(0, 10**9), "alone, anything must go"
