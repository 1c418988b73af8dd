"""Other servers' numbers under our names, on the run's time axis; a failing scrape is a gap."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from time import monotonic_ns
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.loadtest.client.address import parse_url
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Environment, Signals
from headway.loadtest.runner.run import run
from headway.loadtest.side.channel import channel_to
from headway.loadtest.side.environment import client_facts, environment_of
from headway.loadtest.side.noted import check_notes, note
from headway.loadtest.side.scrape import Scraper, channel_of
from headway.metrics.worker_signals import read_metrics
from headway.wire.blocking import Channel
from tests.loadtest.servers import Server, Turn, plan_for, serving, talks, whole

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+03
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 2000.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="4000"} 1.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.001"} 0.0
"""


# -- over a run --------------------------------------------------------------------------------------------------------


def pages(answers: dict[str, list[bytes]]) -> Any:
    """Each path answers its list one after the other, the last for ever; other paths are 404."""

    async def script(turn: Turn) -> None:
        if turn.asked.method == "POST":
            await talks(turn)
            return
        left = answers.get(turn.asked.path, [whole(b"{}", status=404)])
        turn.write(left.pop(0) if len(left) > 1 else left[0])

    return script


def text(body: str) -> bytes:
    return whole(body.encode(), type="text/plain")


async def polled(server: Server, seconds: float = 0.5, **plan: Any) -> Signals:
    given = dataclasses.replace(plan_for(server.url), **plan)
    scraper = Scraper(*channel_of(given.template, given.tls, given.metrics_url), 0.05)
    scraper.start(monotonic_ns())
    await asyncio.sleep(seconds)
    return await asyncio.to_thread(scraper.stop)


async def test_gaps_and_names_that_come_later() -> None:
    both = text("vllm:num_requests_running 3\nvllm:num_requests_waiting 0\n")
    answers = [
        text("vllm:num_requests_running 1\n"),
        whole(b"", status=500),
        text("vllm:num_requests_running {\n"),
        both,
    ]
    async with serving(pages({"/metrics": answers}), pages=True) as server:
        signals = await polled(server)
    assert signals.source == "vllm"
    assert signals.series["running"][:4] == [1, None, None, 3]
    assert signals.series["waiting"][:4] == [None, None, None, 0]
    assert {len(values) for values in signals.series.values()} == {len(signals.times_s)}
    assert signals.times_s == sorted(signals.times_s)
    assert signals.times_s[0] >= 0


async def test_a_server_without_metrics_is_asked_for_its_load() -> None:
    load = whole(b'{"step_tokens": 0, "running": 2}')
    async with serving(pages({"/load": [load]}), pages=True) as server:
        signals = await polled(server)
    assert signals.source == "headway"
    assert set(signals.series["running"]) == {2}


async def test_what_no_run_keeps_is_not_kept() -> None:
    for page, told in (
        (VLLM, {"running", "waiting", "kv_used_ratio", "preemptions_total", "prompt_tokens_total"}),
        ("sglang:max_total_num_tokens 9\nDCGM_FI_DEV_FB_FREE 1\n", None),
    ):
        async with serving(pages({"/metrics": [text(page)]}), pages=True) as server:
            given = plan_for(server.url)
            scraper = Scraper(*channel_of(given.template, given.tls), 0.05)
            sample = await asyncio.to_thread(scraper.ask)
            await asyncio.to_thread(scraper.stop)
        assert (
            sample is None
            if told is None
            else sample is not None and set(sample.values) == told | {"generation_tokens_total"}
        )


@pytest.mark.parametrize("path", ["/download/metrics", "/payload", "/x/load", "/x/loads", "/metrics"])
async def test_a_page_is_read_as_what_it_is(path: str) -> None:
    as_json = path.endswith(("/load", "/loads"))
    page = whole(b'{"step_tokens": 0, "running": 3}') if as_json else text("headway_sequences_running 3\n")
    async with serving(pages({path: [page]}), pages=True) as server:
        signals = await polled(server, 0.2, metrics_url=server.url + path)
    assert (signals.source, set(signals.series["running"])) == ("headway", {3})


async def test_nothing_to_scrape() -> None:
    async with serving(pages({}), pages=True) as server:
        assert await polled(server, 0.2) == Signals()


TENANTS = {"one": {"Authorization": "Bearer secret-of-one"}, "two": {"Authorization": "Bearer secret-of-two"}}


@pytest.mark.parametrize("keys", [{"headers": {"Authorization": "Bearer secret"}}, {"tenant_headers": TENANTS}])
async def test_metrics_elsewhere_get_no_key(keys: dict[str, Any]) -> None:
    page = pages({"/metrics": [text("tgi_queue_size 1\n")]})
    async with serving(page, pages=True) as there, serving(page, pages=True) as server:
        given = plan_for(server.url, **keys)
        for url in (f"{there.url}/metrics", f"{server.url}/metrics", None):
            scraper = Scraper(*channel_of(given.template, given.tls, url), 0.05)
            sample = await asyncio.to_thread(scraper.ask)
            await asyncio.to_thread(scraper.stop)
            assert sample is not None
    assert ["authorization" in asked.headers for asked in there.asked] == [False]
    assert [asked.headers["authorization"].partition("-")[0] for asked in server.asked] == ["Bearer secret"] * 2


@pytest.mark.parametrize(
    ("headers", "sent"), [({}, "Bearer secret-of-one"), ({"authorization": "Bearer common"}, "Bearer common")]
)
async def test_the_first_tenants_key_is_for_want_of_a_common_one(headers: dict[str, str], sent: str) -> None:
    async with serving(pages({"/x": [whole(b'{"a": 1}')]}), pages=True) as server:
        given = plan_for(server.url, headers=headers, tenant_headers=TENANTS)
        channel = channel_to(given.template, given.tls, 5.0)
        assert await asyncio.to_thread(channel.json, "/x") == {"a": 1}
        channel.close()
    assert [asked.headers["authorization"] for asked in server.asked] == [sent]


async def test_a_run_has_its_servers_signals_and_facts() -> None:
    answers = {
        "/metrics": [text(VLLM)],
        "/version": [whole(b'{"version": "0.32.0"}')],
        "/v1/models": [whole(b'{"data": [{"id": "m", "max_model_len": 4096}]}')],
    }
    async with serving(pages(answers), pages=True) as server:
        plan = dataclasses.replace(plan_for(server.url, requests=2), scrape_interval_s=0.05)
        measured = await run(plan)
    assert measured.signals.source == "vllm"
    assert measured.signals.series["kv_used_ratio"][0] == 0.75
    told = measured.environment
    assert (told.framework, told.model) == ("vLLM 0.32.0", "m")
    assert told.flags["max_model_len"] == "4096"
    assert told.flags["cache_dtype"] == "auto"
    assert told.precision is None, "unknown stays unknown"
    assert told.client == client_facts() | {"arrivals": "stamped by the kernel"}


async def test_facts_of_other_servers() -> None:
    sglang = b'{"version": "0.5", "dtype": "bfloat16", "quantization": "fp8", "tp_size": 2, "device": "cuda", "x": 1}'
    answers = {
        "/v1/models": [whole(b'{"data": [{"id": "m", "owned_by": "sglang"}]}'), whole(b"[]")],
        "/get_server_info": [whole(sglang)],
        "/info": [whole(b'{"version": "3.3", "model_dtype": "torch.float16", "model_device_type": "cuda"}')],
    }
    async with serving(pages(answers), pages=True) as server:
        address, _ = parse_url(server.url)

        def ask(text: str) -> Any:
            channel = Channel(address, {}, None, 1.0)
            try:
                return environment_of(channel, "", "/v1", "m", read_metrics(text))
            finally:
                channel.close()

        told = await asyncio.to_thread(ask, "")
        assert (told.framework, told.precision, told.quantisation) == ("SGLang 0.5", "bfloat16", "fp8")
        assert (told.device, told.device_count) == ("cuda", 2)
        told = await asyncio.to_thread(ask, "tgi_queue_size 1\n")
        assert (told.framework, told.precision, told.device) == ("TGI 3.3", "float16", "cuda")
        told = await asyncio.to_thread(ask, "")
        assert (told.framework, told.flags) == (None, {})


def test_this_machine() -> None:
    facts = client_facts()
    assert set(facts) == {"headway", "python", "system", "cpu", "cores"}
    assert int(facts["cores"]) >= 1


# -- what is noted, and what our own server tells ----------------------------------------------------------------------


def test_notes_fill_what_the_server_does_not_tell() -> None:
    found = Environment(precision="bf16")
    notes = {
        "precision": "fp8", "quantization": "awq", "gpu": "H100", "gpus": "2", "memory": "80GiB", "framework": "own 1",
        "room": "cold",
    }  # fmt: skip
    note(found, notes.items())
    assert (found.precision, found.quantisation, found.device, found.device_count) == ("bf16", "awq", "H100", 2)
    assert (found.memory_bytes, found.framework) == (80 * 2**30, "own 1")
    assert found.noted == notes


@given(st.integers(1, 10**15))
def test_a_size_is_bytes_or_has_a_unit(size: int) -> None:
    for text, expected in ((str(size), size), (f"{size} KiB", size * 1024), (f"{size}MB", size * 10**6)):
        found = Environment()
        note(found, [("memory", text)])
        assert found.memory_bytes == pytest.approx(expected)


@pytest.mark.parametrize("told", [("memory", "much"), ("device_count", "0"), ("gpus", "two"), ("precision", "")])
def test_a_note_that_its_field_cannot_take(told: tuple[str, str]) -> None:
    with pytest.raises(InvalidPlan, match=f"--note {told[0]}"):
        check_notes([told])


async def test_our_own_server_tells_precision_and_device() -> None:
    told = {"dtype": "auto", "precision": "bf16", "kv_cache_dtype": "u8", "executor": "openvino", "device": "CPU"}
    answers = {"/version": [whole(b'{"version": "1"}')], "/admin/config": [whole(json.dumps(told).encode())]}
    for config, known in (("/admin/config", True), ("/nothing", False)):
        mine = {"/version": answers["/version"], config: answers["/admin/config"]}
        async with serving(pages(mine), pages=True) as server:
            address, _ = parse_url(server.url)
            channel = Channel(address, {}, None, 5.0)
            sample = read_metrics("headway_sequences_running 1\n")
            found = await asyncio.to_thread(environment_of, channel, "", "/v1", "m", sample)
            channel.close()
        assert found.framework == "headway 1"
        conditions = (found.precision, found.quantisation, found.device, found.device_count)
        assert all(value is not None for value in conditions) == known
        assert not any(value is not None for value in conditions) or known
        if known:
            assert found.precision == "bf16"
            assert found.flags["kv_cache_dtype"] == "u8"
            assert "CPU" in str(found.device)


async def test_an_answer_that_never_ends_does_not_hold_up_the_end() -> None:
    """Metrics of which a byte comes now and then, while the run ends."""

    async def trickles(turn: Turn) -> None:
        turn.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(400):
            turn.write(b"#")
            await asyncio.sleep(0.05)

    async with serving(trickles, pages=True) as server:
        plan = plan_for(server.url)
        channel, places = channel_of(plan.template, plan.tls, None, timeout_s=60.0)
        scraper = Scraper(channel, places, 0.1)
        scraper.start(monotonic_ns())
        await asyncio.sleep(0.3)
        async with asyncio.timeout(5):
            signals = await asyncio.to_thread(scraper.stop)
    assert not signals.source
