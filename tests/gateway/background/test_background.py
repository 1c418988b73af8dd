"""Requests that are answered later, by a fleet: kept, computed when there is room, shown to nobody else, ended once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.front.treatment import Degradation
from headway.gateway.tenancy import KeyFile, KeyRing
from headway.store import Locked
from tests.gateway.background.kept import keeping
from tests.gateway.fake import until
from tests.gateway.fleet.gateway import CHAT, HELLO, over
from tests.gateway.fleet.upstream import Asked, Upstream, reply, upstreams

LONG = {**HELLO, "messages": [{"role": "user", "content": "word " * 400}]}


async def silent(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def test_an_answer_later_is_the_answer_now(tmp_path: Path) -> None:
    async with upstreams() as (one,), keeping(tmp_path, [one]) as fleet:
        _, now, _ = await fleet.post(CHAT, HELLO)
        told = await fleet.ended(await fleet.kept({**HELLO, "seed": 7, "headway": {"background": True}}))
        assert (told["status"], told["status_code"], told["error"]) == ("completed", 200, None)
        assert told["response"] == now
        assert told["created_at"] <= told["started_at"] <= told["ended_at"]
        assert told["tries"] == 1
        sent = one.asked[-1]
        assert not {"background", "headway", "stream"} & set(sent.body)
        assert sent.body["seed"] == 7
        status, story = await fleet.get(f"/v1/requests/{told['id']}")
        assert (status, story["worker"]) == (200, "w0")
        await fleet.empty()


async def test_openai_s_client_keeps_polls_and_cancels(tmp_path: Path) -> None:
    async with (
        upstreams() as (one,),
        keeping(tmp_path, [one]) as fleet,
        openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        kept = await client.chat.completions.create(**HELLO, extra_body={"background": True})
        told = await fleet.ended(kept.id)
        assert told["response"]["choices"][0]["message"]["content"] == " good day to you"
        plain = await client.completions.create(model="tiny", prompt="x", extra_body={"background": True})
        shown = await client.get(f"/background/{plain.id}", cast_to=object)
        assert shown["endpoint"] == "/v1/completions"  # type: ignore[index] # JSON
        with pytest.raises(openai.NotFoundError):
            await client.post("/background/bg_none/cancel", cast_to=object)


async def test_what_can_never_be_is_refused_at_once(tmp_path: Path) -> None:
    tenants = Tenants(TenantLimits(max_output_tokens=20, max_input_tokens=50))
    async with upstreams() as (one,), keeping(tmp_path, [one], tenants=tenants) as fleet:
        for change, param, code in (
            ({"stream": True}, "stream", "invalid_value"),
            ({"max_tokens": 21}, "max_tokens", "invalid_value"),
            ({"messages": LONG["messages"]}, "messages", "context_length_exceeded"),
            ({"model": "other"}, "model", "model_not_found"),
            ({"background": "yes"}, "background", "invalid_value"),
        ):
            status, told, _ = await fleet.post(CHAT, {**HELLO, "background": True, **change})
            assert status in (400, 404), told
            assert (told["error"]["param"], told["error"]["code"]) == (param, code)
        assert (await fleet.get("/v1/background"))[1]["data"] == []
        assert not one.asked


async def test_a_worker_s_refusal_is_the_error_it_ends_with(tmp_path: Path) -> None:
    async def refuses(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        reply(writer, 400, b'{"error":{"message":"no","type":"invalid_request_error","param":"top_p","code":"bad"}}')

    async with upstreams(1, refuses) as (one,), keeping(tmp_path, [one]) as fleet:
        told = await fleet.ended(await fleet.kept(HELLO))
        assert (told["status"], told["status_code"], told["response"]) == ("failed", 400, None)
        assert told["error"]["param"] == "top_p"
        assert len(one.asked) == 1


async def test_a_worker_that_fails_is_asked_again_and_a_poison_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.gateway.background.runner.FIRST_REST_S", 0.01)

    async def breaks(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        reply(writer, 500, b'{"error":{"message":"oom","type":"server_error","param":null,"code":"oom"}}')

    async with upstreams(1, breaks) as (one,), keeping(tmp_path, [one]) as fleet:
        told = await fleet.ended(await fleet.kept(HELLO))
        assert (told["status"], told["status_code"], told["error"]["code"]) == ("failed", 500, "oom")
        assert told["tries"] == len(one.asked) == 5


async def test_nobody_sees_another_s(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    keys = {name: {"Authorization": f"Bearer {file.create(name, time.time())[1]}"} for name in ("alice", "bob")}
    async with upstreams() as (one,), keeping(tmp_path / "store", [one], ring=KeyRing(file.path)) as fleet:
        name = await fleet.kept(HELLO, **keys["alice"])
        assert (await fleet.ended(name, headers=keys["alice"]))["status"] == "completed"
        for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
            async with fleet.session.request(method, f"/v1/background/{name}{path}", headers=keys["bob"]) as response:
                assert response.status == 404
            async with fleet.session.request(method, f"/v1/background/{name}{path}") as response:
                assert response.status == 401
        async with fleet.session.get("/v1/background", headers=keys["bob"]) as response:
            assert (await response.json())["data"] == []
        async with fleet.session.get("/v1/background", headers=keys["alice"]) as response:
            assert [item["id"] for item in (await response.json())["data"]] == [name]
        async with fleet.session.delete(f"/v1/background/{name}", headers=keys["alice"]) as response:
            assert response.status == 200
        assert (await fleet.look(name, **keys["alice"]))["error"]["code"] == "not_found"


async def test_cancelling_stops_its_worker_and_leaves_nothing(tmp_path: Path) -> None:
    async with upstreams(1, silent) as (one,), keeping(tmp_path, [one], slots=1) as fleet:
        running, waiting = [await fleet.kept(HELLO) for _ in range(2)]
        await until(lambda: one.inside == 1)
        for name in (waiting, running, running):
            status, told, _ = await fleet.post(f"/v1/background/{name}/cancel", b"")
            assert (status, told["status"], told["response"]) == (200, "cancelled", None)
        await until(lambda: one.left == 1 and not one.inside)
        await fleet.empty()
        assert len(one.asked) == 1
        assert (await fleet.look(waiting))["status"] == "cancelled"


async def test_it_yields_to_who_waits_for_an_answer(tmp_path: Path) -> None:
    """While others queue nothing is begun; what was begun has at most half of the window, which changes."""
    async with upstreams() as (one,), keeping(tmp_path, [one], slots=100) as fleet:
        one.gap_s = 0.05
        lanes, window = fleet.front.lanes, next(iter(fleet.front.fleet.workers.values())).window
        names = [await fleet.kept(HELLO) for _ in range(24)]
        inside = share = 0
        while inside < 3 or fleet.background.jobs.queued > 12:
            share = max(share, int(window.sequences) // 2)
            inside = max(inside, lanes.waiting_by_lane()["batch"] + lanes.running_in("batch"))
            assert inside <= share
            await asyncio.sleep(0.005)
        online = [asyncio.ensure_future(fleet.post(CHAT, HELLO)) for _ in range(32)]
        await until(lambda: lanes.waiting_by_lane()["all"] > 8)
        before = fleet.background.runner.running
        while lanes.waiting_by_lane()["all"]:
            assert fleet.background.runner.running <= before
            await asyncio.sleep(0.005)
        assert {status for status, _, _ in await asyncio.gather(*online)} == {200}
        assert {(await fleet.ended(name, 30))["status"] for name in names} == {"completed"}
        await fleet.empty()


async def test_level_5_diverts_batch_work_and_brings_it_back(tmp_path: Path) -> None:
    batch = {**HELLO, "headway": {"batch": True}}
    async with upstreams() as (one,), keeping(tmp_path, [one]) as fleet:
        assert (await fleet.post(CHAT, batch))[0] == 200
        fleet.service.driver.set_levels({Level.DIVERT_BATCH: Mode.ON})
        assert (await fleet.post(CHAT, HELLO))[0] == 200
        status, told, headers = await fleet.post(CHAT, {**batch, "stream": True})
        assert (status, headers["x-headway-degraded"], told["reason"]) == (202, "diverted", "diverted")
        asked = len(one.asked)
        await asyncio.sleep(0.3)
        assert (await fleet.look(told["id"]))["status"] == "queued"
        assert len(one.asked) == asked
        fleet.service.driver.set_levels({Level.DIVERT_BATCH: Mode.AUTO})
        assert (await fleet.ended(told["id"]))["response"]["object"] == "chat.completion"


async def test_a_low_priority_is_kept_rather_than_refused(tmp_path: Path) -> None:
    async with upstreams() as (one,), keeping(tmp_path, [one]) as fleet:
        fleet.service.driver.set_levels({Level.SHED_LOW_PRIORITY: Mode.ON})
        low = {**HELLO, "priority": 3}
        assert (await fleet.post(CHAT, low))[0] == 429
        status, told, _ = await fleet.post(CHAT, {**low, "headway": {"batch": True}})
        assert status == 202
        fleet.service.driver.set_levels({Level.SHED_LOW_PRIORITY: Mode.AUTO})
        assert (await fleet.ended(told["id"]))["status"] == "completed"


async def test_an_overlong_prompt_is_answered_later_if_it_ever_can_be(tmp_path: Path) -> None:
    degradation = Degradation(overlong="async", online_prompt_tokens=100)
    limits = {"max_model_len": 1000}
    async with upstreams() as (one,), keeping(tmp_path, [one], degradation=degradation, limits=limits) as fleet:
        assert (await fleet.post(CHAT, HELLO))[0] == 200
        status, told, headers = await fleet.post(CHAT, LONG)
        assert (status, headers["x-headway-degraded"]) == (202, "diverted")
        assert (await fleet.ended(told["id"]))["status"] == "completed"
        assert one.asked[-1].body == LONG
        longer = {**HELLO, "messages": [{"role": "user", "content": "word " * 4000}]}
        status, told, _ = await fleet.post(CHAT, longer)
        assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
        assert "at most 999" in told["error"]["message"]


async def test_without_a_store_it_is_refused_with_what_to_do() -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        status, told, _ = await fleet.post(CHAT, {**HELLO, "background": True})
        assert (status, told["error"]["param"], told["error"]["code"]) == (400, "background", "unsupported_feature")
        assert "--store" in told["error"]["message"]
        fleet.service.driver.set_levels({Level.DIVERT_BATCH: Mode.ON})
        status, told, headers = await fleet.post(CHAT, {**HELLO, "headway": {"batch": True}})
        assert (status, told["error"]["code"]) == (429, "shed")
        assert int(headers["retry-after"]) >= 1
        assert not one.asked


async def test_a_full_queue_is_no_reason_not_to_keep_it(tmp_path: Path) -> None:
    limits = {"max_waiting": 1, "max_running": 1}
    async with upstreams(1, silent) as (one,), keeping(tmp_path, [one], limits=limits) as fleet:
        online = [asyncio.ensure_future(fleet.post(CHAT, HELLO)) for _ in range(2)]
        await until(lambda: fleet.front.admission.waiting == 1)
        assert (await fleet.post(CHAT, HELLO))[0] == 429
        await fleet.kept(HELLO)
        for one_call in online:
            one_call.cancel()


async def test_a_tenant_s_quota_holds_back_its_own_and_no_other(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    keys = {name: {"Authorization": f"Bearer {file.create(name, time.time())[1]}"} for name in ("alice", "bob")}
    tenants = Tenants(TenantLimits(), {"alice": TenantLimits(requests_per_minute=1)})
    ring = KeyRing(file.path)
    async with upstreams() as (one,), keeping(tmp_path / "store", [one], ring=ring, tenants=tenants) as fleet:
        hers = [await fleet.kept(HELLO, **keys["alice"]) for _ in range(3)]
        his = [await fleet.kept(HELLO, **keys["bob"]) for _ in range(3)]
        assert {(await fleet.ended(name, headers=keys["bob"]))["status"] for name in his} == {"completed"}
        shown = [(await fleet.look(name, **keys["alice"])) for name in hers]
        assert sorted(item["status"] for item in shown) == ["completed", "queued", "queued"]
        assert all(item["tries"] <= 1 for item in shown)


async def test_what_is_kept_is_bounded_and_expires(tmp_path: Path) -> None:
    async with (
        upstreams(1, silent) as (one,),
        keeping(tmp_path, [one], slots=1, max_queued=2, timeout_s=0.6, retention_s=86_400) as fleet,
    ):
        running = await fleet.kept(HELLO)
        await until(lambda: one.inside == 1)
        waiting = [await fleet.kept(HELLO) for _ in range(2)]
        status, told, headers = await fleet.post(CHAT, {**HELLO, "background": True})
        assert (status, told["error"]["code"], headers["retry-after"]) == (429, "background_full", "60")
        for name in waiting:
            late = await fleet.ended(name)
            assert (late["status"], late["status_code"]) == ("failed", 504)
            assert late["error"]["code"] == "background_expired"
        assert (await fleet.look(running))["status"] == "in_progress"  # the bound is on waiting


async def test_a_store_that_is_full_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with upstreams() as (one,), keeping(tmp_path, [one], max_bytes=400_000) as fleet:
        big = {**HELLO, "messages": [{"role": "user", "content": "x" * 150_000}]}
        name = await fleet.kept(big)
        status, told, _ = await fleet.post(CHAT, {**big, "background": True})
        assert (status, told["error"]["code"]) == (507, "disk_full")
        assert (await fleet.ended(name))["status"] == "completed"


async def test_a_disk_that_is_full_when_the_answer_comes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.gateway.background.insist.RETRY_S", 0.1)
    async with upstreams() as (one,), keeping(tmp_path, [one]) as fleet:
        one.gap_s = 0.1
        name = await fleet.kept(HELLO)
        await until(lambda: one.inside == 1)

        def pages(number: int | None) -> Any:
            count = "page_count" if number is None else f"max_page_count = {number}"
            return fleet.background.store.run(lambda store: store._database.value(f"PRAGMA {count}"))

        await pages(await pages(None))
        filler = [await fleet.post(CHAT, {**HELLO, "background": True, "user": "y" * 90_000}) for _ in range(2)]
        assert [status for status, _, _ in filler] == [507, 507]
        await asyncio.sleep(1.0)
        await pages(1_000_000)
        assert (await fleet.ended(name))["status"] == "completed"
        assert len(one.asked) == 1


async def test_a_stop_puts_back_what_runs_and_a_start_goes_on(tmp_path: Path) -> None:
    async with upstreams(1, silent) as (one,), keeping(tmp_path, [one]) as fleet:
        name = await fleet.kept(HELLO)
        await until(lambda: one.inside == 1)
        with pytest.raises(Locked, match="headway serve"):
            async with keeping(tmp_path, [one]):
                pass
    async with upstreams() as (one,), keeping(tmp_path, [one]) as fleet:
        told = await fleet.ended(name)
        assert (told["status"], told["tries"]) == ("completed", 1)  # a stop is not its fault


async def test_it_waits_for_a_worker_that_is_not_up(tmp_path: Path) -> None:
    async with upstreams() as (one,):
        one.well = False
        async with keeping(tmp_path, [one]) as fleet:
            await one.kill()
            name = await fleet.kept(HELLO)
            await asyncio.sleep(0.5)
            assert (await fleet.look(name))["status"] in ("queued", "in_progress")
            one.well = True
            await one.start(int(one.url.rpartition(":")[2]))
            assert (await fleet.ended(name, 20))["status"] == "completed"
