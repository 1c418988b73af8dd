"""`--shadow`: everything is let in and sent on, while the limits decide about doubles that take as long."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import NoWorker, WorkerLost
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import NOTHING, Front, FrontLimits
from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.front.treatment import Asked
from headway.core.request import Request, Usage
from headway.gateway.fleet.driver import Place
from headway.gateway.fleet.shadow import Shadow, ShadowingDriver, Would, _Decider, open_front
from headway.simulate.replay import replay
from tests.cli.running import Server

MS = 1_000_000
LIMITS = AdmissionLimits(1_000, 1 << 40, max_waiting=2, max_waiting_tokens=10_000)


class Timed(Shadow):
    """On a clock that is a number."""

    def __init__(self, front: Front, would: Would) -> None:
        self.now = MS
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        super().__init__(_Decider(front, clock=lambda: self.now), would)

    def at(self, at_ns: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_ns, next(self._numbers), do))

    def wait(self, ms: int) -> None:
        end_ns = self.now + ms * MS
        while self._due and self._due[0][0] <= end_ns:
            self.now, _, do = heapq.heappop(self._due)
            do()
        self.now = end_ns
        self.decider.plan()


class World:
    """A gateway in shadow: one worker, which the limits would send two requests at a time."""

    def __init__(self, queue_timeout_ms: int = 0) -> None:
        self.would = Would()
        tenants = Tenants(TenantLimits(), {"small": TenantLimits(max_concurrency=1)})
        limits = FrontLimits(queue_timeout_ns=queue_timeout_ms * MS)
        decides = Front(LIMITS, limits, tenants=tenants, remote=True, listener=self.would.hear)
        self.shadow = Timed(decides, self.would)
        self.driver = ShadowingDriver(open_front(limits), self.shadow)
        self.driver.add_worker(WorkerSpec("w", first_sequences=2, most_sequences=2))
        self.count = 0

    def ask(self, tenant: str = "", max_tokens: int | None = 50) -> Place:
        self.count += 1
        asked = Asked(id=f"r{self.count}", tenant=tenant, prompt_tokens=10, max_tokens=max_tokens)
        treatment = self.driver.treat(asked)
        return self.driver.enter(Request(f"r{self.count}#1", range(10), treatment.max_tokens, tenant=tenant))

    @property
    def waiting(self) -> int:
        return self.driver.decider.admission.waiting

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        return self.would.counts


def test_everybody_is_sent_at_once_and_what_the_limits_would_do_is_counted():
    world = World()
    places = [world.ask() for _ in range(6)]
    assert all(place.dispatch is not None for place in places)
    assert world.waiting == 2
    assert world.counts == {("refuse", "queue_full"): 2}


def test_a_double_takes_as_long_as_its_original_from_when_it_would_be_sent():
    world = World()
    first, second, third = (world.ask() for _ in range(3))
    world.shadow.wait(100)
    for place in (first, second, third):
        place.began()
        place.finished(Usage(10, 5))
    assert not world.driver.front.fleet.flights
    world.shadow.wait(1)  # two end when they do; the third begins then, and takes 100 ms as well
    assert world.counts == {("queue", ""): 1}
    assert len(world.driver.decider.fleet.flights) == 1
    world.shadow.wait(98)
    assert len(world.driver.decider.fleet.flights) == 1
    world.shadow.wait(2)
    assert not world.driver.decider.fleet.flights
    assert world.driver.decider.admission.requests == 0


def test_who_would_have_waited_too_long_is_told_so_nowhere_but_in_the_count():
    world = World(queue_timeout_ms=50)
    places = [world.ask() for _ in range(3)]
    world.shadow.wait(60)
    assert world.counts == {("expire", ""): 1}
    assert all(place.error is None for place in places)
    places[2].finished(Usage(10, 5))


def test_quotas_refuse_no_original_and_a_refused_double_spends_none():
    world = World()
    one, two = world.ask("small"), world.ask("small")
    assert world.counts == {("refuse", "concurrency_limit"): 1}
    one.finished(Usage(10, 5))
    two.finished(Usage(10, 5))
    world.shadow.wait(1)
    world.ask("small")
    assert world.counts == {("refuse", "concurrency_limit"): 1}


def test_a_level_clamps_the_double_alone():
    world = World()
    world.driver.set_levels({Level.CLAMP_OUTPUT: Mode.ON})
    place = world.ask(max_tokens=500)
    assert place.request.max_tokens == 500
    assert world.counts == {("degrade", "output-clamped"): 1}
    [double] = world.driver.decider._reservations.values()
    assert double.request.max_tokens == 256
    assert not world.driver.front.ladder.active(Level.CLAMP_OUTPUT)


def test_without_a_worker_nobody_can_be_served_in_shadow_either():
    world = World()
    world.driver.drain_worker("w", draining=True)
    with pytest.raises(NoWorker):
        world.ask()
    assert world.counts == {("refuse", "no_worker"): 1}


kinds = st.sampled_from(["ask", "ask", "ask", "began", "finish", "fail", "lost", "leave", "wait"])
moves = st.lists(st.tuples(kinds, st.integers(0, 20)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(moves, st.sampled_from([0, 200]))
def test_both_fronts_are_empty_when_everybody_has_gone(story, timeout_ms):
    world = World(timeout_ms)
    inside: list[Place] = []
    for what, number in story:
        if what == "ask":
            with suppress(NoWorker):  # it failed too often just now, and nobody asks it
                inside.append(world.ask(["", "small"][number % 2]))
        elif what == "wait":
            world.shadow.wait(number * 10)
        elif inside:
            place = inside[number % len(inside)]
            if step(world, place, what):
                inside.remove(place)
    for place in inside:
        place.leave(NOTHING)
    world.shadow.wait(1_000_000)
    for front in (world.driver.front, world.driver.decider):
        admission = front.admission
        assert (admission.requests, admission.waiting, admission.claimed_tokens) == (0, 0, 0)
        assert not front.fleet.flights
    assert not world.shadow._doubles
    assert not world.driver.places
    assert not world.shadow.decider.places


def step(world: World, place: Place, what: str) -> bool:
    """Is it over?"""
    began = place.request.state.value == "decode"
    if what == "began":
        place.began()
        return False
    if what == "lost":
        try:
            place.lost(NOTHING, began=began)
        except WorkerLost:
            return True
        return False
    if place.dispatch is None:
        place.leave()
    elif what == "finish":
        place.finished(Usage(10, 5))
    elif what == "fail":
        place.failed(NOTHING, by_worker=False)
    else:
        place.leave(Usage(10, 1))
    return True


@pytest.mark.slow
def test_a_gateway_in_shadow_serves_what_its_limits_would_refuse(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    with Server("--executor", "simulated", "--served-model-name", "mine") as worker:
        config = tmp_path / "c.toml"
        config.write_text(
            f'shadow = true\nallow-anonymous = true\ndecision-log = "{log}"\n'
            f'[[worker]]\nurl = "{worker.url}"\n'
            '[[tenant]]\nname = "*"\nrequests-per-minute = 2\nmax-output-tokens = 4\n'
        )
        with Server("--config", str(config)) as gateway:
            assert "nothing is enforced" in "".join(gateway.log)
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0)
            message: Any = [{"role": "user", "content": "hello"}]
            for max_tokens in (4, 4, 4, 8):
                client.chat.completions.create(model="mine", messages=message, max_tokens=max_tokens)
            metrics = client._client.get(f"{gateway.url}/metrics").text
            gateway.signal()
            assert gateway.wait() == 0
    assert 'headway_shadow_decisions_total{decision="refuse",why="requests_per_minute"} 1.0' in metrics
    lines = [json.loads(line) for line in log.read_text().splitlines() if line]
    refused = [line for line in lines if line.get("decision") == "refuse"]
    assert {line["why"] for line in refused} >= {"requests_per_minute"}
    assert all(line["shadow"] for line in lines if "decision" in line)
    assert replay(log).difference is None
