"""The ladder: up fast, down slowly, no flapping, in the operator's hand; and what each level does at the door."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.decisions import Decision
from headway.core.errors import ContextLengthExceeded, QueueFull, Shed
from headway.core.fleet.fleet import Dispatch
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.ladder import (
    DOWN_AFTER_NS,
    HYSTERESIS,
    MARKS,
    UP_EVERY_NS,
    Ladder,
    Level,
    Mode,
    Pressure,
)
from headway.core.front.overload import PromisesKept
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.front.treatment import Asked, Degradation
from headway.core.request import Request, Slo, State, Usage

MS = 1_000_000
S = 1_000 * MS
TICK = 250 * MS


def climbed(pressure: Pressure, seconds: float, ladder: Ladder | None = None, now: int = 0) -> tuple[Ladder, int]:
    ladder = ladder or Ladder()
    end = now + int(seconds * S)
    while now < end:
        ladder.step(pressure, now)
        now += TICK
    return ladder, now


def test_it_goes_up_at_once_and_level_by_level():
    ladder = Ladder()
    heights = []
    for tick in range(14):
        ladder.step(Pressure(1.0), tick * TICK)
        heights.append(ladder.height)
    assert heights == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6, 6]
    assert 2 * TICK == UP_EVERY_NS


def test_it_comes_down_slowly_and_is_down_ten_seconds_after():
    ladder, now = climbed(Pressure(1.0), 5)
    assert ladder.height == 6
    _, now = climbed(Pressure(0.0), 1.0, ladder, now)
    assert ladder.height == 6
    climbed(Pressure(0.0), 10, ladder, now)
    assert ladder.height == 0


@pytest.mark.parametrize("level", list(Level))
def test_between_the_marks_nothing_changes(level):
    """Hysteresis: a level that was entered stays until the pressure is well below where it was entered."""
    ladder, now = climbed(Pressure(MARKS[level]), 10)
    assert ladder.height == level
    climbed(Pressure(MARKS[level] - HYSTERESIS + 0.01), 60, ladder, now)
    assert ladder.height == level
    climbed(Pressure(MARKS[level] - HYSTERESIS - 0.01), 1.25, ladder, now + 60 * S)
    assert ladder.height == level - 1


def test_calm_is_not_enough_while_more_is_asked_for_than_is_drained():
    ladder, now = climbed(Pressure(1.0), 5)
    _, now = climbed(Pressure(0.0, demand_ratio=1.2), 60, ladder, now)
    assert ladder.height == 6
    climbed(Pressure(0.0, demand_ratio=0.8), 10, ladder, now)
    assert ladder.height == 0


@pytest.mark.parametrize(
    ("pressure", "height"),
    [
        (Pressure(), 0.0),
        (Pressure(0.4), 0.4),
        (Pressure(0.4, kv_used_ratio=0.8), 0.4),  # a full cache is a busy one
        (Pressure(kv_used_ratio=1.0), 1.0),
        (Pressure(slo_met_ratio=1.0), 0.0),
        (Pressure(slo_met_ratio=0.6), 0.8),
        (Pressure(0.1, kv_used_ratio=0.94, slo_met_ratio=0.1), 1.0),
        (Pressure(7.0), 1.0),
    ],
)
def test_pressure_is_the_worst_of_what_is_known(pressure, height):
    assert pressure.height == pytest.approx(height)


pressures = st.builds(
    Pressure,
    st.floats(0, 2),
    st.none() | st.floats(0, 1),
    st.none() | st.floats(0, 1),
    st.none() | st.floats(0, 3),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3 * S), pressures), max_size=80),
    st.dictionaries(st.sampled_from(Level), st.sampled_from(Mode)),
)
def test_one_level_at_a_time_never_faster_than_it_may_and_never_against_the_operator(story, modes):
    ladder, now = Ladder(), 0
    ladder.set_modes(modes)
    before, last_up, last_change = 0, -S, -S
    for wait, pressure in story:
        now += wait
        in_force = {level for level in Level if ladder.active(level)}
        changes = ladder.step(pressure, now)
        assert abs(ladder.height - before) <= 1
        if ladder.height > before:
            assert pressure.height >= MARKS[Level(ladder.height)]
            assert now - last_change >= UP_EVERY_NS
            last_up = last_change = now
        elif ladder.height < before:
            assert now - last_up >= DOWN_AFTER_NS
            last_change = now
        before = ladder.height
        for change in changes:
            assert modes.get(change.level, Mode.AUTO) is Mode.AUTO
            assert (change.level in in_force) is not change.active
            assert ladder.active(change.level) is change.active
        for level, mode in modes.items():
            assert mode is Mode.AUTO or ladder.active(level) is (mode is Mode.ON)


def test_a_level_is_pinned_or_disabled_alone_and_told():
    decisions: list[Decision] = []
    front = Front(AdmissionLimits(100, 1_000), FrontLimits(), listener=decisions.append)
    changes = front.set_levels({Level.DIVERT_BATCH: Mode.ON}, 0)
    assert [(change.level, change.active) for change in changes] == [(Level.DIVERT_BATCH, True)]
    assert not front.ladder.active(Level.CLAMP_OUTPUT)
    assert front.set_levels({Level.DIVERT_BATCH: Mode.ON}, 1) == []
    assert len(front.set_levels({Level.DIVERT_BATCH: Mode.AUTO, Level.CLAMP_OUTPUT: Mode.OFF}, 2)) == 1
    for tick in range(8):
        front.adapt(tick * TICK, slo_met_ratio=0.0)
    assert [level for level in Level if front.ladder.active(level)] == [2, 3, 4]
    assert [one.why for one in decisions] == [
        *("divert_batch: on", "divert_batch: off", "demote_long: on", "shed_low_priority: on", "drop_optional: on")
    ]


@settings(max_examples=40, deadline=None)
@given(st.floats(1.2, 6.0), st.floats(0.0, 0.95), st.sampled_from([0.0, 0.1, 0.3]), st.integers(5, 60))
def test_a_step_of_overload_changes_each_level_at_most_twice(load, relief, low_share, seconds):
    """Levels that relieve the service, as they are meant to, must not look like the end of what they relieve it from.

    The service drains 1 a second and takes 40 waiting; each level that is in force takes `relief / 6` off the load.
    """
    ladder, waiting, changes = Ladder(), 0.0, dict.fromkeys(Level, 0)
    for tick in range(4 * (seconds + 40)):
        asked = load if tick < 4 * seconds else 0.3
        asked_now = asked
        if ladder.active(Level.SHED_LOW_PRIORITY):
            asked_now *= 1 - low_share
        asked_now *= 1 - relief * ladder.height / 6
        waiting = min(40.0, max(0.0, waiting + (asked_now - 1.0) * 40 / 4 / 5))
        for change in ladder.step(Pressure(waiting / 40, demand_ratio=asked), tick * TICK):
            changes[change.level] += 1
    assert all(count <= 2 for count in changes.values())
    assert ladder.height == 0


def test_a_relapse_makes_the_way_down_longer():
    ladder, now = climbed(Pressure(1.0), 0.5)
    down = []
    for _ in range(4):
        _, now = climbed(Pressure(1.0), 1.0, ladder, now)
        began = now
        while ladder.height:
            ladder.step(Pressure(0.0), now)
            now += TICK
        down.append(now - began)
    assert down == sorted(down)
    assert down[-1] > 2 * down[0]


# -- in the front: a real overload -------------------------------------------------------------------------------------


def test_an_overloaded_fleet_climbs_sheds_and_is_itself_again_ten_seconds_after():
    """One worker that does 10 requests a second; 30 a second for 60 s, then 3. Two thirds are of low priority."""
    decisions: list[Decision] = []
    tenants = Tenants(TenantLimits(), {"low": TenantLimits(priority=1)})
    limits = AdmissionLimits(10_000, 1 << 40, max_waiting=60, max_waiting_tokens=1 << 40)
    front = Front(limits, FrontLimits(), tenants=tenants, remote=True, listener=decisions.append)
    front.add_worker(WorkerSpec("w", first_sequences=2, most_sequences=2), 0)
    busy: list[tuple[int, str]] = []
    now, number, owed, after = 0, 0, 0.0, []
    while now < 75 * S:
        now += 50 * MS
        owed += (30 if now < 60 * S else 3) * 0.05
        while owed >= 1:
            owed -= 1
            number += 1
            tenant = "low" if number % 3 else "high"
            try:
                front.check_door(now)
                asked = Asked(id=f"r{number}", tenant=tenant, prompt_tokens=100, max_tokens=50)
                treatment = front.treat(asked, now)
                request = Request(f"r{number}", range(100), treatment.max_tokens, tenant=tenant)
                request.priority = treatment.priority
                front.submit(request, now)
            except (QueueFull, Shed) as refused:
                assert 1 <= refused.retry_after_s <= 60
        for ends, name in [one for one in busy if one[0] <= now]:
            busy.remove((ends, name))
            front.settle(name, Usage(100, 20), now, end=State.FINISHED)
        for dispatch in front.plan(now):
            front.began(dispatch.request.id, now)
            busy.append((now + 200 * MS, dispatch.request.id))
        if now % TICK == 0:
            front.adapt(now)
        assert front.admission.waiting <= 60
        if now >= 70 * S:
            after.append(front.ladder.height)
    changes = [one.why.partition(":")[0] for one in decisions if one.kind == "ladder"]
    assert set(changes) >= {"clamp_output", "shed_low_priority"}
    assert all(changes.count(name) <= 2 for name in changes)
    assert set(after) == {0}
    assert front.refused["shed"] > 0


class Storm:
    """One worker takes ten at a time for about a second each, and six tenths of that at the ladder's first level; then
    its KV is full. Arrivals, lengths and stays are random.
    """

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)
        self.decisions: list[Decision] = []
        limits = AdmissionLimits(10_000, 1 << 40, max_waiting=80, max_waiting_tokens=1 << 40)
        waits, clamps = FrontLimits(queue_timeout_ns=10 * S), Degradation(clamp_output_tokens=30)
        self.front = Front(limits, waits, degradation=clamps, remote=True, listener=self.decisions.append)
        self.front.add_worker(WorkerSpec("w", first_sequences=10, most_sequences=10), 0)
        self.kept = PromisesKept()
        self.busy: list[tuple[int, Request, int]] = []  # when it ends, whose, since when
        self.number = 0

    def come(self, now: int) -> None:
        self.number += 1
        tokens = round(min(4_000, self.draws.lognormvariate(5.5, 0.8)))
        asked = Asked(id=f"r{self.number}", prompt_tokens=max(1, tokens), max_tokens=50)
        with suppress(QueueFull, Shed):
            output_tokens = self.front.treat(asked, now).max_tokens
            self.front.submit(Request(asked.id, range(asked.prompt_tokens), output_tokens, slo=Slo(ttft_ns=S)), now)

    def tick(self, now: int, rate: float) -> None:
        """50 ms in which `rate` come a second on average."""
        front = self.front
        for _ in range(sum(self.draws.random() < rate / 1_000 for _ in range(50))):
            self.come(now)
        for one in [one for one in self.busy if one[0] <= now]:
            self.busy.remove(one)
            _, request, sent_ns = one
            front.settle(request.id, Usage(request.prompt_tokens, 20), now, end=State.FINISHED)
            self.kept.ended(request, sent_ns, kept=sent_ns - request.arrival_ns <= S)
        for dispatch in front.plan(now):
            if isinstance(dispatch, Dispatch):
                front.began(dispatch.request.id, now)
                stay_s = self.draws.gammavariate(4.0, 0.25) * dispatch.request.max_tokens / 50
                self.busy.append((now + int(stay_s * S), dispatch.request, now))
        if now % TICK == 0:
            used = len(self.busy) / 10 * self.draws.uniform(0.95, 1.0)
            front.observe("w", WorkerLoad.at(now, running=len(self.busy), waiting=0, kv_used_ratio=used), now)
            front.adapt(now, slo_met_ratio=self.kept.ratio(front.lanes.relegations))


@pytest.mark.parametrize("seed", range(4))
def test_after_a_noisy_overload_it_is_down_within_ten_seconds_and_no_level_has_changed_more_than_twice(seed):
    """Ten requests a second are done; 30 come for 60 s, then 6. What waited then keeps the worker full for a while."""
    storm, now, late = Storm(seed), 0, []
    while now < 90 * S:
        now += 50 * MS
        storm.tick(now, 30 if now < 60 * S else 6)
        late += [storm.front.ladder.height] * (now >= 70 * S)
    changes = [one.why.partition(":")[0] for one in storm.decisions if one.kind == "ladder"]
    assert set(changes) >= {"clamp_output", "shorten_context"}
    assert all(changes.count(name) <= 2 for name in changes)
    assert not any(late)


def test_on_the_way_down_a_moment_does_not_make_it_climb_again_and_a_load_does():
    ladder, now = climbed(Pressure(1.0), 5)
    while ladder.height > 3:
        ladder.step(Pressure(0.0), now)
        now += TICK
    ladder.step(Pressure(1.0), now + TICK)
    ladder.step(Pressure(0.0), now + 2 * TICK)
    assert ladder.height == 3
    climbed(Pressure(1.0), 2, ladder, now + 3 * TICK)
    assert ladder.height > 3


def test_what_waited_before_fills_kv_and_misses_promises_and_is_no_pressure_once_less_is_asked_for():
    full = Pressure(0.1, kv_used_ratio=1.0, slo_met_ratio=0.5, demand_ratio=1.0)
    assert full.height == 1.0
    assert replace(full, demand_ratio=None).height == 1.0
    assert replace(full, demand_ratio=0.6).height == pytest.approx(0.36)
    assert replace(full, demand_ratio=0.6, waiting_ratio=0.9).height == pytest.approx(0.9)


# -- what each level does ----------------------------------------------------------------------------------------------

DEGRADATION = Degradation(clamp_output_tokens=100, long_prompt_tokens=500, low_priority=2)


def front_at(*levels: Level, **limits: int) -> Front:
    tenants = Tenants(TenantLimits(**limits))  # type: ignore[arg-type]
    front = Front(AdmissionLimits(1_000, 100_000), FrontLimits(), tenants=tenants, degradation=DEGRADATION)
    front.set_levels(dict.fromkeys(levels, Mode.ON), 0)
    return front


PLAIN = Asked(prompt_tokens=50, max_tokens=300, priority=0)


def test_on_a_quiet_day_a_request_stays_what_it_was():
    treatment = front_at().treat(replace(PLAIN, optional=True, batch=True), 0)
    assert (treatment.max_tokens, treatment.priority, treatment.header) == (300, 0, "")
    assert not treatment.drop_optional
    assert not treatment.divert
    assert treatment.trim_to_tokens is None


def test_level_1_clamps_new_outputs():
    front = front_at(Level.CLAMP_OUTPUT)
    assert front.treat(PLAIN, 0).max_tokens == 100
    assert front.treat(PLAIN, 0).header == "output-clamped"
    assert front.treat(replace(PLAIN, max_tokens=60), 0).header == ""


def test_level_2_demotes_long_contexts():
    front = front_at(Level.DEMOTE_LONG)
    assert front.treat(PLAIN, 0).priority == 0
    long = front.treat(replace(PLAIN, prompt_tokens=500), 0)
    assert (long.priority, long.header) == (1, "demoted")


def test_level_3_sheds_low_priorities_and_not_those_that_were_demoted():
    front = front_at(Level.SHED_LOW_PRIORITY, Level.DEMOTE_LONG)
    with pytest.raises(Shed) as refused:
        front.treat(replace(PLAIN, priority=2), 0)
    assert refused.value.status == 429
    assert refused.value.retry_after_s >= 1
    assert front.refused == {"shed": 1}
    assert front.treat(replace(PLAIN, priority=1, prompt_tokens=600), 0).priority == 2


def test_level_4_drops_what_is_optional_before_anything_is_refused_for_its_length():
    front = front_at(Level.DROP_OPTIONAL)
    assert not front.treat(PLAIN, 0).drop_optional
    dropped = front.treat(replace(PLAIN, optional=True, prompt_tokens=2_000), 0)
    assert dropped.drop_optional
    assert dropped.header == "optional-dropped"


def test_level_5_diverts_batch_work_whole():
    front = front_at(Level.DIVERT_BATCH, Level.CLAMP_OUTPUT)
    assert not front.treat(PLAIN, 0).divert
    batch = front.treat(replace(PLAIN, batch=True), 0)
    assert batch.divert
    assert batch.max_tokens == 300


@pytest.mark.parametrize("overlong", ["reject", "async", "trim"])
def test_level_6_halves_the_context_and_says_what_becomes_of_longer_ones(overlong):
    front = front_at(Level.SHORTEN_CONTEXT)
    front.overload.degradation = replace(DEGRADATION, overlong=overlong)
    assert front.treat(replace(PLAIN, prompt_tokens=499, max_tokens=1), 0).header == ""
    asked = replace(PLAIN, prompt_tokens=700)
    if overlong == "reject":
        with pytest.raises(ContextLengthExceeded, match="at most 499 are taken while the service is overloaded"):
            front.treat(asked, 0)
        return
    treatment = front.treat(asked, 0)
    assert treatment.divert is (overlong == "async")
    assert treatment.trim_to_tokens == (200 if overlong == "trim" else None)  # with 300 for the answer
    assert treatment.header.startswith("context-shortened")


def test_without_the_ladder_overlong_prompts_meet_the_same_choice():
    front = front_at(max_input_tokens=80)
    with pytest.raises(ContextLengthExceeded, match="90 tokens; at most 80"):
        front.treat(replace(PLAIN, prompt_tokens=90), 0)
    front.overload.degradation = replace(DEGRADATION, overlong="trim")
    assert front.treat(replace(PLAIN, prompt_tokens=90), 0).trim_to_tokens == 80


@pytest.mark.parametrize(
    ("limits", "most"),
    [({}, 950), ({"max_output_tokens": 40}, 40), ({"tokens_per_minute": 90}, 40), ({"tokens_per_minute": 10}, 1)],
)
def test_who_does_not_say_how_much_it_wants_gets_what_it_may(limits, most):
    front = front_at(**limits)
    assert front.treat(Asked(prompt_tokens=50), 0).max_tokens == most


@pytest.mark.parametrize(
    ("own", "asked", "stands"), [(None, None, 0), (None, -5, -5), (3, None, 3), (3, 0, 3), (3, 5, 5), (-2, None, -2)]
)
def test_a_key_s_priority_can_be_lowered_by_a_request_and_not_raised(own, asked, stands):
    front = front_at(priority=own)
    assert front.treat(replace(PLAIN, priority=asked), 0).priority == stands
