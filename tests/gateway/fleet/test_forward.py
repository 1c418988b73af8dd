"""What a client gets through a gateway: the workers' own answers, whole or as they come, and what is told of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import openai
import pytest

from headway.core.fleet.routing import Choice
from headway.core.front.front import FrontLimits
from headway.core.front.tenants import TenantLimits, Tenants
from headway.gateway.fleet.trail import shown_choice, told_try
from tests.gateway.driven import driving
from tests.gateway.fake import serving, until
from tests.gateway.fleet.gateway import CHAT, HELLO, Fleet, gateway, member, over
from tests.gateway.fleet.upstream import WORDS, Asked, Upstream, framed, head, reply, upstreams

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@asynccontextmanager
async def over_headway(count: int = 2) -> AsyncIterator[Fleet]:
    """A gateway over simulated headway workers, each a server of its own."""
    async with AsyncExitStack() as stack:
        members = []
        for number in range(count):
            backend = await stack.enter_async_context(driving())
            client = await stack.enter_async_context(serving(backend))
            members.append(member(f"w{number}", client.url))
        yield await stack.enter_async_context(gateway(*members))


async def test_the_openai_client_over_two_headway_workers() -> None:
    async with over_headway() as fleet:
        client = openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0)
        assert [model.id async for model in client.models.list()] == ["driven"]
        assert (await client.models.retrieve("driven")).id == "driven"
        messages: Any = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model="driven", messages=messages, max_tokens=8, seed=1)
        assert whole.choices[0].message.content
        assert whole.usage
        stream = await client.chat.completions.create(
            model="driven", messages=messages, max_tokens=8, seed=1, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        completion = await client.completions.create(model="driven", prompt="once", max_tokens=8, n=2)
        assert len(completion.choices) == 2
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=messages)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="driven", messages=[])
        assert refused.value.param == "messages"
        await client.close()
        await fleet.empty()


def test_what_is_left_of_sums_of_floats_is_no_term() -> None:
    choice = Choice("a", {"work": -0.19442111616040036, "itl": -5.551115123125783e-17, "kv": -0.0}, {"b": -1e-17})
    assert shown_choice(choice) == "a;score=-0.194;work=-0.194"
    told = json.dumps(told_try(choice, ""))
    assert json.loads(told)["terms"] == {"work": -0.194, "itl": 0, "kv": 0}
    assert "-0.0" not in told


async def test_both_workers_are_used_and_the_client_is_told_which_and_why() -> None:
    async with upstreams(2) as (one, two), over([one, two]) as fleet:
        one.gap_s = two.gap_s = 0.02
        answers = await asyncio.gather(*(fleet.post(CHAT, HELLO) for _ in range(8)))
        assert all(status == 200 for status, _, _ in answers)
        assert {headers["x-headway-worker"].partition(";")[0] for _, _, headers in answers} == {"w0", "w1"}
        _, _, headers = answers[-1]
        assert re.fullmatch(r"w[01];score=-?[0-9.e+-]+(;[a-z]+=-?[0-9.e+-]+)*", headers["x-headway-worker"])
        status, story = await fleet.get(f"/v1/requests/{headers['x-request-id']}")
        assert status == 200
        assert story["state"] == "stop"
        assert story["tokens"]["prompt"] == 10
        assert story["tokens"]["output"] == len(WORDS)
        (tried,) = story["tries"]
        assert tried["worker"] == story["worker"]
        assert tried["score"] == pytest.approx(sum(tried["terms"].values()), abs=0.01)  # each in three decimals
        assert {"work", "running", "waiting", "kv", "batch", "ttft", "itl", "memory", "prefix"} == set(tried["terms"])
        assert (await fleet.get("/v1/requests/unheard-of"))[0] == 404
        await fleet.empty()


async def test_the_body_travels_as_it_was_written() -> None:
    """Numbers keep their digits, unknown fields their place; only what is ours is taken out."""
    body = (
        b'{"model":"tiny", "messages" : [{"role":"user","content":"h\\u00e9"}],"temperature":0.10000000000000000001,'
        b'"unknown":{"a":[1,2,  3]}}'
    )
    async with upstreams() as (one,), over([one]) as fleet:
        status, _, _ = await fleet.post(CHAT, body, **{"Content-Type": "application/json"})
        assert status == 200
        assert one.asked[-1].raw == body
        await fleet.post(CHAT, {**HELLO, "headway": {"optional": []}})
        assert "headway" not in one.asked[-1].body


async def test_which_headers_travel() -> None:
    sent = {
        "Authorization": "Bearer secret-of-the-client",
        "x-headway-tenant": "forged",
        "X-Headway-Worker": "forged",
        "X-Forwarded-For": "1.2.3.4",
        "Cookie": "a=b",
        "traceparent": TRACE,
        "tracestate": "vendor=1",
        "x-request-id": "mine-1",
        "x-custom": "kept",
        "Connection": "keep-alive, x-hop",
        "x-hop": "one",
    }
    async with upstreams() as (one,), over([one]) as fleet:
        _, _, headers = await fleet.post(CHAT, HELLO, **sent)
        got = one.asked[-1].headers
        assert got["traceparent"] == headers["traceparent"] == TRACE
        assert got["tracestate"] == "vendor=1"
        assert got["x-request-id"] == headers["x-request-id"] == "mine-1"
        assert got["x-custom"] == "kept"
        assert not {"authorization", "cookie", "x-forwarded-for", "x-hop"} & set(got)
        assert not [name for name in got if name.startswith("x-headway-")]
        assert headers["x-headway-worker"].startswith("w0;")


async def test_where_the_time_went() -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        one.gap_s = 0.02
        _, _, headers = await fleet.post(CHAT, HELLO)
        parts = {name: float(ms) for name, ms in re.findall(r"([a-z]+);dur=([0-9.]+)", headers["server-timing"])}
        assert set(parts) == {"network", "tokenise", "queue", "worker", "gateway", "total"}
        assert parts["worker"] >= 0.9 * 1000 * one.gap_s * len(WORDS)
        named = sum(value for name, value in parts.items() if name != "total")
        assert named == pytest.approx(parts["total"], abs=0.05)
        async with fleet.session.post(CHAT, json={**HELLO, "stream": True}) as response:
            assert "ttft;dur=" in response.headers["Server-Timing"]
            assert "worker;dur=" in response.headers["Server-Timing"]


async def test_a_stream_arrives_event_by_event_as_the_worker_sends_it() -> None:
    go_on = asyncio.Event()

    async def stepwise(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        from tests.gateway.fleet.upstream import STREAM, chunk

        writer.write(STREAM + framed(chunk(" one")))
        await go_on.wait()
        writer.write(framed(chunk(" two")) + framed(chunk(finish="stop")) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with upstreams(1, stepwise) as (one,), over([one]) as fleet:
        async with fleet.session.post(CHAT, json={**HELLO, "stream": True}) as response:
            first = await response.content.readuntil(b"\n\n")
            assert b" one" in first
            assert not go_on.is_set()
            go_on.set()
            rest = await response.content.read()
            assert b" two" in rest
            assert rest.endswith(b"data: [DONE]\n\n")
        await fleet.empty()


@pytest.mark.parametrize("asks", [True, False])
async def test_a_stream_is_charged_by_its_usage_whether_its_client_wants_to_see_it(asks: bool) -> None:
    tenants = Tenants(TenantLimits(tokens_per_minute=1_000_000))
    async with upstreams() as (one,), over([one], tenants=tenants) as fleet:
        options = {"stream_options": {"include_usage": True}} if asks else {}
        events = await fleet.stream(CHAT, {**HELLO, **options})
        assert any('"usage": {' in event for event in events) is asks
        assert events[-1] == "[DONE]"
        await fleet.empty()
        left = fleet.front.admission.ledger.quotas("", fleet.service.driver.clock())["tokens"]
        assert left.limit - left.remaining <= 10 + len(WORDS)
        assert dict(fleet.service.figures.calls.by["tenant"].cells())[""].output_tokens == len(WORDS)
        assert fleet.service.figures.input_tokens == 10


async def test_what_prompts_weigh_is_learnt_from_usage() -> None:
    async def verbose(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        from tests.gateway.fleet.upstream import answer

        reply(writer, 200, answer(["x"], prompt_tokens=len(json.dumps(asked.body["messages"])) // 2))

    async with upstreams(1, verbose) as (one,), over([one]) as fleet:
        assert fleet.service.counting.ratio("tiny") == 4.0
        messages = [{"role": "user", "content": "hello there " * 20}]
        for _ in range(60):
            await fleet.post(CHAT, {**HELLO, "messages": messages})
        assert fleet.service.counting.ratio("tiny") == pytest.approx(2.0, rel=0.05)


async def test_other_paths_pass_through_and_are_counted() -> None:
    async def embeddings(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.path.startswith("/v1/audio"):
            writer.write(head(200, "audio/mpeg") + framed(b"\x00\xff" * 5000) + framed(b"\x01") + b"0\r\n\r\n")
            return
        reply(writer, 200, b'{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}')

    async with upstreams(1, embeddings) as (one,), over([one]) as fleet:
        status, body, headers = await fleet.post("/v1/embeddings?x=1", {"model": "tiny", "input": "hi"})
        assert status == 200
        assert body["usage"]["prompt_tokens"] == 7
        assert one.asked[-1].path == "/v1/embeddings?x=1"
        assert headers["x-headway-worker"].startswith("w0")
        assert fleet.service.figures.input_tokens == 7
        async with fleet.session.post("/v1/audio/speech", json={"model": "tiny", "input": "hi"}) as response:
            assert response.headers["Content-Type"] == "audio/mpeg"
            assert await response.read() == b"\x00\xff" * 5000 + b"\x01"
        await fleet.empty()
        assert (await fleet.post("/v1/load_lora_adapter", {}))[0] == 403
        before = len(one.asked)
        async with fleet.session.post("/v1/%2e%2e/admin", json={}) as response:
            assert response.status in (400, 404)
        assert len(one.asked) == before


async def test_a_model_that_nobody_serves_is_not_found_before_anything_is_sent() -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        status, body, _ = await fleet.post(CHAT, {**HELLO, "model": "nobody"})
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert not one.asked


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"model": ""}, "model"),
        ({"priority": 1.5}, "priority"),
        ({"stream": "yes"}, "stream"),
        ({"headway": {"optional": ["tools"]}}, "headway.optional"),
        ({"headway": {"optional": ["messages:9"]}}, "headway.optional"),
        ({"background": True}, "background"),
    ],
)
async def test_impossible_values_are_refused_by_name(changed: dict[str, object], param: str) -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        status, body, _ = await fleet.post(CHAT, {**HELLO, **changed})
        assert (status, body["error"]["param"]) == (400, param)
        assert not one.asked
        assert not any(fleet.inside.values())


async def test_a_worker_refusal_of_the_request_is_handed_on() -> None:
    async def refuses(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        reply(writer, 400, b'{"error":{"message":"no such voice","type":"invalid_request_error"}}')

    async with upstreams(2, refuses) as made, over(made) as fleet:
        status, body, _ = await fleet.post(CHAT, HELLO)
        assert (status, body["error"]["message"]) == (400, "no such voice")
        assert sum(len(one.asked) for one in made) == 1  # another worker would say the same
        await fleet.empty()


async def test_an_error_page_is_told_in_openais_shape() -> None:
    async def page(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        reply(writer, 418, b"<html>teapot</html>", "text/html")

    async with upstreams(1, page) as made, over(made) as fleet:
        status, body, _ = await fleet.post(CHAT, HELLO)
        assert (status, body["error"]["code"]) == (418, "worker_refused")


async def test_requests_wait_here_while_the_window_is_full_and_leave_in_order() -> None:
    from headway.core.fleet.worker import WorkerSpec

    async with upstreams() as (one,):
        one.gap_s = 0.05
        only = member("w0", one.url, WorkerSpec(id="w0", first_sequences=1, most_sequences=1))
        async with gateway(only) as fleet:
            calls = [asyncio.ensure_future(fleet.post(CHAT, HELLO)) for _ in range(4)]
            await until(lambda: fleet.front.admission.waiting == 3)
            assert one.inside == 1
            assert all(status == 200 for status, _, _ in await asyncio.gather(*calls))
            await fleet.empty()


async def test_who_waits_too_long_is_turned_away_with_a_time_to_come_back() -> None:
    from headway.core.fleet.worker import WorkerSpec

    async with upstreams() as (one,):
        one.gap_s = 0.2
        only = member("w0", one.url, WorkerSpec(id="w0", first_sequences=1, most_sequences=1))
        async with gateway(only, front_limits=FrontLimits(queue_timeout_ns=200_000_000)) as fleet:
            first = asyncio.ensure_future(fleet.post(CHAT, HELLO))
            await until(lambda: one.inside == 1)
            status, body, headers = await fleet.post(CHAT, HELLO)
            assert (status, body["error"]["code"]) == (503, "queue_timeout")
            assert int(headers["retry-after"]) >= 1
            assert (await first)[0] == 200
            await fleet.empty()


async def test_the_promises_of_a_header_reach_the_front() -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        status, body, _ = await fleet.post(CHAT, HELLO, **{"x-slo-ttft-ms": "soon"})
        assert (status, body["error"]["param"]) == (400, "x-slo-ttft-ms")
        one.gap_s = 0.05
        asked = asyncio.ensure_future(fleet.post(CHAT, HELLO, **{"x-slo-ttft-ms": "250"}))
        await until(lambda: one.inside == 1)
        (place,) = fleet.service.driver.places.values()
        assert place.request.slo.ttft_ns == 250_000_000
        await asked


async def test_no_prompt_and_no_key_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = "the-secret-of-the-prompt"

    async def fails(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with upstreams(2) as (one, two), over([one, two], edge={"body_timeout_s": 5}) as fleet:
        two.behave = fails
        for _ in range(4):
            body = {**HELLO, "messages": [{"role": "user", "content": secret}]}
            await fleet.post(CHAT, body, Authorization="Bearer hw-the-secret-key")
    assert "request" in caplog.text
    assert secret not in caplog.text
    assert "hw-the-secret-key" not in caplog.text
