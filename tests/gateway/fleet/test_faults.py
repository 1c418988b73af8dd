"""Workers and clients that fail at every stage: who asked hears of it, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json

import pytest

from headway.core.fleet.worker import WorkerSpec
from tests.gateway.fake import until
from tests.gateway.fleet import faults
from tests.gateway.fleet.gateway import CHAT, HELLO, gateway, member, over
from tests.gateway.fleet.upstream import STREAM as BEGIN
from tests.gateway.fleet.upstream import WORDS, Behaviour, chunk, framed, upstreams
from tests.gateway.test_disconnect import connect, raw_request

STREAM = {**HELLO, "stream": True}


def words_of(events: list[str]) -> str:
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk.get("choices"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", faults.EARLY, ids=lambda fault: fault.__name__)
async def test_before_the_first_byte_another_worker_answers(fault: Behaviour, stream: bool) -> None:
    async with upstreams(2) as (bad, well), over([bad, well]) as fleet:
        bad.behave = fault
        for _ in range(4):  # whichever is tried first
            if stream:
                events = await fleet.stream(CHAT, HELLO)
                assert events[-1] == "[DONE]"
                assert words_of(events) == "".join(WORDS)
            else:
                status, body, headers = await fleet.post(CHAT, HELLO)
                assert status == 200, body
                assert body["choices"][0]["message"]["content"] == "".join(WORDS)
                assert headers["x-headway-worker"].startswith("w1;")
        assert bad.asked, "the fault was never met"
        assert fleet.service.figures.returned >= 1
        await fleet.empty()
        await until(lambda: bad.inside == 0)


async def test_half_a_body_is_nothing_and_another_worker_answers() -> None:
    async with upstreams(2) as (bad, well), over([bad, well]) as fleet:
        bad.behave = faults.half_body
        for _ in range(4):
            assert (await fleet.post(CHAT, HELLO))[0] == 200
        assert bad.asked
        await fleet.empty()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", faults.EARLY, ids=lambda fault: fault.__name__)
async def test_when_every_worker_fails_the_client_is_told(fault: Behaviour, stream: bool) -> None:
    async with upstreams(2, fault) as made, over(made) as fleet:
        status, body, headers = await fleet.post(CHAT, {**HELLO, "stream": stream})
        assert status in (502, 503, 504), body
        assert body["error"]["message"]
        assert "127.0.0.1" not in json.dumps(body)  # where workers are is not a client's affair
        if fault is faults.overloaded:
            assert (status, headers["retry-after"]) == (503, "7")
        await fleet.empty()


@pytest.mark.parametrize("fault", faults.LATE, ids=lambda fault: fault.__name__)
async def test_after_the_first_byte_a_failure_is_an_event(fault: Behaviour) -> None:
    async with upstreams(2, fault) as made, over(made) as fleet:
        events = await fleet.stream(CHAT, HELLO)  # which checks that no event is cut
        assert "good" in events[0]
        error = json.loads(events[-1])["error"]
        assert error["message"]
        if fault is faults.says_it_failed:
            assert error["message"] == "out of memory"
        assert sum(len(one.asked) for one in made) == 1  # nobody is asked again
        await fleet.empty()
        assert fleet.service.figures.ended == {"failed": 1}
        assert dict(fleet.service.figures.calls.by["tenant"].cells())[""].output_tokens == 1  # what was sent is charged


async def test_a_worker_that_is_killed_with_requests_at_every_stage() -> None:
    async with upstreams(2) as (dies, lives):
        dies.gap_s = lives.gap_s = 0.05
        one_at_a_time = [
            member(f"w{n}", up.url, WorkerSpec(id=f"w{n}", first_sequences=2, most_sequences=2))
            for n, up in enumerate((dies, lives))
        ]
        async with gateway(*one_at_a_time) as fleet:
            calls = [asyncio.ensure_future(fleet.stream(CHAT, HELLO)) for _ in range(3)]
            wholes = [asyncio.ensure_future(fleet.post(CHAT, HELLO)) for _ in range(5)]
            await until(lambda: dies.inside == 2 and fleet.front.admission.waiting >= 3)
            await asyncio.sleep(0.07)
            await dies.kill()
            ends = [events[-1] for events in await asyncio.gather(*calls)]
            assert all(end == "[DONE]" or "error" in json.loads(end) for end in ends)
            # What had given its client nothing yet went to the other worker.
            assert [status for status, _, _ in await asyncio.gather(*wholes)] == [200] * 5
            await fleet.empty(10)


async def test_when_all_workers_are_down_it_is_told_at_once_and_when_to_come_back() -> None:
    async with upstreams(2) as made, over(made) as fleet:
        for one in made:
            await one.kill()
        # Their breakers learn it from health checks.
        states = fleet.front.fleet.workers.values()
        await until(lambda: not any(one.breaker.allows(fleet.service.driver.clock()) for one in states), 10)
        began = asyncio.get_running_loop().time()
        status, body, headers = await fleet.post(CHAT, HELLO)
        assert (status, body["error"]["code"]) == (503, "no_worker")
        assert 1 <= int(headers["retry-after"]) <= 60
        assert int(headers["retry-after-ms"]) > 0
        assert asyncio.get_running_loop().time() - began < 1.0
        assert (await fleet.get("/ready"))[0] == 503
        assert (await fleet.get("/health"))[0] == 200
        assert not any(fleet.inside.values())


async def test_a_worker_that_comes_back_is_used_again() -> None:
    async with upstreams(1) as (one,), over([one]) as fleet:
        port = int(one.url.rpartition(":")[2])
        await one.kill()
        (state,) = fleet.front.fleet.workers.values()
        await until(lambda: not state.breaker.allows(fleet.service.driver.clock()), 10)
        await one.start(port)
        await until(lambda: state.breaker.allows(fleet.service.driver.clock()), 10)
        assert (await fleet.post(CHAT, HELLO))[0] == 200
        await fleet.empty()


async def test_who_waits_when_the_last_worker_dies_is_told_soon() -> None:
    async with upstreams(1) as (one,):
        one.gap_s = 10.0
        only = member("w0", one.url, WorkerSpec(id="w0", first_sequences=1, most_sequences=1), first_byte_s=30.0)
        async with gateway(only) as fleet:
            running = asyncio.ensure_future(fleet.post(CHAT, HELLO))
            await until(lambda: one.inside == 1)
            waiting = asyncio.ensure_future(fleet.post(CHAT, HELLO))
            await until(lambda: fleet.front.admission.waiting == 1)
            await one.kill()
            for call in (running, waiting):
                async with asyncio.timeout(20):
                    status, body, _ = await call
                assert status in (502, 503), body
            await fleet.empty()


# -- clients that leave ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_queued(stream: bool) -> None:
    async with upstreams() as (one,):
        one.gap_s = 0.1
        only = member("w0", one.url, WorkerSpec(id="w0", first_sequences=1, most_sequences=1))
        async with gateway(only) as fleet:
            first = asyncio.ensure_future(fleet.post(CHAT, HELLO))
            await until(lambda: one.inside == 1)
            _, writer = await connect(fleet.url)
            writer.write(raw_request(stream))
            await until(lambda: fleet.front.admission.waiting == 1)
            writer.close()
            await until(lambda: fleet.front.admission.waiting == 0)
            assert (await first)[0] == 200
            assert len(one.asked) == 1
            await fleet.empty()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "abort"])
async def test_leaving_in_prefill_ends_the_work_at_the_worker(stream: bool, how: str) -> None:
    async with upstreams(1, faults.silent) as (one,), over([one]) as fleet:
        _, writer = await connect(fleet.url)
        writer.write(raw_request(stream))
        await until(lambda: one.inside == 1)
        writer.close() if how == "close" else writer.transport.abort()
        await until(lambda: one.inside == 0)
        assert one.left == 1
        await fleet.empty()
        assert fleet.service.figures.ended == {"cancelled": 1}


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_leaving_mid_stream_ends_the_work_at_the_worker_and_is_charged(how: str) -> None:
    async with upstreams(1, faults.silent_in_the_stream) as (one,), over([one]) as fleet:
        reader, writer = await connect(fleet.url)
        writer.write(raw_request(True))
        await reader.readuntil(b" good")
        writer.close() if how == "close" else writer.transport.abort()
        await until(lambda: one.inside == 0)
        assert one.left == 1
        await fleet.empty()
        assert fleet.service.figures.ended == {"cancelled": 1}
        assert dict(fleet.service.figures.calls.by["tenant"].cells())[""].output_tokens == 1
        assert fleet.service.figures.input_tokens > 0


async def test_leaving_in_the_middle_of_the_body() -> None:
    async with upstreams() as (one,), over([one]) as fleet:
        _, writer = await connect(fleet.url)
        writer.write(raw_request(True)[:-5])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
        assert not one.asked
        assert not any(fleet.inside.values())


async def test_a_client_that_never_reads_is_cut_off_and_holds_its_worker_back() -> None:
    sent = 0

    async def endless(upstream, asked, writer) -> None:
        nonlocal sent
        writer.write(BEGIN)
        while True:
            writer.write(framed(chunk("x" * 10_000)))
            sent += 1
            await writer.drain()

    async with upstreams(1, endless) as (one,), over([one], edge={"write_timeout_s": 0.4}) as fleet:
        _, writer = await connect(fleet.url)
        writer.write(raw_request(True))
        await until(lambda: one.inside == 1)
        await until(lambda: one.inside == 0, timeout_s=10)
        assert sent < 5_000  # held back, not drained into memory
        await fleet.empty()
        async with fleet.session.get("/metrics") as response:
            assert 'headway_stream_errors_total{code="slow_reader"} 1.0' in await response.text()
        writer.close()


async def test_keep_alive_survives_every_kind_of_answer() -> None:
    async with upstreams(1) as (one,), over([one]) as fleet:
        reader, writer = await connect(fleet.url)
        for stream in (False, True, False, True):
            writer.write(raw_request(stream))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            if stream:
                await reader.readuntil(b"0\r\n\r\n")
            else:
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
                await reader.readexactly(int(length.split(b":")[1]))
        writer.close()
        await fleet.empty()
