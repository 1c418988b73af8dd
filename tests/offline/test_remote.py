"""Servers as workers: what each of their answers means, and how they are asked, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch.dispatch import Fault
from headway.core.errors import ConfigError
from headway.offline.batch import Batch
from headway.offline.files import Files
from headway.offline.inputs import Format, line_of
from headway.offline.items import Item
from headway.offline.job import JobLimits
from headway.offline.remote import ServerConfig, ServerWorker, answer_of, retry_after_s
from headway.offline.worker import Answered, Failed
from headway.wire.http_client import ResponseHead
from tests.offline.fakes import QUICK, begin, ids, openai_line, read_lines, wanted, write_lines
from tests.wire.scripted import scripted, whole

GOOD = json.dumps(
    {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
).encode()


def head(status=200, **headers):
    return ResponseHead(status, [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])


def test_a_good_answer_tells_tokens_and_times():
    answer = answer_of(head(server_timing="queue;dur=5, prefill;dur=20.5, decode;dur=100", x_request_id="r1"), GOOD)
    assert isinstance(answer, Answered)
    assert (answer.input_tokens, answer.output_tokens, answer.request_id) == (7, 3, "r1")
    assert (answer.queue_s, answer.prefill_s, answer.decode_s) == (0.005, 0.0205, 0.1)
    assert answer.body == GOOD


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (400, b'{"error":{"message":"no"}}', Fault.BAD),
        (404, b"not found", Fault.BAD),
        (401, b"{}", Fault.FORBIDDEN),
        (302, b"", Fault.FORBIDDEN),
        (408, b"", Fault.TIMEOUT),
        (429, b"", Fault.REFUSED),
        (500, b"oops", Fault.SERVER),
        (500, b'{"error":{"message":"CUDA out of memory. Tried to allocate"}}', Fault.OUT_OF_MEMORY),
        (503, b"", Fault.REFUSED),
        (504, b"", Fault.TIMEOUT),
        (200, b"<html>", Fault.SERVER),
        (200, b'{"choices": []}', Fault.SERVER),
        (200, b'{"choices": [{"text": "\xff"}]}', Fault.SERVER),
        (200, b'{"error": {"message": "failed after all"}}', Fault.SERVER),
    ],
)
def test_every_other_answer_has_its_fault(status, body, fault):
    failed = answer_of(head(status), body)
    assert isinstance(failed, Failed)
    assert failed.fault is fault


def test_what_the_server_said_is_kept():
    failed = answer_of(head(400), b'{"error":{"message":"too long","code":"x"}}')
    assert isinstance(failed, Failed)
    assert failed.message == "The server said 400: too long"
    assert json.loads(failed.body)["error"]["code"] == "x"
    assert answer_of(head(400), b"no json").body == b""


def test_retry_after():
    assert retry_after_s(head(429, retry_after="7")) == 7
    assert retry_after_s(head(429, retry_after="7", retry_after_ms="1500")) == 1.5
    assert retry_after_s(head(429, retry_after="soon")) == 0
    assert retry_after_s(head(429, retry_after="99999999")) == 3600


def test_retry_after_may_be_a_date_by_the_servers_own_clock():
    at = {"date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert retry_after_s(head(429, retry_after="Wed, 21 Oct 2015 07:28:40 GMT", **at)) == 40
    assert retry_after_s(head(429, retry_after="Wed, 21 Oct 2015 07:27:00 GMT", **at)) == 0
    assert retry_after_s(head(429, retry_after="Wed, 21 Oct 2015 07:28:40 GMT")) == 0, "long ago by ours"
    assert retry_after_s(head(429, retry_after="Wed, 21 Oct 9999 07:28:40 GMT")) == 3600
    assert retry_after_s(head(429, retry_after="Wed, 99 Oct 2015 07:28:40 GMT", **at)) == 0


@given(st.integers(100, 999), st.binary(max_size=200))
def test_no_answer_is_so_odd_that_it_stops_anything(status, body):
    assert isinstance(answer_of(head(status), body), Answered | Failed)


# -- over sockets ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def server(answer, *, models=("m",)):
    """`answer(body, number)` gives a whole HTTP response, or None to break off; `asked` are bodies in order."""
    asked = []

    async def script(turn):
        if turn.method == "GET":
            await turn.write(whole(json.dumps({"data": [{"id": name} for name in models]}).encode()))
            return
        asked.append(json.loads(turn.body))
        response = answer(asked[-1], len(asked))
        response = await response if asyncio.iscoroutine(response) else response
        if response is None:
            turn.reset()
        else:
            await turn.write(response)

    async with scripted(script) as found:
        yield found, asked


def good(_body=None, _number=0):
    return whole(GOOD)


def lines(count, **body):
    return [openai_line(number, **body) for number in range(count)]


async def run(tmp_path, urls, count, **config):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, lines(count))
    workers = [ServerWorker(ServerConfig(url=url, **config)) for url in urls]
    ended = await Batch(Files(output), wanted(), lambda: workers).begin(source)
    return ended, output


async def test_the_only_model_of_the_server_is_asked_for(tmp_path):
    async with server(good) as (found, asked):
        ended, output = await run(tmp_path, [found.url], 30)
    assert ended.summary.done == 30
    assert {body["model"] for body in asked} == {"m"}
    assert Counter(ids(output)) == Counter(f"item-{number}" for number in range(30))
    assert read_lines(output)[0]["headway"]["worker"] == f"{found.url}/v1"
    assert ended.summary.input_tokens == 210


async def test_several_models_and_none_named_is_each_lines_error(tmp_path):
    async with server(good, models=("a", "b")) as (found, asked):
        ended, output = await run(tmp_path, [found.url], 3)
    assert not asked
    assert ended.summary.errors == {"bad_item": 3}
    assert "say which with --model" in read_lines(Files(output).errors)[0]["error"]["message"]


async def test_refusals_are_waited_out_as_long_as_the_server_says(tmp_path):
    at: list[float] = []

    def answer(_body, number):
        at.append(time.monotonic())
        return whole(b"{}", status=429, retry_after="1") if number == 3 else good()

    async with server(answer) as (found, _):
        ended, _ = await run(tmp_path, [found.url], 40, first=1, most=1)
    assert ended.summary.done == 40
    assert at[3] - at[2] >= 1.0


async def test_a_server_that_breaks_off_now_and_then_costs_nothing(tmp_path):
    async with server(lambda _, number: None if number % 7 == 0 else good()) as (found, _):
        ended, output = await run(tmp_path, [found.url], 50)
    assert ended.summary.done == 50
    assert Counter(ids(output)) == Counter(f"item-{number}" for number in range(50))


async def test_two_servers_share_the_work_and_one_may_vanish(tmp_path):
    async def slow(_body, _number):
        await asyncio.sleep(0.01)
        return good()

    async with server(slow) as (one, by_one):
        async with server(slow) as (other, by_other):
            urls = [one.url, other.url]
            work = asyncio.create_task(run(tmp_path, urls, 150, first=2, most=2))
            while len(by_other) < 20:
                await asyncio.sleep(0.01)
        ended, output = await work
    assert ended.summary.done == 150
    assert len(by_one) > 40
    assert Counter(ids(output)) == Counter(f"item-{number}" for number in range(150))


async def test_a_key_that_is_not_taken_stops_the_batch_at_once(tmp_path):
    async with server(lambda *_: whole(b'{"error":{"message":"Invalid API key"}}', status=401)) as (found, asked):
        ended, output = await run(tmp_path, [found.url], 500)
    assert "The server said 401: Invalid API key" in ended.reason
    assert len(asked) < 20
    assert not output.exists() or not read_lines(output)


async def test_concurrency_climbs_while_it_pays(tmp_path):
    most = running = 0

    async def answer(_body, _number):
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.25)
        running -= 1
        return good()

    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, lines(260))
    async with server(answer) as (found, _):
        worker = ServerWorker(ServerConfig(url=found.url, first=4, most=64))
        ended = await begin(source, output, worker, wanted().__class__(limits=JobLimits(retry=QUICK)))
    assert ended.summary.done == 260
    assert 16 <= most <= 64


def test_bad_settings_are_told():
    with pytest.raises(ConfigError, match="begins with 'ftp'"):
        ServerWorker(ServerConfig(url="ftp://x"))
    with pytest.raises(ConfigError, match="no header can hold"):
        ServerWorker(ServerConfig(url="http://x", api_key="a\nb"))
    assert "sk-1" not in repr(ServerConfig(url="http://x", api_key="sk-1"))


def test_a_body_keeps_its_bytes_but_for_the_model():
    worker = ServerWorker(ServerConfig(url="http://x", model="m"))
    line = (
        b'{"custom_id":"a","url":"/v1/completions","body":{"prompt":"x", "temperature": 1.0,"seed":9007199254740993}}'
    )
    item = line_of(1, line, Format())
    assert isinstance(item, Item)
    worker.prepare(item)
    assert item.body == b'{"prompt":"x", "temperature": 1.0,"seed":9007199254740993,"model":"m"}'
