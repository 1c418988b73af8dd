"""A client that leaves, or stops reading, at every stage: what it held is given back."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import pytest

from headway.core.request import Request
from headway.core.scheduler.step import Outcome, Step
from headway.engine.stream import Delta
from tests.gateway.driven import DrivenBackend, Instant
from tests.gateway.fake import Client, FakeBackend, says, serving, until

CHAT = "/v1/chat/completions"


def raw_request(stream: bool, n: int = 1, **fields: object) -> bytes:
    asked = {"messages": [{"role": "user", "content": "hello"}], "stream": stream, "n": n, **fields}
    body = json.dumps(asked).encode()
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
async def test_leaving_while_queued(stream: bool, n: int) -> None:
    never = asyncio.Event()
    backend = FakeBackend(lambda request: [never])
    async with serving(backend) as client:
        _, writer = await connect(client.url)
        writer.write(raw_request(stream, n))
        await until(lambda: len(backend.streams) == n)
        assert not any(one.closed for one in backend.streams)
        writer.close()
        await until(lambda: backend.all_closed)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("how", ["close", "abort"])
async def test_leaving_mid_stream(n: int, how: str) -> None:
    never = asyncio.Event()
    backend = FakeBackend(lambda request: [*says(request, " good", " day")[:1], never])
    async with serving(backend) as client:
        reader, writer = await connect(client.url)
        writer.write(raw_request(True, n))
        await reader.readuntil(b" good")
        if how == "close":
            writer.close()
        else:
            writer.transport.abort()
        await until(lambda: backend.all_closed)


async def test_leaving_while_the_prompt_is_tokenised() -> None:
    begun, go_on = threading.Event(), threading.Event()
    backend = FakeBackend()
    encode = backend.tokenizer.encode

    class Slow(type(backend.tokenizer)):  # type: ignore[misc]
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            begun.set()
            go_on.wait(10)
            return encode(text)

    backend.tokenizer = Slow()
    async with serving(backend) as client:
        _, writer = await connect(client.url)
        writer.write(raw_request(True))
        await until(begun.is_set)
        assert (await client.get("/health"))[0] == 200  # the event loop is free meanwhile
        writer.close()
        while await in_flight(client) > 1:  # the one that asks
            await asyncio.sleep(0.005)
        go_on.set()
        await asyncio.sleep(0.1)
    assert not backend.streams  # what came of it was dropped


async def in_flight(client: Client) -> float:
    async with client.session.get("/metrics") as response:
        found = re.search(r"^headway_http_requests_in_flight (\S+)$", await response.text(), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_leaving_in_the_middle_of_the_body() -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        _, writer = await connect(client.url)
        writer.write(raw_request(True)[:-5])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        assert (await client.post(CHAT, {"messages": [{"role": "user", "content": "x"}]}))[0] == 200
    assert len(backend.streams) == 1


async def test_a_client_that_never_reads_is_cut_off() -> None:
    """Its output is far beyond every buffer between: the write blocks, times out, and the sequence is cancelled."""
    made = 0

    def endless(request: Request):
        nonlocal made
        while True:
            made += 1
            yield Delta("x" * 10_000, [5])

    backend = FakeBackend(endless)
    async with serving(backend, write_timeout_s=0.3) as client:
        _, writer = await connect(client.url)
        writer.write(raw_request(True))
        await until(lambda: bool(backend.streams) and backend.all_closed, timeout_s=10)
        assert made < 5_000  # the generator was held back, not drained into memory
        async with client.session.get("/metrics") as response:
            assert 'headway_stream_errors_total{code="slow_reader"} 1.0' in await response.text()
        writer.close()


async def test_what_a_client_held_is_free_within_one_step() -> None:
    """The step in flight is the last: nothing that left is in another."""
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    class Stepwise(Instant):
        def run(self, step: Step) -> Outcome:
            begun.release()
            assert go_on.acquire(timeout=10)
            return super().run(step)

    backend = DrivenBackend(Stepwise())
    backend.driver.start()
    async with serving(backend) as client:
        _, writer = await connect(client.url)
        writer.write(raw_request(True, n=3, ignore_eos=True))
        for _ in range(5):  # well into the output, with one step in flight
            await asyncio.to_thread(begun.acquire)
            go_on.release()
        await asyncio.to_thread(begun.acquire)
        before = backend.snapshot()
        assert before.running == 3
        writer.close()
        while await in_flight(client) > 1:  # the one that asks
            await asyncio.sleep(0.005)
        go_on.release()
        await until(lambda: backend.snapshot().step_tokens == 0)
        after = backend.snapshot()
        assert after.steps_total - before.steps_total <= 1
        assert (after.requests, after.running, after.kv_tokens, after.kv_blocks_used) == (0, 0, 0, 0)
        assert not begun.acquire(timeout=0.2)
    await backend.driver.close()


async def test_keep_alive_is_reused_after_every_kind_of_answer() -> None:
    backend = FakeBackend()
    async with serving(backend) as client:
        reader, writer = await connect(client.url)
        for stream in (False, True, False):
            writer.write(raw_request(stream))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            if stream:
                await reader.readuntil(b"0\r\n\r\n")
            else:
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
                await reader.readexactly(int(length.split(b":")[1]))
        writer.close()
