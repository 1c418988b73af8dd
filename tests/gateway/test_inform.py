"""Models, tokens, health, metrics, load and the API's description."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.core.errors import EngineFailed
from headway.engine import Engine
from headway.engine.stream import Delta
from headway.gateway import Backend, create_app
from headway.metrics.names import METRICS
from tests.gateway.fake import FakeBackend, says, serving

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def engine_is_a_backend(engine: Engine) -> Backend:
    """Checked by mypy: the engine fits the gateway without naming it."""
    return engine


async def test_models() -> None:
    async with serving(FakeBackend(), served_model_name="org/name") as client:
        _, listed = await client.get("/v1/models")
        assert [card["id"] for card in listed["data"]] == ["org/name"]
        status, card = await client.get("/v1/models/org/name")
        assert (status, card) == (200, listed["data"][0])
        assert card["max_model_len"] == 200
        assert card["created"] > 1_700_000_000
        assert card["sampling_defaults"]["temperature"] == 1
        status, body = await client.get("/v1/models/other")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert (await client.post("/v1/chat/completions", {**HELLO, "model": "fake"}))[0] == 404
        assert (await client.post("/v1/chat/completions", {**HELLO, "model": "org/name"}))[1]["model"] == "org/name"


async def test_tokenize_and_back() -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        _, told, _ = await client.post("/tokenize", {"prompt": "go on", "return_token_strs": True})
        tokens = backend.tokenizer.encode("go on")
        assert told == {
            "count": len(tokens),
            "max_model_len": 200,
            "tokens": tokens,
            "token_strs": ["go", " on"],
        }
        _, chat, _ = await client.post("/tokenize", HELLO)
        assert chat["tokens"] == backend.tokenizer.encode("user: hello\nassistant:")
        assert chat["token_strs"] is None
        _, text, _ = await client.post("/detokenize", {"tokens": tokens})
        assert text == {"prompt": "go on"}
        assert (await client.post("/detokenize", {"tokens": []}))[1] == {"prompt": ""}


async def test_index_version_and_ping() -> None:
    async with serving(FakeBackend()) as client:
        status, index = await client.get("/")
        assert (status, index["server"], index["models"]) == (200, "headway", ["fake"])
        assert {"POST /v1/chat/completions", "GET /health", "GET /"} <= set(index["routes"])
        assert await client.get("/version") == (200, {"version": index["version"]})
        assert await client.get("/ping") == (200, {"status": "ok"})


async def test_a_slash_at_the_end_changes_nothing() -> None:
    async with serving(FakeBackend(), served_model_name="org/name") as client:
        assert (await client.get("/v1/models/?x=%2F"))[1] == (await client.get("/v1/models"))[1]
        assert (await client.get("/v1/models/org/name/"))[1]["id"] == "org/name"
        assert (await client.get("/v1/models/org%2Fname//"))[1]["id"] == "org/name"
        for path in ("/v1/chat/completions/", "/v1/chat/completions//?a=b"):
            status, body, _ = await client.post(path, HELLO)
            assert (status, body["object"]) == (200, "chat.completion")
        assert (await client.stream("/v1/completions/", {"prompt": "x"}))[-1] == "[DONE]"
        assert (await client.get("/v1/"))[0] == 404
        now = await scrape(client.session)
    assert now["headway_http_responses_total{route=/v1/chat/completions}{status=200}"] == 2


async def test_load() -> None:
    async with serving(FakeBackend()) as client:
        status, load = await client.get("/load")
    assert status == 200
    assert (load["ready"], load["requests"], load["running"], load["step_tokens"]) == (True, 3, 2, 34)
    assert load["ended_total"] == {"stop": 5, "cancelled": 1}


async def scrape(session: aiohttp.ClientSession) -> dict[str, float]:
    async with session.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = text_string_to_metric_families(await response.text())
    samples = {}
    for family in families:
        for sample in family.samples:
            labels = "".join(f"{{{k}={v}}}" for k, v in sample.labels.items())
            samples[sample.name + labels] = sample.value
    return samples


async def test_metrics_show_the_three_concurrencies_and_prefill_beside_decode() -> None:
    async with serving(FakeBackend()) as client:
        now = await scrape(client.session)
    assert now["headway_requests_in_service"] == 3
    assert now["headway_sequences_running"] == 2
    assert (now["headway_step_tokens"], now["headway_kv_resident_tokens"]) == (34, 500)
    assert (now["headway_lane_running{lane=short}"], now["headway_lane_waiting{lane=short}"]) == (2, 1)
    assert (now["headway_model_running{model=fake}"], now["headway_model_waiting{model=fake}"]) == (2, 1)
    assert (now["headway_prefill_tokens_total"], now["headway_decode_tokens_total"]) == (1000, 200)
    assert (now["headway_prefill_seconds_total"], now["headway_decode_seconds_total"]) == (1.5, 2.5)
    assert now["headway_kv_usage_ratio"] == 0.25
    assert now["headway_requests_ended_total{reason=cancelled}"] == 1
    assert now["headway_requests_refused_total{code=queue_full}"] == 7
    assert now["headway_engine_ready"] == 1


async def test_what_the_gateway_observes() -> None:
    def script(request):
        first, second = says(request, " good", " day")
        return [first, Delta("x", [5, 6, 7]), second]

    async with serving(FakeBackend(script)) as client:
        await client.post("/v1/chat/completions", {**HELLO, "n": 2})
        await client.post("/v1/chat/completions", {**HELLO, "temperature": 9})
        await client.stream("/v1/completions", {"prompt": "x"})
        now = await scrape(client.session)
    assert now["headway_time_to_first_token_seconds_count"] == 3  # one per sequence
    assert now["headway_inter_token_latency_seconds_count"] == 3 * 4  # a chunk of three tokens is three gaps
    assert now["headway_request_duration_seconds_count"] == 2
    assert now["headway_network_seconds_count"] == 3  # of the refused one too
    assert now["headway_tokenise_seconds_count"] == 2
    assert now["headway_gateway_seconds_count"] == 2
    assert now["headway_queue_seconds_sum"] == 3 * 0.002
    assert now["headway_prefill_seconds_sum"] == 3 * 0.003
    assert round(now["headway_decode_seconds_sum"], 6) == 3 * 0.004
    assert now["headway_http_responses_total{route=/v1/chat/completions}{status=200}"] == 1
    assert now["headway_http_responses_total{route=/v1/chat/completions}{status=400}"] == 1
    assert now["headway_http_requests_in_flight"] == 1  # this scrape


async def test_an_upload_is_network_and_not_tokenising() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"prompt": '
        await asyncio.sleep(0.3)
        yield b'"x"}'

    async with serving(FakeBackend()) as client:
        async with client.session.post("/v1/completions", data=slowly()) as response:
            told = response.headers["Server-Timing"]
        now = await scrape(client.session)
    parts = {name: float(ms) for name, ms in (part.split(";dur=") for part in told.split(", "))}
    assert list(parts) == ["network", "tokenise", "queue", "prefill", "decode", "gateway", "total"]
    assert parts["network"] > 200
    assert parts["tokenise"] < 200
    assert now["headway_network_seconds_sum"] > 0.2
    assert now["headway_tokenise_seconds_sum"] < 0.2


@pytest.mark.parametrize("error", [EngineFailed("the engine crashed"), ZeroDivisionError("a defect")])
async def test_a_stream_that_fails_is_counted_as_one(error: Exception) -> None:
    backend = FakeBackend(lambda request: [*says(request, " good", " day")[:1], error])
    async with serving(backend) as client:
        await client.stream("/v1/completions", {"prompt": "x"})
        now = await scrape(client.session)
    code = "engine_failed" if isinstance(error, EngineFailed) else "internal_error"
    assert now[f"headway_stream_errors_total{{code={code}}}"] == 1
    assert now["headway_http_responses_total{route=/v1/completions}{status=200}"] == 1  # so it had begun


async def test_counting_tokens_does_not_hold_up_generation() -> None:
    """However many texts are counted, and however slowly, prompts have threads of their own."""
    go_on = threading.Event()
    backend = FakeBackend()
    encode = backend.tokenizer.encode

    class Slow(type(backend.tokenizer)):  # type: ignore[misc]
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            if text == "slow":
                go_on.wait(10)
            return encode(text)

    backend.tokenizer = Slow()
    async with serving(backend) as client:
        counts = [asyncio.create_task(client.post("/tokenize", {"prompt": "slow"})) for _ in range(8)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            assert (await client.post("/v1/chat/completions", HELLO))[0] == 200
        assert not any(count.done() for count in counts)
        go_on.set()
        assert {status for status, _, _ in await asyncio.gather(*counts)} == {200}


async def test_every_exported_name_is_in_the_reference_and_the_other_way_round() -> None:
    async with serving(FakeBackend()) as client:
        await client.post("/v1/chat/completions", HELLO)
        async with client.session.get("/metrics") as response:
            text = await response.text()
    exported = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    created = {name for name in exported if name.endswith("_created")}  # prometheus-client's own additions
    assert {name: kind for name, kind in exported.items() if name not in created} == {
        metric.name: metric.kind for metric in METRICS.values()
    }


async def test_the_description() -> None:
    async with serving(FakeBackend()) as client:
        status, told = await client.get("/openapi.json")
        assert status == 200
        assert told["openapi"].startswith("3.1")
        for path, methods in told["paths"].items():
            for method in methods:  # every documented route is there
                async with client.session.request(method, path.replace("{model}", "fake")) as response:
                    assert response.status not in {404, 405}
    served = {resource.canonical.replace(":.+", "") for resource in create_app(FakeBackend()).router.resources()}
    assert served == set(told["paths"])  # and the other way round
    headers = {one["name"] for one in told["paths"]["/v1/completions"]["post"]["parameters"]}
    assert headers == {"x-slo-ttft-ms", "x-slo-itl-ms", "x-ttft-limit-ms"}
    settings = told["components"]["schemas"]["Settings"]["properties"]
    assert settings["max_num_seqs"]["minimum"] == 1
    chat = told["components"]["schemas"]["ChatRequest"]["properties"]
    assert chat["model"]["enum"] == ["fake", None]
    assert {"minimum": 0, "maximum": 2, "type": "number"} in chat["temperature"]["anyOf"]
    for name in ("ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"):
        fields = told["components"]["schemas"][name]["properties"]
        assert [field for field, schema in fields.items() if not schema.get("description")] == []
    assert set(told["paths"]["/v1/models"]["get"]["responses"]) == {"200", "500"}
    assert "429" in told["paths"]["/v1/completions"]["post"]["responses"]
    assert chat["response_format"]["enum"] == [None, {"type": "text"}]
