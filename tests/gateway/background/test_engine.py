"""Requests that an engine in this process answers later: the same routes, and what they say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from headway.cli.address import bound_socket, url_of
from headway.engine import Engine
from headway.gateway import create_app, listening
from headway.gateway.background.config import BackgroundConfig
from headway.gateway.background.engine import attach
from headway.gateway.background.metrics import BACKGROUND_METRICS
from headway.gateway.service import SERVICE
from tests.gateway.fake import Client

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "ignore_eos": True}


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Client]:
    async with Engine(executor="simulated", max_num_seqs=4) as engine:
        app = create_app(engine)
        background = attach(app, engine.front, BackgroundConfig(directory=directory, slots=2))
        await background.open()
        background.start()
        with bound_socket("127.0.0.1", 0) as sock:
            try:
                async with listening(app, sock), aiohttp.ClientSession(base_url=url_of(sock)) as session:
                    assert app[SERVICE].divert is not None
                    yield Client(session, url_of(sock))
            finally:
                await background.close()


async def test_an_engine_keeps_computes_and_tells(tmp_path: Path) -> None:
    async with serving(tmp_path) as client:
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "ignore_eos": True}),
        ):
            status, kept, headers = await client.post(path, {**body, "background": True})
            assert (status, headers["retry-after"]) == (202, "1")
            async with asyncio.timeout(10):
                while (told := (await client.get(kept["url"]))[1])["status"] in ("queued", "in_progress"):
                    await asyncio.sleep(0.02)
            assert told["status"] == "completed", told
            _, now, _ = await client.post(path, {**body, "background": False})
            assert told["response"]["usage"]["total_tokens"] == now["usage"]["total_tokens"]
            assert len(told["response"]["choices"]) == len(now["choices"])
        for param, value in (("temperature", 9), ("max_tokens", 10**6), ("stream", True)):
            wrong = {param: value}
            status, told, _ = await client.post("/v1/chat/completions", {**CHAT, **wrong, "background": True})
            assert (status, told["error"]["param"]) == (400, param)
        assert len((await client.get("/v1/background"))[1]["data"]) == 2
        async with client.session.get("/metrics") as response:
            text = await response.text()
        assert 'headway_background_ended_total{state="completed"} 2.0' in text
        said = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
        assert {name: said.get(name) for name in BACKGROUND_METRICS} == {
            metric.name: metric.kind for metric in BACKGROUND_METRICS.values()
        }
        _, described = await client.get("/openapi.json")
        assert {"/v1/background/{id}", "/v1/files", "/v1/batches"} <= set(described["paths"])
        assert "202" in described["paths"]["/v1/chat/completions"]["post"]["responses"]
        _, index = await client.get("/")
        assert "POST /v1/batches" in index["routes"]


async def test_what_is_cancelled_while_it_runs_is_counted_as_that(tmp_path: Path) -> None:
    """Its tokens were counted as they came: all requests together and each lane's tell of the same."""
    async with serving(tmp_path) as client:
        body = {**CHAT, "max_tokens": 1_000, "background": True}
        _, kept, _ = await client.post("/v1/chat/completions", body)

        async def told(name: str) -> dict[str, float]:
            async with client.session.get("/metrics") as response:
                lines = (await response.text()).splitlines()
            return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)}

        async with asyncio.timeout(10):
            while (await told("headway_inter_token_latency_seconds_count"))[
                "headway_inter_token_latency_seconds_count"
            ] < 5:
                await asyncio.sleep(0.02)
            assert (await client.post(f"{kept['url']}/cancel", b""))[0] == 200
            while (await told("headway_requests_total"))['headway_requests_total{outcome="cancelled"}'] < 1:
                await asyncio.sleep(0.02)
        whole = await told("headway_inter_token_latency_seconds_count")
        by_lane = await told("headway_lane_inter_token_latency_seconds_count")
        assert sum(by_lane.values()) == sum(whole.values()) >= 5
