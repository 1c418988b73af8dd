"""What is no HTTP, or no HTTP of ours, is answered in the same shape as everything else."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from tests.gateway.fake import FakeBackend, serving


async def exchange(url: str, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower-case) and body of the one answer; the server must close after it."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}, body


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", 400, "invalid_http"),
        (b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"G@T /health HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/9\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"hello\r\n\r\n", 400, "invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_http"),  # TLS to a port that has none
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: five\r\n\r\n", 400, "invalid_http"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400, "invalid_http"),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "invalid_http",
        ),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nbad header: 1\r\n\r\n", 400, "invalid_http"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nExpect: a miracle\r\n\r\n", 417, None),
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nExpect: a miracle\r\n\r\n", 417, None),
    ],
)
async def test_it_is_an_error_of_ours(data: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakeBackend()) as client:
        with caplog.at_level(logging.DEBUG):
            got, headers, body = await exchange(client.url, data)
        assert (await client.get("/health"))[0] == 200
        async with client.session.get("/metrics") as response:
            counted = f'headway_http_responses_total{{route="malformed",status="{status}"}} 1.0'
            assert counted in await response.text()
    error = json.loads(body)["error"]
    assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert headers["content-type"].startswith("application/json")
    assert headers["server"] == "headway"
    [record] = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert headers["x-request-id"] in record.getMessage()
    assert record.exc_info is None
    assert "\n" not in record.getMessage()


async def test_the_chunks_of_a_body_are_http_too() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(FakeBackend()) as client:
        status, headers, body = await exchange(client.url, head + b"zz\r\nnot a chunk\r\n0\r\n\r\n")
    assert status == 400
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert headers["server"] == "headway"
