"""What a worker is, whether it is well, what it serves and how loaded it is: found out, and noticed when it changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from headway.core.fleet.worker import WorkerLoad
from headway.workers.kinds import KINDS
from tests.wire.scripted import Script, Turn, scripted, until, whole
from tests.workers.bodies import Watched, remote
from tests.workers.speaking import models, vllm_page

HEADWAY_LOAD = json.dumps(
    {"ready": True, "running": 2, "waiting": 1, "step_tokens": 5, "kv_blocks_used": 1, "kv_blocks_total": 2}
).encode()
OWNED = {
    kind: {"/v1/models": models("m", owner=kind), "/health": b"{}"}
    for kind in ("vllm", "sglang", "llamacpp", "headway")
}
SERVERS: dict[str, tuple[str, Mapping[str, bytes]]] = {
    "vllm by its owner": ("vllm", OWNED["vllm"] | {"/metrics": vllm_page()}),
    "sglang by its owner": (
        "sglang",
        OWNED["sglang"] | {"/v1/loads": b'{"loads":[{"num_running_reqs":2,"num_waiting_reqs":1}]}'},
    ),
    "llamacpp by its owner": ("llamacpp", OWNED["llamacpp"] | {"/slots": b'[{"is_processing":true}]'}),
    "headway by its owner": ("headway", OWNED["headway"] | {"/load": HEADWAY_LOAD}),
    "vllm by its metrics": ("vllm", {"/v1/models": models("m", owner="me"), "/metrics": vllm_page()}),
    "tgi by its metrics": ("tgi", {"/metrics": b"tgi_queue_size 1\ntgi_batch_current_size 2\n"}),
    "tgi by its info": ("tgi", {"/info": b'{"model_id":"m","model_sha":"x","router":"r"}'}),
    "llamacpp by its props": ("llamacpp", {"/props": b'{"default_generation_settings":{},"total_slots":1}'}),
    "sglang by its info": ("sglang", {"/get_server_info": b'{"max_total_num_tokens":5}'}),
    "something else": ("openai", {"/v1/models": models("gpt")}),
    "hardly anything": ("openai", {}),
}


def pages(told: Mapping[str, bytes]) -> Script:
    async def script(turn: Turn) -> None:
        body = told.get(turn.path)
        await turn.write(whole(body or b"{}", status=404 if body is None else 200))

    return script


@pytest.mark.parametrize("name", SERVERS)
async def test_what_answers_there_is_found_out(name):
    kind, told = SERVERS[name]
    async with scripted(pages(told)) as server:
        worker, watched = remote(server.url), Watched()
        await worker.start(watched)
        assert worker.kind == kind
        assert worker.watch.evidence
        if KINDS[kind].pages and "/info" not in told and "props" not in name and "get_server_info" not in str(told):
            running = worker.load().running
            assert running is not None
            assert running.value > 0
        else:
            assert worker.load() == WorkerLoad(), "unknown, not zero"
        await worker.close()


async def test_a_kind_that_is_told_is_not_guessed():
    async with scripted(pages(OWNED["vllm"] | {"/load": HEADWAY_LOAD})) as server:
        worker = remote(server.url, kind="headway")
        await worker.start(Watched())
        assert worker.kind == "headway"
        assert worker.models == {"m"}
        assert worker.load().waiting is not None
        assert not [turn for turn in server.asked if turn.path == "/props"]
        await worker.close()


async def test_all_of_vllms_signals():
    told = OWNED["vllm"] | {"/metrics": vllm_page(ttft=(10, 10), steps=10, step_tokens=100)}
    async with scripted(pages(told)) as server:
        worker, watched = remote(server.url), Watched()
        await worker.start(watched)
        told["/metrics"] = vllm_page(ttft=(13, 12), steps=20, step_tokens=700, kv=0.5)
        await until(lambda: worker.load().ttft_s is not None)
        load = worker.load()
        values = {name: getattr(load, name) and getattr(load, name).value for name in load.__dataclass_fields__}
        assert values == {
            "running": 3,
            "waiting": 2,
            "kv_used_ratio": 0.5,
            "kv_capacity_tokens": 1600,
            "batch_tokens": 60,
            "ttft_s": 1.5,
            "itl_s": None,
            "memory_headroom_ratio": None,
            "accelerator_used_ratio": None,
        }
        heard = len(watched.loads)
        await until(lambda: len(watched.loads) > heard + 3)
        ttft, running = worker.load().ttft_s, worker.load().running
        assert ttft is not None
        assert running is not None
        assert ttft.at_ns < running.at_ns, "what nothing renews ages"
        assert watched.loads[-1].ttft_s is None, "only what is new is told"
        await worker.close()


async def test_a_scrape_that_fails_keeps_what_was_known_and_is_counted():
    told = dict(OWNED["vllm"]) | {"/metrics": vllm_page()}
    async with scripted(pages(told)) as server:
        worker = remote(server.url)
        await worker.start(Watched())
        for bad in (b"<html>", b"vllm:num_requests_running{} NaN\n", b"\xff\xff"):
            told["/metrics"] = bad
            more = worker.watch.scrape_failures + 1
            await until(lambda more=more: worker.watch.scrape_failures >= more)  # type: ignore[misc]
        known = worker.load().running
        assert known is not None
        assert known.value == 3
        await worker.close()


async def test_never_two_of_a_kind_are_on_their_way():
    now: dict[str, int] = {}
    most: dict[str, int] = {}

    async def script(turn: Turn) -> None:
        now[turn.path] = now.get(turn.path, 0) + 1
        most[turn.path] = max(most.get(turn.path, 0), now[turn.path])
        await asyncio.sleep(0.1)  # longer than the interval
        now[turn.path] -= 1
        found = {"/metrics": vllm_page(), "/v1/models": models("m", owner="vllm"), "/health": b"{}"}.get(turn.path)
        await turn.write(whole(found or b"", status=200 if found else 404))

    async with scripted(script) as server:
        worker = remote(server.url)
        await worker.start(Watched())
        await asyncio.sleep(0.6)
        assert most["/metrics"] == most["/health"] == 1
        await worker.close()


async def test_a_page_that_is_not_there_is_not_asked_for_again():
    async with scripted(pages(OWNED["llamacpp"] | {"/slots": b'[{"is_processing":true}]'})) as server:
        worker = remote(server.url, kind="llamacpp")
        await worker.start(Watched())
        await until(lambda: sum(turn.path == "/slots" for turn in server.asked) > 5)
        assert sum(turn.path == "/metrics" for turn in server.asked) == 1
        await worker.close()


@pytest.mark.parametrize(
    ("status", "well", "reason"),
    [(200, True, ""), (404, True, ""), (503, False, "/health answers 503"), (401, False, "it refuses our key")],
)
async def test_health(status, well, reason):
    async def script(turn: Turn) -> None:
        await turn.write(whole(b"{}", status=status if turn.path == "/health" else 404))

    async with scripted(script) as server:
        worker, watched = remote(server.url), Watched()
        await worker.start(watched)
        assert watched.checks[0][0] is well
        assert watched.checks[0][1].startswith(reason)
        await worker.close()


async def test_a_silent_worker_is_not_well():
    async def script(turn: Turn) -> None:
        await turn.gone()

    async with scripted(script) as server:
        worker, watched = remote(server.url), Watched()
        await asyncio.wait_for(worker.start(watched), 5)
        assert watched.checks[0] == (False, "no end within 1 s")
        await worker.close()


async def test_a_worker_that_comes_back_as_another_is_noticed():
    """Down, then at the same address another kind with another model: nothing of the first is left."""
    watched = Watched()
    async with scripted(pages(OWNED["vllm"] | {"/metrics": vllm_page()})) as server:
        port = server.port
        worker = remote(server.url)
        await worker.start(watched)
        assert (worker.kind, set(worker.models)) == ("vllm", {"m"})
    await until(lambda: not watched.checks[-1][0])
    assert watched.checks[-1][1]
    other = {"/v1/models": models("n", owner="headway"), "/load": HEADWAY_LOAD, "/health": b"{}"}
    async with scripted(pages(other), port=port):
        await until(lambda: watched.checks[-1][0], 10)
        assert (worker.kind, set(worker.models)) == ("headway", {"n"})
        assert watched.models == [frozenset({"m"}), frozenset({"n"})]
        assert worker.load().kv_capacity_tokens is None, "that was the first one's"
        await worker.close()


async def test_another_model_is_noticed_without_a_pause():
    told = dict(OWNED["vllm"]) | {"/metrics": vllm_page(generated=100)}
    async with scripted(pages(told)) as server:
        worker, watched = remote(server.url), Watched()
        await worker.start(watched)
        told["/v1/models"], told["/metrics"] = models("n", owner="vllm"), vllm_page(generated=1)
        await until(lambda: worker.models == {"n"})
        assert watched.models[-1] == {"n"}
        await worker.close()


async def test_models_that_are_told_are_believed(caplog):
    async with scripted(pages(OWNED["vllm"])) as server:
        worker, watched = remote(server.url, models=frozenset({"alias"})), Watched()
        await worker.start(watched)
        assert worker.models == {"alias"}
        assert watched.models == [frozenset({"alias"})]
        assert "does not list alias" in caplog.text
        await worker.close()


async def test_a_defect_of_a_watcher_does_not_end_the_watching(caplog):
    class Broken(Watched):
        def loaded(self, worker_id, load):
            super().loaded(worker_id, load)
            if len(self.loads) == 2:
                raise ValueError("a defect")

    async with scripted(pages(OWNED["vllm"] | {"/metrics": vllm_page()})) as server:
        worker, watched = remote(server.url), Broken()
        await worker.start(watched)
        await until(lambda: len(watched.loads) > 4)
        assert "a defect" in caplog.text
        await worker.close()


async def test_memory_of_its_gpus():
    gpu = {"/metrics": b'DCGM_FI_DEV_FB_FREE{gpu="0"} 30\nDCGM_FI_DEV_FB_USED{gpu="0"} 10\n'}
    async with scripted(pages(OWNED["vllm"])) as server, scripted(pages(gpu)) as exporter:
        worker = remote(server.url, gpu_metrics_url=f"{exporter.url}/metrics")
        await worker.start(Watched())
        await until(lambda: worker.load().memory_headroom_ratio is not None)
        headroom = worker.load().memory_headroom_ratio
        assert headroom is not None
        assert headroom.value == 0.75
        await worker.close()
