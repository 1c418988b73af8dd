"""What `/metrics` tells of an engine and of a gateway: complete, as Prometheus wants it, and under vLLM's names."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.request import Slo
from headway.gateway.fleet.config import FleetConfig
from headway.gateway.fleet.metrics import FLEET_METRICS
from headway.metrics.breakdown import MOST_NAMED, Ended
from headway.metrics.names import OUTCOMES, VLLM_DURATION_BUCKETS_S, VLLM_ITL_BUCKETS_S
from headway.metrics.vllm_names import VLLM_METRICS
from tests.gateway.fake import SNAPSHOT, Client, FakeBackend, serving, until
from tests.gateway.fleet.gateway import CHAT, HELLO, over
from tests.gateway.fleet.upstream import upstreams

ASK = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def told(client: Client) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(await text_of(client)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def text_of(client: Client) -> str:
    async with client.session.get("/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return await response.text()


def lint(text: str) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout + done.stderr


def outcomes(series: dict[tuple[tuple[str, str], ...], float]) -> dict[str, float]:
    return {dict(labels)["outcome"]: value for labels, value in series.items() if value}


async def test_promtool_finds_nothing_in_an_engine_s_and_a_gateway_s():
    async with serving(FakeBackend()) as client:
        await client.post("/v1/chat/completions", ASK)
        assert lint(await text_of(client)) == ""
    async with upstreams(2) as made, over(made) as fleet:
        await fleet.stream(CHAT, HELLO)
        assert lint(await text_of(fleet)) == ""


async def test_every_name_of_a_gateway_is_in_the_reference():
    async with upstreams(1) as made, over(made) as fleet:
        await fleet.stream(CHAT, HELLO)
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", await text_of(fleet), re.MULTILINE))
    # Only where limits are shared, and with --shadow.
    sometimes = {name for name in FLEET_METRICS if name.startswith(("headway_quota_", "headway_shadow_"))}
    for name, metric in FLEET_METRICS.items():
        if name not in sometimes:
            assert kinds.get(name) == metric.kind, name


async def test_who_runs_and_who_waits_is_told_by_tenant_lane_and_model():
    async with upstreams(1) as made, over(made, limits={"max_running": 1}) as fleet:
        made[0].gap_s = 0.05
        running = asyncio.ensure_future(fleet.stream(CHAT, HELLO))
        await until(lambda: made[0].inside == 1)
        waiting = [asyncio.ensure_future(fleet.stream(CHAT, HELLO)) for _ in range(2)]
        await until(lambda: fleet.front.admission.waiting == 2)
        now = await told(fleet)
        for dimension, name in (("tenant", ""), ("lane", "all"), ("model", "tiny")):
            labels = ((dimension, name),)
            assert now[f"headway_{dimension}_running"][labels] == 1, dimension
            assert now[f"headway_{dimension}_waiting"][labels] == 2, dimension
        await asyncio.gather(running, *waiting)
        now = await told(fleet)
        assert now["headway_model_running"] == now["headway_model_waiting"] == {(("model", "tiny"),): 0}


async def test_an_engine_s_calls_end_once_each_by_how_they_ended():
    async with serving(FakeBackend()) as client:
        fast = {"x-slo-ttft-ms": "60000", "x-slo-itl-ms": "60000"}
        slow = {"x-slo-ttft-ms": "0.000001"}
        for headers in ({}, fast, slow):
            status, _, _ = await client.post("/v1/chat/completions", ASK, **headers)
            assert status == 200
        await client.stream("/v1/chat/completions", ASK)
        assert (await client.post("/v1/chat/completions", {"model": "fake"}))[0] == 400
        assert (await client.post("/v1/chat/completions", {**ASK, "model": "other"}))[0] == 404
        found = await told(client)
    assert outcomes(found["headway_requests_total"]) == {"good": 3, "late": 1, "invalid": 2}
    assert set(OUTCOMES) == {dict(labels)["outcome"] for labels in found["headway_requests_total"]}
    assert found["headway_promises_total"] == {
        (("kept", "yes"), ("promise", "ttft")): 1,
        (("kept", "no"), ("promise", "ttft")): 1,
        (("kept", "yes"), ("promise", "itl")): 1,
    }
    assert found["headway_request_output_tokens_count"][()] == 4
    assert found["headway_model_output_tokens_total"] == {(("model", "fake"),): 8}
    assert found["headway_lane_time_to_first_token_seconds_count"] == {(("lane", "short"),): 4}
    # The same gaps, whoever they are counted by.
    assert found["headway_lane_inter_token_latency_seconds_count"] == {
        (("lane", "short"),): found["headway_inter_token_latency_seconds_count"][()]
    }


async def test_a_gateway_s_calls_are_counted_by_tenant_lane_worker_and_model():
    async with upstreams(2) as made, over(made) as fleet:
        for _ in range(3):
            await fleet.stream(CHAT, HELLO)
        await fleet.post(CHAT, HELLO)
        await fleet.post(CHAT, {"model": "tiny"})
        found = await told(fleet)
    assert outcomes(found["headway_requests_total"]) == {"good": 4, "invalid": 1}
    for dimension in ("tenant", "lane", "worker", "model"):
        series = found[f"headway_{dimension}_requests_total"]
        good = [value for labels, value in series.items() if ("outcome", "good") in labels]
        assert sum(good) == 4, dimension
        assert sum(found[f"headway_{dimension}_output_tokens_total"].values()) == 16
        assert sum(found[f"headway_{dimension}_time_to_first_token_seconds_count"].values()) == 3
    assert found["headway_prefill_tokens_total"][()] == 40
    assert found["headway_decode_tokens_total"][()] == 12  # the first token of each is its prefill's


async def test_a_refusal_adds_nothing_up():
    """A call that ended is told with the others of its batch, or when somebody reads: overload must not end that."""
    async with upstreams(1) as made, over(made) as fleet:
        await fleet.stream(CHAT, HELLO)
        (trail,), figures = list(fleet.service.trails), fleet.service.figures
        for _ in range(3):
            assert (await fleet.post(CHAT, {"model": "tiny"}))[0] == 400
        assert trail.gaps is not None, "nobody has read it yet"
        assert {how: count for how, count in figures.calls.outcomes.items() if count} == {"good": 1, "invalid": 3}
        assert trail.gaps is None


async def test_a_limited_tenant_is_seen_and_so_is_its_weight():
    limits = Tenants(TenantLimits(requests_per_minute=2, weight=3.0))
    async with upstreams(1) as made, over(made, tenants=limits) as fleet:
        statuses = [(await fleet.post(CHAT, HELLO))[0] for _ in range(5)]
        found = await told(fleet)
    assert statuses == [200, 200, 429, 429, 429]
    assert outcomes(found["headway_tenant_requests_total"]) == {"good": 2, "limited": 3}
    assert found["headway_tenant_weight"] == {(("tenant", ""),): 3}


async def test_tenants_beyond_the_busiest_are_others():
    async with upstreams(1) as made, over(made) as fleet:
        calls = fleet.service.figures.calls
        for number in range(3 * MOST_NAMED):
            calls.ended(Ended("good", 100, 0, 10, labels={"tenant": f"t{number}"}))
        found = await told(fleet)
    assert len(found["headway_tenant_output_tokens_total"]) == MOST_NAMED + 1
    assert len(found["headway_tenant_weight"]) == MOST_NAMED


async def test_vllm_s_names_tell_the_same_numbers():
    async with serving(FakeBackend(), metrics_names="vllm") as client:
        for _ in range(3):
            await client.stream("/v1/chat/completions", ASK)
        text, found = await text_of(client), await told(client)
    of = (("engine", "0"), ("model_name", "fake"))
    assert found["vllm:num_requests_running"] == {of: SNAPSHOT.running}
    assert found["vllm:num_requests_waiting"] == {of: SNAPSHOT.waiting}
    assert found["vllm:kv_cache_usage_perc"] == {of: SNAPSHOT.kv_usage_ratio}
    # vLLM's semantics: a prompt once, whatever of it was cached or computed again; and first tokens are tokens.
    assert found["vllm:prompt_tokens_total"] == {of: found["headway_request_input_tokens_sum"][()]}
    assert found["vllm:generation_tokens_total"] == {of: found["headway_request_output_tokens_sum"][()]}
    assert found["vllm:prompt_tokens_total"] != {of: SNAPSHOT.prefill_tokens_total}
    assert found["vllm:request_success_total"][(*of[:1], ("finished_reason", "abort"), *of[1:])] == 1
    for theirs, ours in (
        ("vllm:time_to_first_token_seconds", "headway_time_to_first_token_seconds"),
        ("vllm:inter_token_latency_seconds", "headway_inter_token_latency_seconds"),
        ("vllm:e2e_request_latency_seconds", "headway_request_duration_seconds"),
        ("vllm:request_prompt_tokens", "headway_request_input_tokens"),
    ):
        assert found[f"{theirs}_count"][of] == found[f"{ours}_count"][()] > 0
        assert found[f"{theirs}_sum"][of] == found[f"{ours}_sum"][()]
    bounds = {
        name: [float(one) for one in re.findall(rf'^{name}_bucket{{.*le="([^"+]+)"}}', text, re.MULTILINE)]
        for name in ("vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds")
    }
    assert bounds == {
        "vllm:inter_token_latency_seconds": list(VLLM_ITL_BUCKETS_S),
        "vllm:e2e_request_latency_seconds": list(VLLM_DURATION_BUCKETS_S),
    }
    kinds = dict(re.findall(r"^# TYPE (vllm:\S+) (\S+)$", text, re.MULTILINE))
    assert {name: metric.kind for name, metric in VLLM_METRICS.items() if name in kinds} == kinds


async def test_without_being_asked_nobody_gets_vllm_s_names():
    async with serving(FakeBackend()) as client:
        assert "vllm:" not in await text_of(client)


async def test_a_gateway_tells_vllm_s_names_too():
    async with upstreams(1) as made, over(made, edge={"metrics_names": "vllm"}) as fleet:
        await asyncio.sleep(0.3)  # until its worker has told its load
        await fleet.stream(CHAT, HELLO)
        await fleet.post(CHAT, HELLO)
        found = await told(fleet)
    of = (("engine", "0"), ("model_name", "tiny"))
    assert found["vllm:kv_cache_usage_perc"] == {of: pytest.approx(0.1)}
    assert found["vllm:prompt_tokens_total"] == {of: 20}
    assert found["vllm:generation_tokens_total"] == {of: 8}, "in a stream or in one piece"
    assert "vllm:num_preemptions_total" not in found  # unknown is not zero


@pytest.mark.parametrize("slo", [Slo(), Slo(ttft_ns=500_000_000, itl_ns=150_000_000)])
async def test_what_is_promised_is_told_by_engines_and_gateways(slo: Slo):
    """And has no value where nothing is."""
    wanted = {"headway_slo_ttft_seconds": 0.5, "headway_slo_itl_seconds": 0.15} if slo.itl_ns else {}
    backend = FakeBackend()
    backend.slo = slo
    config = FleetConfig(default_slo=slo)
    async with serving(backend) as client, upstreams(1) as made, over(made, config=config) as fleet:
        for one in (client, fleet):
            said = await told(one)
            assert {name: value[()] for name, value in said.items() if name.startswith("headway_slo_")} == wanted
