"""The data of a gateway: an operator sees everything, a tenant itself, nobody a key or a prompt."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import TenantLimits, Tenants
from headway.gateway.tenancy import KeyFile, KeyRing
from headway.metrics.breakdown import MOST_NAMED, Ended
from tests.gateway.fleet.gateway import CHAT, HELLO, Fleet, over
from tests.gateway.fleet.upstream import Upstream, good, upstreams

DATA = "/dashboard/data"
FAR = {"X-Forwarded-For": "10.1.2.3"}


async def seen(fleet: Fleet, query: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
    async with fleet.session.get(DATA + query, headers=headers) as response:
        return response.status, await response.json()


async def test_without_keys_this_machine_sees_workers_with_every_term() -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        await fleet.post(CHAT, {**HELLO, "messages": [{"role": "user", "content": "a secret"}]})
        _, now = await seen(fleet)
        _, far = await seen(fleet, **FAR)
    assert (now["kind"], now["see"], now["keys"], now["models"]) == ("gateway", "operator", False, ["tiny"])
    (worker,) = now["workers"]
    assert (worker["id"], worker["trust"], worker["in_flight"], worker["draining"]) == ("w0", "closed", 0, False)
    assert set(worker["terms"]) == {
        "work", "running", "waiting", "kv", "batch", "ttft", "itl", "memory", "prefix",
    }  # fmt: skip
    assert worker["score"] == pytest.approx(sum(worker["terms"].values()), abs=0.01)
    assert worker["says"]["kv_used_ratio"] == 0.1
    assert {"steps", "tenants"} <= set(now["absent"])
    assert "tenants" not in now
    (slow,) = now["slow"]
    assert (slow["worker"], slow["state"], slow["bad"]) == ("w0", "stop", False)
    assert [name for name, _, _ in slow["parts"]] == ["network", "tokenise", "queue", "worker"]
    assert (far["see"], far["workers"], far["slow"]) == ("public", None, None)
    assert "secret" not in json.dumps([now, far])


async def test_what_no_worker_says_is_absent_and_not_zero() -> None:
    async with upstreams() as (one,), over([]) as fleet:
        del one
        _, now = await seen(fleet)
    assert now["workers"] == []
    assert "kv" in now["absent"]
    assert now["not_ready"] == "No worker is up."
    assert not [name for name in now["columns"] if name.startswith("kv.")]


async def test_each_sees_what_is_its_own(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    alice, bob = (f"Bearer {file.create(name, time.time())[1]}" for name in ("alice", "bob"))
    admin = f"Bearer {file.create('ops', time.time(), admin=True)[1]}"
    tenants = Tenants(TenantLimits(), {"alice": TenantLimits(weight=3.0)})
    async with upstreams() as (one,), over([one], ring=KeyRing(file.path), tenants=tenants) as fleet:
        for key, name in ((alice, "alices"), (alice, "alices-2"), (bob, "bobs")):
            await fleet.post(CHAT, HELLO, Authorization=key, **{"x-request-id": name})
        answers = {
            "admin": await seen(fleet, "?request=bobs", Authorization=admin, **FAR),
            "local": await seen(fleet, "?request=bobs"),
            "alice": await seen(fleet, "?request=bobs", Authorization=alice),
            "bob": await seen(fleet, "?request=bobs", Authorization=bob, **FAR),
            "nobody": await seen(fleet, **FAR),
            "wrong": await seen(fleet, Authorization="Bearer hw-wrong"),
        }
    assert {who: status for who, (status, _) in answers.items()} == {
        "admin": 200, "local": 401, "alice": 200, "bob": 200, "nobody": 401, "wrong": 401,
    }  # fmt: skip
    told = answers["admin"][1]
    assert told["see"] == "operator"
    assert {one["name"]: one["tokens"] for one in told["tenants"]} == {"alice": 28, "bob": 14}
    assert sum(one["share"] for one in told["tenants"]) == pytest.approx(1)
    assert {one["name"]: one["fair_share"] for one in told["tenants"]} == {"alice": 0.75, "bob": 0.25}
    assert {one["id"] for one in told["slow"]} == {"alices", "alices-2", "bobs"}
    assert told["request"]["tenant"] == "bob"
    assert told["request"]["tries"][0]["worker"] == "w0"
    told = answers["alice"][1]
    assert told["see"] == "tenant"
    assert [one["name"] for one in told["tenants"]] == ["alice"]
    assert {one["id"] for one in told["slow"]} == {"alices", "alices-2"}
    assert (told["request"], told["workers"]) == (None, None)
    assert "bob" not in json.dumps(told)
    assert answers["bob"][1]["request"]["id"] == "bobs"
    assert "alice" not in json.dumps(answers["bob"][1])
    for who in ("local", "nobody", "wrong"):
        assert set(answers[who][1]) == {"error"}
    assert "hw-" not in json.dumps([told for _, told in answers.values()])


async def test_tenants_beyond_the_busiest_are_in_the_whole_and_none_of_them_is_zero(tmp_path: Path) -> None:
    """What was found in a cache is no part of anybody's share: fairness does not count it either."""
    file = KeyFile(tmp_path / "keys")
    admin = f"Bearer {file.create('ops', time.time(), admin=True)[1]}"
    async with upstreams(1) as made, over(made, ring=KeyRing(file.path)) as fleet:
        for number in range(MOST_NAMED + 8):
            labels = {"tenant": f"t{number}"}
            fleet.service.figures.calls.ended(Ended("good", 100, 90, 10, labels=labels))
        _, told = await seen(fleet, Authorization=admin)
    assert {one["name"] for one in told["tenants"]} == {f"t{number}" for number in range(MOST_NAMED)}
    assert {one["tokens"] for one in told["tenants"]} == {20}
    assert {one["share"] for one in told["tenants"]} == {1 / (MOST_NAMED + 8)}


async def test_where_anybody_is_let_in_nobody_sees_the_tenants(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    alice = f"Bearer {file.create('alice', time.time())[1]}"
    async with upstreams() as (one,), over([one], ring=KeyRing(file.path), anonymous=True) as fleet:
        await fleet.post(CHAT, HELLO, Authorization=alice, **{"x-request-id": "alices"})
        status, told = await seen(fleet, "?request=alices", **FAR)
    assert (status, told["see"], told["slow"], told["workers"], told["tenants"]) == (200, "public", None, None, [])
    assert "alice" not in json.dumps(told)


async def test_the_ladder_is_as_it_stands() -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        fleet.service.driver.set_levels({Level.CLAMP_OUTPUT: Mode.ON, Level.DIVERT_BATCH: Mode.OFF})
        _, now = await seen(fleet)
    levels = {level["name"]: (level["active"], level["mode"]) for level in now["ladder"]["levels"]}
    assert levels["clamp_output"] == (True, "on")
    assert levels["divert_batch"] == (False, "off")
    assert levels["shed_low_priority"] == (False, "auto")
    assert len(levels) == 6


async def test_the_slowest_are_the_slowest() -> None:
    async def slowly(upstream: Upstream, asked: Any, writer: Any) -> None:
        upstream.gap_s = 0.05 if asked.headers["x-request-id"] == "slow" else 0.0
        await good(upstream, asked, writer)

    async with upstreams() as (one,), over([one]) as fleet:
        one.behave = slowly
        for number in range(12):
            name = "slow" if number == 3 else f"quick-{number}"
            await fleet.post(CHAT, HELLO, **{"x-request-id": name})
        _, now = await seen(fleet, "?order=total")
    assert len(now["slow"]) == 8
    assert now["slow"][0]["id"] == "slow"
    totals = [told["total_s"] for told in now["slow"]]
    assert totals == sorted(totals, reverse=True)
