"""What an operator may do while it serves, and who is an operator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.gateway.fleet import Hooks, Member
from headway.gateway.tenancy import KeyFile, KeyRing
from tests.gateway.fake import until
from tests.gateway.fleet.gateway import CHAT, HELLO, gateway, member, over
from tests.gateway.fleet.upstream import upstreams


def from_table(table: Mapping[str, Any]) -> Member:
    if "url" not in table:
        raise ConfigError("url: it is missing, and has to be there.", param="url")
    return member(str(table.get("id", "new")), str(table["url"]))


async def test_a_worker_is_drained_and_undrained() -> None:
    async with upstreams(2) as made, over(made) as fleet:
        made[0].gap_s = 0.05
        running = [asyncio.ensure_future(fleet.stream(CHAT, HELLO)) for _ in range(4)]
        await until(lambda: made[0].inside > 0)
        status, body, _ = await fleet.post("/admin/workers/w0/drain", {})
        assert (status, body["draining"]) == (200, True)
        before = len(made[0].asked)
        answers = [await fleet.post(CHAT, HELLO) for _ in range(4)]
        assert {headers["x-headway-worker"].partition(";")[0] for _, _, headers in answers} == {"w1"}
        assert len(made[0].asked) == before
        assert all(events[-1] == "[DONE]" for events in await asyncio.gather(*running))  # what ran, ended well
        status, body, _ = await fleet.post("/admin/workers/w0/undrain", {})
        assert (status, body["draining"]) == (200, False)
        assert (await fleet.post("/admin/workers/nobody/drain", {}))[0] == 404


async def test_workers_come_and_go() -> None:
    async with upstreams(2) as (one, two), over([one], hooks=Hooks(member=from_table)) as fleet:
        status, body, _ = await fleet.post("/admin/workers", {"id": "second", "url": two.url})
        assert (status, body["kind"], body["trust"]) == (200, "vllm", "closed")
        assert (await fleet.post("/admin/workers", {"id": "second", "url": two.url}))[0] == 400
        assert (await fleet.post("/admin/workers", {"id": "third"}))[0] == 400
        status, body = await fleet.get("/admin/workers")
        assert [worker["id"] for worker in body["data"]] == ["w0", "second"]
        assert body["data"][1]["says"]["running"]["age_s"] < 5
        two.gap_s = 0.05
        async with fleet.session.delete("/admin/workers/w0") as response:
            assert response.status == 200
        running = asyncio.ensure_future(fleet.stream(CHAT, HELLO))
        await until(lambda: two.inside == 1)
        async with fleet.session.delete("/admin/workers/second") as response:
            assert response.status == 200
        assert (await running)[-1] == "[DONE]"  # what ran there may end
        status, body, _ = await fleet.post(CHAT, HELLO)
        assert (status, body["error"]["code"]) == (503, "no_worker")
        async with fleet.session.delete("/admin/workers/w0") as response:
            assert response.status == 404
        await fleet.empty()


async def test_levels_are_pinned_disabled_and_freed() -> None:
    async with upstreams() as made, over(made) as fleet:
        status, body, _ = await fleet.post("/admin/ladder", {"clamp_output": "on", "divert_batch": "off"})
        assert status == 200
        assert body["levels"]["clamp_output"] == {"active": True, "mode": "on"}
        assert body["levels"]["divert_batch"] == {"active": False, "mode": "off"}
        await fleet.post("/admin/ladder", {"clamp_output": "auto"})
        assert (await fleet.get("/admin/ladder"))[1]["levels"]["clamp_output"] == {"active": False, "mode": "auto"}
        bodies: list[Any] = [{"clamp": "on"}, {"clamp_output": "up"}, {}, [], {"clamp_output": 1}]
        for wrong in bodies:
            assert (await fleet.post("/admin/ladder", wrong))[0] == 400


async def test_reload_takes_all_or_says_why_not() -> None:
    said: list[str] = []

    async def reload() -> dict[str, list[str]]:
        said.append("read")
        if len(said) > 1:
            raise ConfigError("c.toml:3: [[tenant]] weight: must be a number.", param="weight")
        return {"changed": ["tenant"], "needs_restart": []}

    async with upstreams() as made, over(made, hooks=Hooks(reload=reload)) as fleet:
        status, body, _ = await fleet.post("/admin/reload", {})
        assert (status, body) == (200, {"reloaded": True, "changed": ["tenant"], "needs_restart": []})
        status, body, _ = await fleet.post("/admin/reload", {})
        assert status == 400
        assert "c.toml:3" in body["error"]["message"]
    async with upstreams() as made, over(made) as fleet:
        assert (await fleet.post("/admin/reload", {}))[0] == 501


async def test_who_may(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    _, alices = file.create("alice", time.time())
    _, operators = file.create("ops", time.time(), admin=True)
    async with upstreams() as (one,), gateway(member("w0", one.url), ring=KeyRing(file.path)) as fleet:
        elsewhere = {"X-Forwarded-For": "1.2.3.4"}

        async def asked(**headers: str) -> int:
            async with fleet.session.get("/admin/workers", headers=headers) as response:
                return response.status

        assert await asked(**elsewhere) == 401
        assert await asked() == 401  # as everybody looks behind a proxy on this machine that says nothing of itself
        for headers in ({}, elsewhere, {"Host": "a.page"}):  # no page has a key
            assert await asked(Authorization=f"Bearer {operators}", **headers) == 200
            assert await asked(Authorization=f"Bearer {alices}", **headers) == 403
            assert await asked(Authorization="Bearer hw-wrong", **headers) == 401
        assert (await fleet.post(CHAT, HELLO, Authorization=f"Bearer {operators}"))[0] == 403


async def test_without_keys_this_machine_may() -> None:
    async with upstreams() as made, over(made) as fleet:
        assert (await fleet.get("/admin/workers"))[0] == 200
        for headers in ({"X-Forwarded-For": "1.2.3.4"}, {"Host": "a.page:8000"}, {"Host": "10.1.2.3"}):
            async with fleet.session.get("/admin/workers", headers=headers) as response:
                assert response.status == 403, headers


async def test_tenants_are_named_to_operators_and_to_themselves(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    _, alices = file.create("alice", time.time())
    _, operators = file.create("ops", time.time(), admin=True)
    elsewhere = {"X-Forwarded-For": "1.2.3.4"}
    async with (
        upstreams() as (one,),
        gateway(member("w0", one.url), ring=KeyRing(file.path), limits={"max_running": 1}) as fleet,
    ):

        async def told(path: str, key: str = "", **headers: str) -> tuple[int, str]:
            if key:
                headers["Authorization"] = f"Bearer {key}"
            async with fleet.session.get(path, headers=headers) as response:
                return response.status, await response.text()

        assert (await fleet.post(CHAT, HELLO, Authorization=f"Bearer {alices}"))[0] == 200
        one.gap_s = 0.2
        calls = [asyncio.ensure_future(fleet.post(CHAT, HELLO, Authorization=f"Bearer {alices}")) for _ in range(2)]
        await until(lambda: fleet.inside["waiting"] > 0)
        for path in ("/metrics", "/load"):
            for key, headers, named in (
                (operators, {}, True),
                (operators, elsewhere, True),
                ("", {}, False),
                ("", elsewhere, False),
                ("hw-wrong", {}, False),  # as of a Prometheus whose key has lapsed
                ("", {"Authorization": "Basic eDp5"}, False),
            ):
                status, text = await told(path, key, **headers)
                assert (status, "alice" in text) == (200, named), (path, key, headers)
        assert "alice" in (await told("/load", alices, **elsewhere))[1]
        assert "headway_tenant_" not in (await told("/metrics", alices, **elsewhere))[1]
        _, text = await told("/metrics", **elsewhere)
        assert "headway_requests_waiting 1.0" in text  # all else is there
        assert "headway_keys_ignored_total 4.0" in text  # two each
        await asyncio.gather(*calls)


async def test_metrics_tell_of_every_worker_and_tenant() -> None:
    async with upstreams(2) as made, over(made) as fleet:
        await fleet.stream(CHAT, HELLO)
        await fleet.post(CHAT, HELLO)
        async with fleet.session.get("/metrics") as response:
            text = await response.text()
        for line in (
            'headway_worker_up{worker="w0"} 1.0',
            'headway_worker_requests_in_flight{worker="w1"} 0.0',
            'headway_worker_kv_used_ratio{worker="w0"} 0.1',
            'headway_ladder_level_active{level="clamp_output"} 0.0',
            'headway_tenant_output_tokens_total{tenant=""} 8.0',
            "headway_requests_in_service 0.0",
            'headway_requests_ended_total{reason="stop"} 2.0',
            "headway_time_to_first_token_seconds_count 1.0",
            "headway_worker_seconds_count 2.0",
            'headway_http_responses_total{route="/v1/chat/completions",status="200"} 2.0',
        ):
            assert line in text, line
        assert "headway_worker_batch_tokens{" not in text  # unknown is not zero
        status, load = await fleet.get("/load")
        assert status == 200
        assert load["requests"] == 0
        assert load["workers"]["w0"]["trust"] == "closed"
