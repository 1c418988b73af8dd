"""What the ladder and the limits make of a call, as its worker and its client see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import TenantLimits, Tenants
from headway.core.front.treatment import Degradation
from tests.gateway.fleet.gateway import CHAT, HELLO, Fleet, over
from tests.gateway.fleet.upstream import upstreams


class Words:
    """A tokenizer for which a word is a token, and a message one more."""

    def chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> int:
        return sum(1 + len(message["content"].split()) for message in messages) + 10 * len(tools or ())

    def text(self, text: str) -> int:
        return len(text.split())


def turns(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    system = {"role": "system", "content": "be brief"}
    return [system, *({"role": roles[i % 2], "content": text} for i, text in enumerate(texts))]


def pin(fleet: Fleet, level: Level) -> None:
    fleet.service.driver.set_levels({level: Mode.ON})


async def test_level_1_lowers_the_output_and_says_so() -> None:
    async with upstreams() as (one,), over([one], degradation=Degradation(clamp_output_tokens=5)) as fleet:
        _, _, headers = await fleet.post(CHAT, {**HELLO, "max_tokens": 8})
        assert "x-headway-degraded" not in headers
        pin(fleet, Level.CLAMP_OUTPUT)
        for field in ("max_tokens", "max_completion_tokens"):
            body = {key: value for key, value in HELLO.items() if key != "max_tokens"} | {field: 8}
            _, _, headers = await fleet.post(CHAT, body)
            assert headers["x-headway-degraded"] == "output-clamped"
            assert one.asked[-1].body[field] == 5
        without = {key: value for key, value in HELLO.items() if key != "max_tokens"}
        await fleet.post(CHAT, without)
        assert one.asked[-1].body["max_tokens"] == 5
        await fleet.post(CHAT, {**HELLO, "max_tokens": 3})
        assert one.asked[-1].body["max_tokens"] == 3


async def test_level_2_demotes_what_is_long() -> None:
    degradation = Degradation(long_prompt_tokens=20)
    async with upstreams() as (one,), over([one], degradation=degradation, counters={"tiny": Words()}) as fleet:
        pin(fleet, Level.DEMOTE_LONG)
        _, _, headers = await fleet.post(CHAT, {**HELLO, "messages": turns("word " * 40)})
        assert headers["x-headway-degraded"] == "demoted"
        _, _, headers = await fleet.post(CHAT, HELLO)
        assert "x-headway-degraded" not in headers


async def test_level_3_refuses_low_priority_with_a_time_to_come_back() -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        pin(fleet, Level.SHED_LOW_PRIORITY)
        status, body, headers = await fleet.post(CHAT, {**HELLO, "priority": 5})
        assert (status, body["error"]["code"]) == (429, "shed")
        assert int(headers["retry-after"]) >= 1
        assert (await fleet.post(CHAT, HELLO))[0] == 200


async def test_level_4_leaves_out_what_the_client_called_optional_and_counts_again() -> None:
    tool = {"type": "function", "function": {"name": "search", "parameters": {}}}
    other = {"type": "function", "function": {"name": "clock", "parameters": {}}}
    asked = {
        **HELLO,
        "messages": turns("first question", "first answer", "second question"),
        "tools": [tool, other],
        "headway": {"optional": ["tools:search", "messages:1", "messages:2"]},
    }
    async with upstreams() as (one,), over([one], counters={"tiny": Words()}) as fleet:
        _, _, headers = await fleet.post(CHAT, asked)
        assert "x-headway-degraded" not in headers
        assert one.asked[-1].body["tools"] == [tool, other]
        before = (await fleet.get(f"/v1/requests/{headers['x-request-id']}"))[1]["tokens"]["prompt_estimate"]
        pin(fleet, Level.DROP_OPTIONAL)
        _, _, headers = await fleet.post(CHAT, asked)
        assert headers["x-headway-degraded"] == "optional-dropped"
        sent = one.asked[-1].body
        assert sent["tools"] == [other]
        assert sent["messages"] == [asked["messages"][0], asked["messages"][3]]
        after = (await fleet.get(f"/v1/requests/{headers['x-request-id']}"))[1]["tokens"]["prompt_estimate"]
        assert after == before - 10 - 3 - 3
        await fleet.post(CHAT, {**asked, "tools": [tool], "tool_choice": "auto"})
        assert "tools" not in one.asked[-1].body
        assert "tool_choice" not in one.asked[-1].body


@pytest.mark.parametrize("exact", [True, False])
async def test_what_is_too_long_loses_its_oldest_turns(exact: bool) -> None:
    counters = {"tiny": Words()} if exact else {}
    messages = turns("old " * 60, "older answer " * 30, "newer " * 10, "newer answer", "the question")
    context = 90 if exact else 120
    degradation = Degradation(overlong="trim")
    async with (
        upstreams() as (one,),
        over([one], counters=counters, degradation=degradation, limits={"max_model_len": context}) as fleet,
    ):
        status, body, headers = await fleet.post(CHAT, {**HELLO, "messages": messages})
        assert status == 200, body
        assert headers["x-headway-degraded"] == "trimmed"
        sent = one.asked[-1].body["messages"]
        assert sent[0] == messages[0]
        assert sent[-1] == messages[-1]
        assert messages[1] not in sent
        assert sent[1]["role"] == "user"  # no answer without its question
        status, body, _ = await fleet.post(CHAT, {**HELLO, "messages": turns("endless " * 500)})
        assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "messages")


async def test_what_is_too_long_is_refused_where_nothing_else_is_said() -> None:
    async with upstreams() as (one,), over([one], limits={"max_model_len": 50}) as fleet:
        status, body, _ = await fleet.post(CHAT, {**HELLO, "messages": turns("endless " * 500)})
        assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "messages")
        assert not one.asked


async def test_a_tenants_limits_hold() -> None:
    tenants = Tenants(TenantLimits(max_output_tokens=20, max_input_tokens=50))
    async with upstreams() as (one,), over([one], tenants=tenants) as fleet:
        status, body, _ = await fleet.post(CHAT, {**HELLO, "max_tokens": 21})
        assert (status, body["error"]["param"]) == (400, "max_tokens")
        without = {key: value for key, value in HELLO.items() if key != "max_tokens"}
        assert (await fleet.post(CHAT, without))[0] == 200
        assert one.asked[-1].body["max_tokens"] == 20  # the limit is the worker's to keep, so it is told
        status, body, _ = await fleet.post(CHAT, {**HELLO, "messages": turns("long " * 200)})
        assert (status, body["error"]["param"]) == (400, "messages")
        assert (await fleet.post(CHAT, {**HELLO, "n": 3, "max_tokens": 20}))[0] == 200


async def test_concurrency_and_requests_a_minute_are_told_with_a_time_to_come_back() -> None:
    tenants = Tenants(TenantLimits(max_concurrency=1, requests_per_minute=3))
    async with upstreams() as (one,), over([one], tenants=tenants) as fleet:
        one.gap_s = 0.05
        (good, _, _), (status, body, headers) = await asyncio.gather(fleet.post(CHAT, HELLO), fleet.post(CHAT, HELLO))
        assert good == 200
        assert (status, body["error"]["code"]) == (429, "concurrency_limit")
        assert int(headers["retry-after"]) >= 1
        codes = [(await fleet.post(CHAT, HELLO))[0] for _ in range(3)]
        assert codes == [200, 200, 429]  # the refusal above burnt nothing
        _, _, headers = await fleet.post(CHAT, HELLO)
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        await fleet.empty()
