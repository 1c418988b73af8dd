"""A worker that answers garbage, half an event, the wrong type, nothing, closes early, or fails after a good status."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest

from headway.core.errors import ConfigError
from headway.wire.sse import EventParser
from headway.workers.remote import RemoteConfig, RemoteWorker
from headway.workers.worker import Call, WorkerFailed
from tests.wire.scripted import END, Turn, answering, chunk, chunked_head, scripted, until, whole
from tests.workers.bodies import chat, remote
from tests.workers.speaking import DONE, completion, event, said, stream, words


async def outcome(worker: RemoteWorker, call: Call) -> tuple[list[str], str]:
    """The events that reached the client, and with what code it failed; empty for not at all."""
    answer, pieces = worker.stream(call), []
    try:
        if call.streams:
            async for piece in answer:
                pieces.append(piece)  # noqa: PERF401 # what came before a failure counts
        else:
            pieces.append(await answer.whole())
    except WorkerFailed as failure:
        assert failure.status in (502, 504)
        assert str(failure.message).startswith("Worker w: ")
        code = failure.code or ""
        with pytest.raises(WorkerFailed):
            await (anext(answer) if call.streams else answer.whole())
    else:
        code = ""
    finally:
        answer.close()
    said = b"".join(pieces)
    return ([one.data for one in EventParser().feed(said)] if call.streams else [said.decode()]), code


SSE = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n"
FIRST = said("a")

STREAMS = {
    "garbage": (b"\0\1\2 nonsense\r\n\r\n", [], "worker_garbage"),
    "nothing": (b"", [], "worker_closed"),
    "half a head": (b"HTTP/1.1 200 X\r\ncontent-ty", [], "worker_closed"),
    "a head and nothing": (SSE, [], "worker_closed"),
    "wrong type": (whole(b"<html>", type="text/html"), [], "worker_garbage"),
    "no type": (chunked_head(type="") + END, [], "worker_garbage"),
    "one piece for a stream": (whole(completion()), [], "worker_garbage"),
    "a redirect": (whole(b"", status=307, location="http://elsewhere/"), [], "worker_garbage"),
    "compressed": (whole(b"x", type="text/event-stream", content_encoding="gzip"), [], "worker_garbage"),
    "half an event": (chunked_head() + chunk(FIRST) + chunk(b'data: {"cho'), [FIRST], "worker_closed"),
    "half an event, properly ended": (stream(FIRST, b'data: {"cho'), [FIRST], "worker_closed"),
    "half a chunk": (chunked_head() + chunk(FIRST) + b"ff\r\ndata:", [FIRST], "worker_closed"),
    "garbage in a chunk": (chunked_head() + chunk(FIRST) + b"nonsense\r\n", [FIRST], "worker_garbage"),
    "an event that is no JSON": (stream(FIRST, b"data: nonsense\n\n"), [FIRST], "worker_garbage"),
    "ends without a reason": (stream(FIRST), [FIRST], "worker_closed"),
    "closes without a reason": (SSE + FIRST, [FIRST], "worker_closed"),
    "an error after 200": (stream(FIRST, event({"error": {"message": "oom"}}), DONE), [FIRST], "worker_error"),
    "an error as the first event": (stream(event({"error": {"message": "oom"}}), DONE), [], "worker_error"),
    "good, and never closed": (chunked_head() + chunk(b"".join(words(1))), words(1), ""),
    "good, by closing": (SSE + b"".join(words(1)), words(1), ""),
    "good, without DONE": (stream(*words(1)[:-1]), words(1), ""),
    "good, and cut off after its reason": (chunked_head() + chunk(b"".join(words(1)[:-1])), words(1), ""),
    "good, two events in a packet": (chunked_head() + chunk(b"".join(words(3))) + END, words(3), ""),
    "good, with CR LF": (stream(*(one.replace(b"\n", b"\r\n") for one in words(2))), words(2), ""),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("cut", [False, True])
async def test_a_stream(name, cut):
    answer, expected, code = STREAMS[name]

    async def script(turn: Turn) -> None:
        await turn.write(*([answer[at : at + 7] for at in range(0, len(answer), 7)] if cut else [answer]))
        if "never closed" not in name:
            turn.close()

    async with scripted(script) as server:
        worker = remote(server.url)
        got = await asyncio.wait_for(outcome(worker, chat()), 10)
        assert got == ([one.data for one in EventParser().feed(b"".join(expected))], code)
        assert worker.failures == ({code: 1} if code else {})
        await until(lambda: not worker.connections or not code)
        await worker.close()
        await until(lambda: server.open == 0)
        assert len(server.asked) == 1, "sent once"


WHOLES = {
    "good": (whole(completion()), ""),
    "good, by closing": (b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n\r\n" + completion(), ""),
    "cut off": (whole(completion())[:-5], "worker_closed"),
    "cut off, by closing": (b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n\r\n{", "worker_garbage"),
    "wrong type": (whole(b"hello", type="text/plain"), "worker_garbage"),
    "empty": (whole(b""), "worker_garbage"),
    "an error under 200": (whole(b'{"error":{"message":"oom"}}'), "worker_error"),
    "no choices": (whole(b'{"choices":[]}'), "worker_garbage"),
}


@pytest.mark.parametrize("name", WHOLES)
async def test_an_answer_in_one_piece(name):
    answer, code = WHOLES[name]
    async with scripted(answering(answer, close=True)) as server:
        worker = remote(server.url)
        said, got = await asyncio.wait_for(outcome(worker, chat(stream=False)), 10)
        assert got == code
        if not code:
            assert json.loads(said[0])["choices"]
        await worker.close()


async def test_a_refusal_is_handed_on_as_it_is():
    told = b'{"detail":"too much"}'
    async with scripted(answering(whole(told, status=429, retry_after="3", connection="x-a", x_a="1"))) as server:
        worker = remote(server.url)
        answer = worker.stream(chat())
        head = await answer.head()
        assert (head.status, head.header(b"retry-after")) == (429, b"3")
        assert {name for name, _ in head.headers} == {b"content-type", b"retry-after"}, "nothing of the connection"
        assert await answer.whole() == told
        answer.close()
        assert not worker.failures
        await worker.close()


async def test_silence_is_a_timeout():
    async def script(turn: Turn) -> None:
        if turn.headers.get("x-head"):
            await turn.write(chunked_head(), chunk(FIRST))
        assert await turn.gone()

    async with scripted(script) as server:
        worker = remote(server.url, first_byte_s=0.1, between_bytes_s=0.1)
        assert await outcome(worker, chat()) == ([], "worker_timeout")
        call = chat()
        spoke = Call(call.path, call.body, headers=((b"x-head", b"1"),), streams=True)
        said, code = await outcome(worker, spoke)
        assert (len(said), code) == (1, "worker_timeout")
        patient = remote(server.url)
        limited = Call(call.path, call.body, streams=True, timeout_s=0.1)
        assert (await outcome(patient, limited))[1] == "worker_timeout"
        await worker.close()
        await patient.close()


async def test_nobody_there():
    worker = remote("http://127.0.0.1:9")
    assert await outcome(worker, chat()) == ([], "worker_unreachable")
    await worker.close()


async def test_a_clients_key_and_connection_headers_stay_here(monkeypatch):
    async with scripted(answering(whole(completion()))) as server:
        worker = remote(server.url, api_key="sk-worker")
        headers = {
            b"authorization": b"Bearer sk-client",
            b"x-api-key": b"sk-client",
            b"host": b"evil",
            b"content-length": b"3",
            b"transfer-encoding": b"chunked",
            b"connection": b"close",
            b"accept-encoding": b"gzip",
            b"content-type": b"text/plain",
            b"traceparent": b"00-1-2-03",
            b"x-request-id": b"r",
        }
        call = chat(stream=False)
        await outcome(worker, Call(call.path, call.body, headers=tuple(headers.items())))
        got = server.asked[0].headers
        assert got["authorization"] == "Bearer sk-worker"
        assert "sk-client" not in str(got)
        assert "evil" not in str(got)
        assert (got["traceparent"], got["x-request-id"]) == ("00-1-2-03", "r"), "what traces a call goes along"
        assert got["accept-encoding"] == "identity"
        assert got["content-type"] == "application/json"
        assert "connection" not in got
        assert "transfer-encoding" not in got
        assert "sk-worker" not in repr(worker.config)
        await worker.close()


async def test_other_calls_pass_as_they_are():
    async with scripted(answering(whole(b"any \xff bytes", type="audio/x"))) as server:
        worker = remote(f"{server.url}/prefix/v1")
        answer = worker.stream(Call("/v1/audio/speech?x=1", b"\0\1", headers=((b"content-type", b"audio/y"),)))
        assert (await answer.head()).header(b"content-type") == b"audio/x"
        assert [piece async for piece in answer] == [b"any \xff bytes"]
        answer.close()
        turn = server.asked[0]
        assert (turn.path, turn.body, turn.headers["content-type"]) == (
            "/prefix/v1/audio/speech?x=1",
            b"\0\1",
            "audio/y",
        )
        await worker.close()


async def test_connections_are_used_again_after_streams():
    async with scripted(answering(stream(*words(2)))) as server:
        worker = remote(server.url)
        for _ in range(5):
            assert (await outcome(worker, chat()))[1] == ""
            await asyncio.sleep(0.01)
        assert server.connections == 1
        await worker.close()


async def test_nothing_is_left_behind_after_many_ends():
    """Every way out, many times: no connection, no task and no answer stays."""
    ways = ["good", "cut", "silent", "garbage"]

    async def script(turn: Turn) -> None:
        way = ways[int(turn.headers["x-way"])]
        if way == "good":
            await turn.write(stream(*words(3)))
        elif way == "cut":
            await turn.write(chunked_head(), chunk(FIRST))
            turn.reset()
        elif way == "garbage":
            await turn.write(stream(FIRST, b"data: nonsense\n\n"))
        else:
            await turn.write(chunked_head(), chunk(FIRST))
            await turn.gone()

    async def one(worker: RemoteWorker, number: int) -> None:
        call = chat()
        answer = worker.stream(Call(call.path, call.body, headers=((b"x-way", b"%d" % (number % 4)),), streams=True))
        try:
            async with asyncio.timeout(0.2 if number % 4 == 2 else 5):
                if number % 3:
                    await answer.head()
                    async for _ in answer:
                        pass
        except (WorkerFailed, TimeoutError):
            pass
        finally:
            answer.close()

    def alive() -> set[int]:
        gc.collect()
        names = ("Exchange", "RemoteAnswer", "Connection")
        found = (each for each in gc.get_objects() if type(each).__name__ in names)
        return {id(each) for each in found if type(each).__module__.startswith("headway")}

    others = alive()  # what other tests of this process still hold
    async with scripted(script) as server:
        worker = remote(server.url)
        for _ in range(5):
            await asyncio.gather(*(one(worker, number) for number in range(60)))
        await worker.close()
        await until(lambda: server.open == 0)
        assert not worker.connections
        assert not alive() - others


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"url": "ftp://x"}, "use http or https"),
        ({"url": "http://"}, "names no host"),
        ({"url": "http://a b"}, "character"),
        ({"url": "http://user:secret@h"}, "key belongs into the environment"),
        ({"url": "http://h:99999"}, "cannot be read"),
        ({"url": "http://h", "kind": "vlm"}, "no worker kind 'vlm'. Use one of"),
        ({"url": "http://h", "api_key": "a\nb"}, "API key"),
        ({"url": "https://h", "ca_file": "/nowhere.pem"}, "cannot be used"),
    ],
)
def test_a_worker_that_cannot_be(config, words):
    with pytest.raises(ConfigError, match=words) as refused:
        RemoteWorker(RemoteConfig(id="w", **config))
    assert "secret" not in str(refused.value)
