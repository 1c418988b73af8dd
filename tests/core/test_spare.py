"""Work that nobody waits for: behind everybody, never lifted by time, and begun only when there is room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.ladder import Level, Mode
from headway.core.front.spare import BATCH_PRIORITY, batch_lane, check_possible, has_spare
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.lanes import Fit, LaneLimits
from headway.core.request import BATCH, Request

S = 1_000_000_000


def front(*, slots: int = 100, remote: bool = False, limits: TenantLimits | None = None) -> Front:
    return Front(
        AdmissionLimits(1000, 1 << 30),
        FrontLimits(age_bound_ns=30 * S, lanes=(LaneLimits("all"), batch_lane(slots))),
        tenants=Tenants(limits) if limits is not None else None,
        remote=remote,
    )


def batch(name: str, **more: int) -> Request:
    return Request(name, range(10), 10, pool=BATCH, priority=BATCH_PRIORITY, **more)  # type: ignore[arg-type] # ints


def online(name: str, priority: int = 0) -> Request:
    return Request(name, range(10), 10, priority=priority)


def pulled(one: Front, now: int) -> str | None:
    request = one.pull(lambda _: Fit.START, now)
    return None if request is None else request.id


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 10_000))
def test_however_long_it_waits_it_goes_after_everybody(kinds: list[bool], later_s: int) -> None:
    one = front()
    for number, is_batch in enumerate(kinds):
        one.submit(batch(f"b{number}") if is_batch else online(f"o{number}", priority=number % 3), number * S)
    now = (len(kinds) + later_s) * S
    order = []
    while (name := pulled(one, now)) is not None:
        order.append(name)
    assert [name[0] for name in order] == sorted((name[0] for name in order), key="ob".index)
    assert [name for name in order if name[0] == "b"] == [f"b{n}" for n, is_batch in enumerate(kinds) if is_batch]


def test_it_takes_no_more_than_its_slots() -> None:
    one = front(slots=2)
    for number in range(4):
        one.submit(batch(f"b{number}"), 0)
    assert [pulled(one, 1), pulled(one, 1), pulled(one, 1)] == ["b0", "b1", None]
    one.submit(online("o"), 2)
    assert pulled(one, 2) == "o"
    assert one.lanes.running_in(BATCH) == 2


def test_there_is_room_when_nobody_waits_and_nothing_is_left_out() -> None:
    one = front()
    assert has_spare(one)
    one.submit(batch("b"), 0)
    assert has_spare(one)  # its own kind is no reason
    one.submit(online("o"), 0)
    assert not has_spare(one)
    assert pulled(one, 0) == "o"
    assert has_spare(one)
    one.set_levels({Level.DIVERT_BATCH: Mode.ON}, 0)
    assert not has_spare(one)
    one.set_levels({Level.DIVERT_BATCH: Mode.AUTO}, 0)
    one.draining = True
    assert not has_spare(one)


def test_of_workers_that_are_shared_it_has_half_and_of_its_own_all() -> None:
    one = front(remote=True)
    one.add_worker(WorkerSpec(id="w", first_sequences=8), 0)
    for number in range(4):
        assert has_spare(one)
        one.submit(batch(f"b{number}"), 0)
        one.plan(0)
    assert not has_spare(one)
    one.add_worker(WorkerSpec(id="own", pool=BATCH, first_sequences=8), 0)
    assert has_spare(one)


def test_what_can_never_be_is_known_at_once() -> None:
    one = front(limits=TenantLimits(max_output_tokens=5, lanes=("all",)))
    with pytest.raises(InvalidRequest, match="limit is 5"):
        check_possible(one, batch("b"))
    one.tenants.set(TenantLimits(lanes=("all",)), {})
    with pytest.raises(InvalidRequest, match="batch"):
        check_possible(one, batch("b"))
    one.tenants.set(TenantLimits(), {})
    check_possible(one, batch("b"))
    assert one.admission.requests == 0
