"""The API fuzzed from its own description: whatever is sent, no 500, and every answer is what is documented."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from headway.cli.address import bound_socket, url_of
from headway.gateway import create_app, listening
from headway.gateway.openapi import describe
from tests.gateway.driven import DrivenBackend, Instant


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The real core, driver and gateway over a real socket, with an executor that takes no time."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    found: list[str] = []
    listens = threading.Event()

    async def serve() -> None:
        backend = DrivenBackend(Instant(), max_model_len=256)
        backend.driver.start()
        with bound_socket("127.0.0.1", 0) as sock:
            async with listening(create_app(backend), sock):
                found.append(url_of(sock))
                listens.set()
                await stop.wait()
        await backend.driver.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert listens.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


OPERATIONS = {
    found.ok().label: found.ok()
    for found in schemathesis.openapi.from_dict(describe(("driven",), "0")).get_all_operations()
}


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        *((label, GenerationMode.POSITIVE) for label in OPERATIONS),
        # A GET here has nothing that could be of the wrong type.
        *((label, GenerationMode.NEGATIVE) for label in OPERATIONS if label.startswith("POST")),
    ],
)
def test_whatever_is_sent(url: str, label: str, mode: GenerationMode) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    def answers(case: schemathesis.Case) -> None:
        # What fits the types may still be refused: 400 for too long a prompt or an unknown token id, and 503,
        # which is no failure: a first token wanted sooner than any can be.
        unwanted = [positive_data_acceptance, not_a_server_error]
        answer = case.call_and_validate(base_url=url, excluded_checks=unwanted, timeout=20)
        assert answer.status_code < 500 or answer.json()["error"]["code"] in {"ttft_unreachable", "queue_timeout"}

    answers()


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
@pytest.mark.parametrize(
    ("label", "body"),
    [
        ("POST /v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2, "logprobs": True}),
        ("POST /v1/completions", {"prompt": ["a", "b"], "logprobs": 2}),
    ],
)
def test_good_answers_are_as_documented(url: str, label: str, body: dict[str, Any], fields: dict[str, Any]) -> None:
    """Fuzzing seldom gets this far: most of what it sends is refused."""
    case = OPERATIONS[label].Case(body={**body, **fields}, media_type="application/json")
    assert case.call_and_validate(base_url=url, timeout=20).status_code == 200
