"""The Batch API, through OpenAI's own client: every line ends once, in one of two files, whatever happens between."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batch.hours import Hours
from headway.gateway.background.batch.lines import WrongLine, answer_line, parse_line
from headway.gateway.tenancy import KeyFile, KeyRing
from tests.gateway.background.kept import Keeping, keeping
from tests.gateway.fake import until
from tests.gateway.fleet.gateway import CHAT, HELLO
from tests.gateway.fleet.upstream import WORDS, Asked, Upstream, answer, reply, upstreams

FINAL = {"completed", "failed", "expired", "cancelled"}


def line(custom_id: str, *, body: Any = None, **change: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body or HELLO, **change})


def lines(number: int) -> bytes:
    return "".join(line(f"item-{i}", body={**HELLO, "seed": i}) + "\n" for i in range(number)).encode()


@asynccontextmanager
async def client_of(fleet: Keeping, key: str = "unused") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=key, max_retries=0) as client:
        yield client


async def begun(client: openai.AsyncOpenAI, content: bytes, window: Any = "24h", **more: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window=window, **more
    )


async def over(client: openai.AsyncOpenAI, name: str, timeout_s: float = 20.0) -> Any:
    async with asyncio.timeout(timeout_s):
        while (batch := await client.batches.retrieve(name)).status not in FINAL:
            await asyncio.sleep(0.05)
    return batch


async def told(client: openai.AsyncOpenAI, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(one) for one in content.text.splitlines()]


async def silent(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def test_a_batch_from_upload_to_output(tmp_path: Path) -> None:
    async with upstreams(2) as ups, keeping(tmp_path, ups, slots=8) as fleet, client_of(fleet) as client:
        batch = await begun(client, b"\xef\xbb\xbf" + lines(40).replace(b"\n", b"\r\n\r\n"), metadata={"for": "me"})
        assert (batch.status, batch.object, batch.completion_window) == ("validating", "batch", "24h")
        batch = await over(client, batch.id)
        assert (batch.status, batch.model, batch.metadata) == ("completed", "tiny", {"for": "me"})
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (40, 40, 0)
        assert batch.usage.output_tokens == 40 * len(WORDS)
        assert batch.error_file_id is None
        assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        output = await told(client, batch.output_file_id)
        assert [one["custom_id"] for one in output] == [f"item-{i}" for i in range(40)]
        assert all(one["error"] is None and one["response"]["status_code"] == 200 for one in output)
        assert {one["response"]["body"]["choices"][0]["message"]["content"] for one in output} == {"".join(WORDS)}
        assert len({one["id"] for one in output}) == 40
        assert sorted(asked.body["seed"] for up in ups for asked in up.asked) == list(range(40))
        stored = await client.files.retrieve(batch.output_file_id)
        assert (stored.purpose, stored.filename) == ("batch_output", f"{batch.id}_output.jsonl")
        assert [one.id async for one in client.files.list(purpose="batch_output")] == [stored.id]
        assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
        assert (await client.files.delete(stored.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(stored.id)
        assert list((tmp_path / "spool").iterdir()) == []
        await fleet.empty()


async def test_lines_that_fail_go_to_the_error_file_and_no_other_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.gateway.background.runner.FIRST_REST_S", 0.01)

    async def moody(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        seed = asked.body.get("seed")
        if seed == 1:
            reply(writer, 400, b'{"error":\n{"message":"no","type":"invalid_request_error","param":"x","code":"bad"}}')
        elif seed == 2:
            reply(writer, 500, b"not json", "text/plain")
        else:
            reply(writer, 200, answer(WORDS))

    content = (
        lines(4) + f"{line('stream', body={**HELLO, 'stream': True})}\n{line('empty', body={'model': 'tiny'})}".encode()
    )
    async with upstreams(1, moody) as (one,), keeping(tmp_path, [one]) as fleet, client_of(fleet) as client:
        batch = await over(client, (await begun(client, content)).id)
        assert batch.status == "completed"
        assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 4)
        assert [one["custom_id"] for one in await told(client, batch.output_file_id)] == ["item-0", "item-3"]
        failed = {one["custom_id"]: one["response"] for one in await told(client, batch.error_file_id)}
        assert {name: response["status_code"] for name, response in failed.items()} == {
            "item-1": 400,
            "item-2": 500,
            "stream": 400,
            "empty": 400,
        }
        assert failed["item-1"]["body"]["error"]["param"] == "x"
        assert failed["stream"]["body"]["error"]["param"] == "stream"
        assert failed["empty"]["body"]["error"]["param"] == "messages"
        assert sum(asked.body.get("seed") == 2 for asked in one.asked) == 3  # a server's fault is tried again, alone


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n \r\n", "empty_file", None),
        (lines(16) + b"{broken\n" + lines(3), "invalid_json_line", 17),
        (lines(3) + line("item-1").encode(), "duplicate_custom_id", 4),
        (line("a").replace("custom_id", "id").encode(), "invalid_request", 1),
        (f"{line('a')}\n{line('b', body={**HELLO, 'model': 'other'})}".encode(), "mismatched_model", 2),
        (line("a", url="/v1/completions").encode(), "invalid_url", 1),
        (line("a", method="GET").encode(), "invalid_method", 1),
        (line("").encode(), "invalid_custom_id", 1),
        (line("a").encode() + b"\n\xff", "invalid_json_line", 2),
        (line("a", body=[1]).encode(), "invalid_request", 1),
    ],
)
async def test_an_input_that_is_wrong_fails_the_batch_by_its_line(
    tmp_path: Path, content: bytes, code: str, number: int | None
) -> None:
    async with upstreams() as (one,), keeping(tmp_path, [one]) as fleet, client_of(fleet) as client:
        batch = await over(client, (await begun(client, content)).id)
        assert batch.status == "failed"
        assert [(error.code, error.line) for error in batch.errors.data] == [(code, number)]
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        assert not one.asked


async def test_what_cannot_be_created_is_refused_with_its_field(tmp_path: Path) -> None:
    async with upstreams() as (one,), keeping(tmp_path, [one], max_batches=0) as fleet, client_of(fleet) as client:
        file = await client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
        good: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        for change, status, param in (
            ({"input_file_id": "file-none"}, 404, "file_id"),
            ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
            ({"completion_window": "soon"}, 400, "completion_window"),
            ({"metadata": {"a": 1}}, 400, "metadata"),
            ({}, 429, None),
        ):
            got, body, _ = await fleet.post("/v1/batches", {**good, **change})
            if status == 400 and param == "completion_window":
                assert got in (400, 429)  # which is told first does not matter
                continue
            assert got == status, body
            assert (body["error"]["param"] or "").startswith(param or "")
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await client.files.create(file=("in.jsonl", b"x"), purpose="fine-tune")
        with pytest.raises(openai.BadRequestError, match="file"):
            await client.post("/files", cast_to=object, files=[("other", b"")], body={"purpose": "batch"})
        status, body, _ = await fleet.post("/v1/files", {"purpose": "batch"})
        assert (status, body["error"]["code"]) == (400, "invalid_body")
        assert [one_file.id async for one_file in client.files.list()] == [file.id]
        assert list((tmp_path / "incoming").iterdir()) == []


async def test_a_file_that_is_read_cannot_be_deleted_and_large_ones_are_refused(tmp_path: Path) -> None:
    async with upstreams(1, silent) as (one,), keeping(tmp_path, [one]) as fleet, client_of(fleet) as client:
        batch = await begun(client, lines(3))
        with pytest.raises(openai.ConflictError):
            await client.files.delete(batch.input_file_id)
    async with keeping(tmp_path / "small", max_bytes=200_000) as fleet, client_of(fleet) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.files.create(file=("in.jsonl", b"x" * 150_000), purpose="batch")
        assert refused.value.status_code in (413, 507)
        assert list((tmp_path / "small" / "files").iterdir()) == []


async def test_cancelling_keeps_what_is_finished_and_stops_the_rest(tmp_path: Path) -> None:
    async def slow(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0 if asked.body["seed"] < 3 else 60)
        reply(writer, 200, answer(WORDS))

    async with upstreams(1, slow) as (one,), keeping(tmp_path, [one], slots=3) as fleet, client_of(fleet) as client:
        name = (await begun(client, lines(10))).id
        await until(lambda: len(one.asked) >= 5 and one.inside == 3)
        assert (await client.batches.cancel(name)).status in ("cancelling", "cancelled")
        batch = await over(client, name)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("cancelled", 3, 7)
        assert len(await told(client, batch.output_file_id)) == 3
        errors = await told(client, batch.error_file_id)
        assert {one["error"]["code"] for one in errors} == {"batch_cancelled"}
        assert [one["custom_id"] for one in errors] == [f"item-{i}" for i in range(3, 10)]
        await until(lambda: not one.inside)
        await fleet.empty()
        assert (await client.batches.cancel(name)).status == "cancelled"


async def test_expiry_keeps_finished_lines_and_marks_the_rest(tmp_path: Path) -> None:
    async def slow(upstream: Upstream, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0 if asked.body["seed"] < 4 else 60)
        reply(writer, 200, answer(WORDS))

    async with upstreams(1, slow) as (one,), keeping(tmp_path, [one], slots=2) as fleet, client_of(fleet) as client:
        batch = await over(client, (await begun(client, lines(9), window="2s")).id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("expired", 4, 5)
        assert batch.expired_at >= batch.expires_at
        assert len(await told(client, batch.output_file_id)) == 4
        errors = await told(client, batch.error_file_id)
        assert {one["error"]["code"] for one in errors} == {"batch_expired"}
        assert all(one["response"] is None for one in errors)
        await fleet.empty()


async def test_lines_begin_in_the_hours_of_the_day_that_are_theirs(tmp_path: Path) -> None:
    """A batch is made at any time; what somebody asks for in the background does not wait for the night."""
    clock = [datetime(2026, 3, 1, 23, 59, 59).timestamp()]  # noqa: DTZ001 - by this machine's clock, as the window is
    hours = Hours.parse(("00:00-06:00",))
    async with (
        upstreams(1) as ups,
        keeping(tmp_path, ups, batch_hours=hours) as fleet,
        client_of(fleet) as client,
    ):
        fleet.background.batches.clock_s = lambda: clock[0]
        batch = await begun(client, lines(5))
        await fleet.ended(await fleet.kept(HELLO))
        assert len(ups[0].asked) == 1
        waiting: Any = await client.batches.retrieve(batch.id)
        assert waiting.request_counts.completed == 0
        clock[0] += 1
        assert (await over(client, batch.id)).request_counts.completed == 5
        await fleet.empty()


async def test_it_goes_on_after_a_stop_and_asks_nothing_twice(tmp_path: Path) -> None:
    async with upstreams() as (one,):
        one.gap_s = 0.02
        async with keeping(tmp_path, [one], slots=3) as fleet, client_of(fleet) as client:
            name = (await begun(client, lines(30))).id
            await until(lambda: len(one.asked) > 10)
        before = [asked.body["seed"] for asked in one.asked]
        async with keeping(tmp_path, [one], slots=3) as fleet, client_of(fleet) as client:
            batch = await over(client, name)
            assert (batch.status, batch.request_counts.completed) == ("completed", 30)
            output = await told(client, batch.output_file_id)
            assert [one["custom_id"] for one in output] == [f"item-{i}" for i in range(30)]
        again = [asked.body["seed"] for asked in one.asked][len(before) :]
        assert len(set(before) & set(again)) <= 3  # those that were being computed


async def test_a_full_disk_holds_a_batch_up_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.background.batch.run.RETRY_S", 0.1)
    async with upstreams() as (one,), keeping(tmp_path, [one], slots=3) as fleet, client_of(fleet) as client:
        one.gap_s = 0.02
        name = (await begun(client, lines(60))).id
        await until(lambda: len(one.asked) > 5)
        spool = tmp_path / "spool"
        spool.rename(tmp_path / "away")  # as a disk that takes nothing
        await asyncio.sleep(1.0)
        asked = len(one.asked)
        await asyncio.sleep(0.5)
        assert len(one.asked) - asked <= 60
        (tmp_path / "away").rename(spool)
        batch = await over(client, name)
        assert (batch.status, batch.request_counts.completed) == ("completed", 60)
        assert len(one.asked) == 60
        assert len(await told(client, batch.output_file_id)) == 60


@given(st.binary(max_size=200), st.integers(1, 9))
@settings(max_examples=200)
def test_any_bytes_are_a_line_or_named_wrong(text: bytes, number: int) -> None:
    try:
        parse_line(number, text, CHAT)
    except WrongLine as wrong:
        assert wrong.error.line == number
        assert wrong.error.message


@given(
    st.text(min_size=1, max_size=20),
    st.one_of(st.binary(max_size=60), st.text(max_size=60).map(json.dumps).map(str.encode)),
)
def test_an_output_line_is_one_line_of_json(custom_id: str, body: bytes) -> None:
    text = answer_line("r", custom_id.encode(errors="replace").decode(), 200, body)
    assert text.count(b"\n") == 1
    assert text.endswith(b"\n")
    assert json.loads(text)["response"]["status_code"] == 200


async def test_nobody_sees_another_s_files_or_batches(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    alice, bob = (file.create(name, time.time())[1] for name in ("alice", "bob"))
    async with upstreams() as (one,), keeping(tmp_path / "store", [one], ring=KeyRing(file.path)) as fleet:
        async with client_of(fleet, alice) as hers, client_of(fleet, bob) as his:
            batch = await over(hers, (await begun(hers, lines(2))).id)
            assert batch.output_file_id is not None
            for asking in (
                his.batches.retrieve(batch.id),
                his.batches.cancel(batch.id),
                his.files.retrieve(batch.input_file_id),
                his.files.content(batch.output_file_id),
                his.files.delete(batch.output_file_id),
                his.batches.create(
                    input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asking
            assert [item.id async for item in his.files.list()] == []
            assert [item.id async for item in his.batches.list()] == []
            assert len(await told(hers, batch.output_file_id)) == 2
        status, _, _ = await fleet.post("/v1/batches", {})
        assert status == 401
