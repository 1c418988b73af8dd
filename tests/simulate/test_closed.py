"""A closed loop: never more than its clients, each after its last answer; and leaps change nothing about it."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.simulate import Run, VirtualFleet, VirtualRequest, VirtualSettings, simulate
from headway.simulate.closed import TURN_NS, ClosedLoop
from headway.simulate.demand import Clients
from headway.workload.item import Item
from tests.simulate import worlds
from tests.simulate.worlds import MS, told

items = st.lists(st.builds(Item, st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=12)


def run(loop: ClosedLoop, settings: VirtualSettings) -> Run:
    return simulate(loop.first(), settings, follow=loop.after)


def service(workers: int = 1, **changes: object) -> VirtualSettings:
    return VirtualSettings(workers=(worlds.worker(),) * workers, **changes)  # type: ignore[arg-type]


def most_at_once(run: Run) -> int:
    changes = sorted([(r.arrival_ns, 1) for r in run.records] + [(r.ended_ns, -1) for r in run.records])
    inside = most = 0
    for _, change in changes:
        inside += change
        most = max(most, inside)
    return most


@hypothesis_settings(max_examples=100, deadline=None)
@given(items, st.integers(1, 6), st.integers(0, 40), st.integers(1, 3), st.booleans())
def test_no_more_are_inside_than_there_are_clients(asked, clients, think_ms, workers, gateway):
    loop = ClosedLoop(iter(asked), clients, think_ns=think_ms * MS)
    found = run(loop, service(workers, fleet=VirtualFleet() if gateway else None))
    assert loop.sent == asked
    assert [r.prompt_tokens for r in sorted(found.records, key=lambda r: int(r.id[1:]))] == [
        item.input_tokens for item in asked
    ]
    assert most_at_once(found) <= clients


@hypothesis_settings(max_examples=100, deadline=None)
@given(items, st.integers(1, 6), st.integers(0, 3), st.integers(1, 3), worlds.settings)
def test_leaps_change_nothing(asked, clients, think_ms, workers, services):
    services = replace(services, workers=services.workers[:1] * workers)
    told_by = [
        told(run(ClosedLoop(iter(asked), clients, think_ns=think_ms * MS), replace(services, leaps=leaps)))
        for leaps in (True, False)
    ]
    assert told_by[0] == told_by[1]


def test_a_client_alone_sends_when_it_has_its_answer():
    found = run(ClosedLoop(repeat(Item(8, 5)), 1, requests=3, think_ns=7 * MS), service())
    ends = [r.ended_ns for r in found.records]
    assert [r.arrival_ns for r in found.records] == [0, *(end + 7 * MS + TURN_NS for end in ends[:-1])]


def test_it_ends_with_its_time_and_goes_on_for_enough_requests():
    alone_ns = run(ClosedLoop(repeat(Item(8, 5)), 1, requests=1), service()).ended_ns
    for_ten = 10 * alone_ns - 1
    assert len(run(ClosedLoop(repeat(Item(8, 5)), 1, duration_ns=for_ten), service()).records) == 10
    longer = ClosedLoop(repeat(Item(8, 5)), 1, duration_ns=for_ten, at_least=15, most_ns=100 * alone_ns)
    assert len(run(longer, service()).records) == 15
    cut = ClosedLoop(repeat(Item(8, 5)), 1, duration_ns=for_ten, at_least=15, most_ns=for_ten)
    assert len(run(cut, service()).records) == 10


def test_a_client_that_was_not_answered_makes_a_pause():
    clients = Clients(timeout_ns=MS)  # the first step takes longer
    found = run(ClosedLoop(repeat(Item(8, 5)), 1, requests=2, clients=clients), service())
    assert found.ends == {"cancelled": 2}
    first, second = found.records
    assert second.arrival_ns - first.ended_ns > 50 * MS


def test_who_follows_must_come_later_and_be_another():
    first = VirtualRequest("a", 0, 8, 5, 5)
    for following in (VirtualRequest("a", 10**12, 8, 5, 5), VirtualRequest("b", 0, 8, 5, 5)):
        with pytest.raises(ConfigError, match="follows another"):
            simulate([first], service(), follow=lambda *_, following=following: following)


def test_whoever_watches_is_told_how_far_it_is():
    seen: list[tuple[int, int]] = []
    requests = [VirtualRequest(f"r{i}", i * MS, 8, 5, 5) for i in range(400)]
    found = simulate(requests, service(), watch=lambda now, ended: seen.append((now, ended)))
    assert seen
    assert seen == sorted(seen)
    assert seen[-1][0] <= found.ended_ns
    assert seen[-1][1] <= len(requests)
