"""Numbers under OpenTelemetry's names: what arrives at a collector is what was counted."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint

from headway.cli.address import bound_socket, url_of
from headway.cli.spans import exporting, traced
from headway.gateway import create_app, listening
from headway.gateway.genai import interval_s
from headway.gateway.service import SERVICE
from tests.gateway.fake import Client, FakeBackend, serving

ASK = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


class Collector:
    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.requests.append(ExportMetricsServiceRequest.FromString(body))
        return web.Response(body=b"", content_type="application/x-protobuf")

    async def spans(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response()

    def points(self) -> dict[str, list[HistogramDataPoint]]:
        """Of the last one that came."""
        return {
            metric.name: list(metric.histogram.data_points)
            for resource in self.requests[-1].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/metrics", collector.take)
    app.router.add_post("/v1/traces", collector.spans)
    runner = web.AppRunner(app)
    await runner.setup()
    with bound_socket("127.0.0.1", 0) as sock:
        await web.SockSite(runner, sock).start()
        collector.url = url_of(sock)
        try:
            yield collector
        finally:
            await runner.cleanup()


async def test_a_collector_gets_what_was_counted(monkeypatch: pytest.MonkeyPatch):
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        app = create_app(FakeBackend())
        with bound_socket("127.0.0.1", 0) as sock:
            async with (
                traced(app, exporting()),
                listening(app, sock),
                aiohttp.ClientSession(base_url=url_of(sock)) as session,
            ):
                for _ in range(3):
                    await Client(session, url_of(sock)).stream("/v1/chat/completions", ASK)
                ours = app[SERVICE].metrics
        points = collector.points()
    assert set(points) == {
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
        "gen_ai.client.token.usage",
    }
    (ttft,) = points["gen_ai.server.time_to_first_token"]
    assert list(ttft.bucket_counts) == ours.ttft_s.counts
    assert list(ttft.explicit_bounds) == list(ours.ttft_s.bounds)
    assert ttft.sum == pytest.approx(ours.ttft_s.sum)
    assert ttft.count == 3
    assert not ttft.HasField("min")  # unknown is not zero
    assert ttft.start_time_unix_nano < ttft.time_unix_nano
    tokens = {one.attributes[-1].value.string_value: one for one in points["gen_ai.client.token.usage"]}
    assert tokens["output"].sum == ours.calls.output_tokens.sum == 6
    assert tokens["input"].count == 3


async def test_who_wants_no_metrics_sends_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert exporting().metric_exporter is None


async def test_without_otel_nothing_is_sent():
    async with serving(FakeBackend()) as client:
        assert (await client.post("/v1/chat/completions", ASK))[0] == 200


@pytest.mark.parametrize(("said", "seconds"), [("500", 0.5), ("soon", 60.0), ("0", 0.1)])
def test_the_interval_is_the_environment_s(monkeypatch: pytest.MonkeyPatch, said: str, seconds: float):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", said)
    assert interval_s() == seconds
