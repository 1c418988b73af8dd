"""Spans of calls, of an engine's edge and of a fleet's: joined to the client's trace, with the parts of their time."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headway.cli.address import bound_socket, url_of
from headway.cli.spans import exporting, traced
from headway.core.errors import ConfigError, KvExhausted
from headway.core.request import Request
from headway.gateway import Backend, create_app, listening
from headway.gateway.service import EDGE
from headway.gateway.tracing import Tracing
from tests.gateway.driven import driving
from tests.gateway.fake import Client, FakeBackend, Script, says, until
from tests.gateway.fleet.faults import ends_too_early
from tests.gateway.fleet.gateway import CHAT, HELLO, over
from tests.gateway.fleet.upstream import Asked, Upstream, good, upstreams

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(self.exporter, "1.2.3")

    def all(self) -> list[ReadableSpan]:
        self.tracing.flush()
        return list(self.exporter.get_finished_spans())

    def one(self) -> tuple[ReadableSpan, dict[str, ReadableSpan]]:
        """The only call's span and, by name, those under it."""
        (call,) = [span for span in self.all() if span.kind is SpanKind.SERVER]
        children = {span.name: span for span in self.all() if span is not call}
        for child in children.values():
            assert child.parent is not None
            assert child.parent.span_id == call.context.span_id
            assert child.context.trace_id == call.context.trace_id
            assert call.start_time is not None
            assert call.end_time is not None
            assert child.start_time is not None
            assert child.end_time is not None
            assert call.start_time - 1_000_000 <= child.start_time <= child.end_time <= call.end_time + 1_000_000
        return call, children


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.tracing.close()


@asynccontextmanager
async def engine_edge(backend: Backend, spans: Spans) -> AsyncIterator[Client]:
    app = create_app(backend)
    app[EDGE].tracing = spans.tracing
    with bound_socket("127.0.0.1", 0) as sock:
        async with listening(app, sock), aiohttp.ClientSession(base_url=url_of(sock)) as session:
            yield Client(session, url_of(sock))


async def test_a_call_of_an_engine(spans: Spans) -> None:
    async with driving() as backend, engine_edge(backend, spans) as client:
        body = {"model": "driven", "prompt": "once", "max_tokens": 5, "ignore_eos": True}
        status, _, _ = await client.post("/v1/completions", body, traceparent=TRACEPARENT)
        assert status == 200
        assert (await client.get("/health"))[0] == 200
        call, parts = spans.one()
        assert call.name == "text_completion driven"
        assert call.context.trace_id == int(TRACE, 16)
        assert call.parent is not None
        assert call.parent.span_id == int(PARENT, 16)
        assert set(parts) == {"network", "tokenise", "queue", "prefill", "decode"}
        said = dict(call.attributes or {})
        assert said["gen_ai.operation.name"] == "text_completion"
        assert said["gen_ai.request.model"] == "driven"
        assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (1, 5)
        assert said["gen_ai.response.finish_reasons"] == ("length",)
        assert said["http.response.status_code"] == 200
        assert dict(call.resource.attributes)["service.name"] == "headway"
        assert "once" not in str(call.to_json())


async def test_a_refusal_and_a_failure_in_a_stream(spans: Spans) -> None:
    def breaks(request: Request) -> Script:
        return [*says(request, " good", " day")[:1], KvExhausted("no KV", retry_after_s=1.0)]

    backend = FakeBackend(breaks)
    async with engine_edge(backend, spans) as client:
        assert (await client.post("/v1/completions", {"prompt": 5.5}))[0] == 400
        await client.stream("/v1/completions", {"prompt": "once"})
        await until(lambda: len(spans.all()) >= 4)
        refused, broken = [span for span in spans.all() if span.kind is SpanKind.SERVER]
        assert (refused.attributes or {})["http.response.status_code"] == 400
        assert refused.status.status_code is StatusCode.UNSET, "a client's mistake is no error of the server"
        assert (broken.attributes or {})["error.type"] == "kv_exhausted"
        assert broken.status.status_code is StatusCode.ERROR


async def test_a_call_through_a_fleet_and_its_worker_below_it(spans: Spans) -> None:
    seen: list[str] = []

    async def remembers(upstream: Upstream, asked: Asked, writer) -> None:
        seen.append(asked.headers.get("traceparent", ""))
        await good(upstream, asked, writer)

    async with upstreams(1, remembers) as made, over(made) as fleet:
        fleet.service.tracing = spans.tracing
        async with fleet.session.post(
            CHAT, json={**HELLO, "stream": True}, headers={"traceparent": TRACEPARENT}
        ) as got:
            await got.read()
        await until(lambda: len(spans.all()) == 5)
        call, parts = spans.one()
        assert set(parts) == {"network", "tokenise", "queue", "worker"}
        assert seen == [f"00-{TRACE}-{call.context.span_id:016x}-01"]
        said = dict(call.attributes or {})
        assert call.name == "chat tiny"
        assert said["gen_ai.response.finish_reasons"] == ("stop",)
        assert said["gen_ai.usage.output_tokens"] == 4
        assert isinstance(said["gen_ai.response.time_to_first_chunk"], float)
        worker = dict(parts["worker"].attributes or {})
        assert (worker["headway.worker"], worker["headway.tries"]) == ("w0", 1)
        assert "headway.routing.score" in worker
        assert "hello" not in str(call.to_json())


async def test_a_stream_that_its_worker_breaks_off_is_an_error(spans: Spans) -> None:
    async with upstreams(1, ends_too_early) as made, over(made) as fleet:
        fleet.service.tracing = spans.tracing
        await fleet.stream(CHAT, HELLO)
        await until(lambda: len(spans.all()) == 5)
        call, _ = spans.one()
        assert call.status.status_code is StatusCode.ERROR
        assert (call.attributes or {})["error.type"] == "worker_closed"


@pytest.mark.slow
def test_nothing_of_it_is_imported_when_it_is_off() -> None:
    code = (
        "import sys, headway.cli.server, headway.cli.fleet.run; print([m for m in sys.modules if 'opentelemetry' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_what_it_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="http/protobuf, and the environment asks for 'grpc'"):
        exporting()
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'headway\[otel\]'"):
        exporting()


class Collector:
    """Takes OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[str] = []
        self.services: set[str] = set()

    async def take(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(gzip_or_not(await request.read()))
        for resource in sent.resource_spans:
            attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.services.add(attributes["service.name"])
            self.spans += [span.name for scope in resource.scope_spans for span in scope.spans]
        return web.Response(body=b"")


def gzip_or_not(body: bytes) -> bytes:
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


async def test_they_go_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    with bound_socket("127.0.0.1", 0) as sock:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.SockSite(runner, sock).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url_of(sock))
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
        edge = create_app(FakeBackend())
        with bound_socket("127.0.0.1", 0) as ours:
            async with (
                traced(edge, exporting()),
                listening(edge, ours),
                aiohttp.ClientSession(base_url=url_of(ours)) as session,
            ):
                await Client(session, url_of(ours)).post("/v1/completions", {"prompt": "once"})
        assert "text_completion fake" in collector.spans, "what was left was sent at the end"
        assert collector.services == {"ours"}
        await runner.cleanup()


@pytest.mark.slow
async def test_a_collector_that_is_not_there_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    app = create_app(FakeBackend())
    began_s = time.monotonic()
    with bound_socket("127.0.0.1", 0) as ours:
        async with (
            traced(app, exporting()),
            listening(app, ours),
            aiohttp.ClientSession(base_url=url_of(ours)) as session,
        ):
            assert (await Client(session, url_of(ours)).post("/v1/completions", {"prompt": "once"}))[0] == 200
    assert time.monotonic() - began_s < 15
