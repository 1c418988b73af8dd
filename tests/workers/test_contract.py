"""What every `Worker` does, whatever is behind it: a scripted server or a real `headway serve`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from headway.core.errors import InvalidRequest
from headway.wire.sse import EventParser
from headway.workers.worker import Call, Decided, WorkerFailed
from tests.cli.running import Server
from tests.wire.scripted import until
from tests.workers.bodies import CHAT, Body, chat, headway_body, scripted_body


@pytest.fixture(scope="module")
def headway_url() -> Iterator[str]:
    with Server("--executor", "simulated", "--served-model-name", "m") as server:
        yield server.url


@pytest_asyncio.fixture(params=["scripted", "headway"])
async def body(request) -> AsyncIterator[Body]:
    if request.param == "headway":
        making = headway_body(request.getfixturevalue("headway_url"))
    else:
        making = scripted_body()
    async with making as made:
        yield made


def events(pieces: list[bytes]) -> list[str]:
    return [event.data for event in EventParser().feed(b"".join(pieces))]


async def test_a_stream_comes_head_first_and_whole_event_by_whole_event(body):
    answer = body.worker.stream(chat(tokens=5))
    head = await answer.head()
    assert head.status == 200
    assert head.header(b"content-type").startswith(b"text/event-stream")
    pieces = [piece async for piece in answer]
    answer.close()
    assert all(piece.endswith(b"\n\n") for piece in pieces)
    said = events(pieces)
    assert said[-1] == "[DONE]"
    chunks = [json.loads(data) for data in said[:-1]]
    assert all(chunk["choices"] for chunk in chunks), "the usage was not the client's wish"
    told = answer.told
    assert told.complete
    assert told.exact
    assert told.output_tokens == 5
    assert told.prompt_tokens
    assert told.finish_reasons == {0: "length"}
    await body.idle()


async def test_a_client_that_wants_the_usage_gets_it(body):
    answer = body.worker.stream(chat(stream_options={"include_usage": True}))
    said = events([piece async for piece in answer])
    answer.close()
    assert json.loads(said[-2])["usage"]["completion_tokens"] == 3


async def test_an_answer_in_one_piece(body):
    answer = body.worker.stream(chat(stream=False))
    assert (await answer.head()).status == 200
    value = json.loads(await answer.whole())
    answer.close()
    assert value["usage"]["completion_tokens"] == answer.told.output_tokens
    assert answer.told.exact
    assert answer.told.complete


async def test_a_refusal_is_an_answer(body):
    for streams in (True, False):
        answer = body.worker.stream(chat(stream=streams, model="another"))
        assert (await answer.head()).status == 404
        assert "error" in json.loads(await answer.whole())
        answer.close()


async def test_what_cannot_be_forwarded_exactly_is_refused_before_it_is_sent(body):
    with pytest.raises(InvalidRequest, match="twice"):
        body.worker.stream(Call(CHAT, b'{"model":"m","model":"n"}'))


async def test_decided_fields_reach_the_worker(body):
    if body.worker.kind == "headway":
        answer = body.worker.stream(chat(tokens=50, decided=Decided(max_tokens=2)))
        said = [piece async for piece in answer]
        answer.close()
        assert answer.told.output_tokens == 2
        assert said


@pytest.mark.parametrize("stage", ["at once", "head", "body"])
async def test_closing_stops_the_worker(body, stage):
    answer = body.worker.stream(chat(tokens=4000))
    if stage != "at once":
        await answer.head()
    if stage == "body":
        await anext(answer)
        await until(lambda: body.busy() > 0)
        assert not answer.told.complete
    answer.close()
    answer.close()
    await body.idle()
    with pytest.raises((WorkerFailed, StopAsyncIteration)):
        await anext(answer)


async def test_cancelling_a_reader_and_closing_stops_the_worker(body):
    async def read() -> None:
        answer = body.worker.stream(chat(tokens=4000))
        try:
            async for _ in answer:
                pass
        finally:
            answer.close()

    readers = [asyncio.create_task(read()) for _ in range(5)]
    await until(lambda: body.busy() > 0)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    await body.idle()


async def test_what_was_told_before_the_client_left_is_known(body):
    answer = body.worker.stream(chat(tokens=4000))
    for _ in range(3):
        await anext(answer)
    answer.close()
    assert answer.told.output_tokens >= 1
    assert not answer.told.exact
    assert not answer.told.complete
    await body.idle()


async def test_its_load_is_told_with_its_age(body):
    await until(lambda: len(body.watched.loads) >= 2)
    answer = body.worker.stream(chat(tokens=4000))
    await anext(answer)

    def running() -> float:
        signal = body.worker.load().running
        assert signal is not None
        return signal.value

    await until(lambda: running() >= 1)
    answer.close()
    await until(lambda: running() == 0)
    await until(lambda: len(body.watched.loads) > 3)
    times = [load.running.at_ns for load in body.watched.loads if load.running is not None]
    assert times == sorted(times)
    assert body.worker.load().ttft_s is None or body.worker.load().ttft_s.value > 0


async def test_it_is_watched_from_the_start(body):
    assert body.watched.models == [frozenset({"m"})]
    assert body.worker.models == {"m"}
    assert body.watched.checks[0] == (True, "")
    assert body.worker.kind in ("vllm", "headway")


async def test_what_is_being_answered_when_a_worker_is_closed_ends(body):
    answer = body.worker.stream(chat(tokens=4000))
    await anext(answer)
    reading = asyncio.create_task(_to_the_end(answer))
    await asyncio.sleep(0.02)
    await body.worker.close()
    with pytest.raises(WorkerFailed):
        await asyncio.wait_for(reading, 5)
    answer.close()


async def _to_the_end(answer) -> None:
    async for _ in answer:
        pass


async def test_many_at_once_are_kept_apart(body):
    async def count(tokens: int) -> int:
        answer = body.worker.stream(chat(tokens=tokens))
        try:
            async for _ in answer:
                pass
            return answer.told.output_tokens
        finally:
            answer.close()

    numbers = [1 + place % 7 for place in range(40)]
    assert await asyncio.gather(*map(count, numbers)) == numbers
    await body.idle()
