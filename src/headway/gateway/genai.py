"""Numbers under OpenTelemetry's names for generative AI, sent beside the spans: `--otel`.

Made from our own histograms when they are sent, every `OTEL_METRIC_EXPORT_INTERVAL` ms (60 s): a token costs nothing
more. Names, units and attributes are those of its semantic conventions; a histogram has our buckets, which hold theirs.
Imported only where spans were asked for: it needs `headway[otel]`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from headway.metrics.exporter import EdgeExporter
from headway.metrics.histogram import Histogram
from headway.metrics.names import METRICS

log = logging.getLogger("headway.gateway")

INTERVAL_MS = 60_000.0
SHORTEST_MS = 100.0

# Theirs -> ours.
_TIMES = {
    "gen_ai.server.request.duration": "headway_request_duration_seconds",
    "gen_ai.server.time_to_first_token": "headway_time_to_first_token_seconds",
    "gen_ai.server.time_per_output_token": "headway_inter_token_latency_seconds",
}
_TOKENS = "gen_ai.client.token.usage"


def interval_s() -> float:
    """By the environment; what is no number is the default."""
    try:
        asked_ms = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_MS))
    except ValueError:
        asked_ms = INTERVAL_MS
    return max(SHORTEST_MS, asked_ms) / 1e3


class GenAiMetrics:
    """Of one edge, since it was made."""

    def __init__(self, metrics: EdgeExporter, exporter: MetricExporter, version: str, resource: Resource) -> None:
        self._metrics = metrics
        self._exporter = exporter
        self._scope = InstrumentationScope("headway", version)
        self._resource = resource
        self._start_ns = time.time_ns()
        self._failed = False

    def data(self) -> MetricsData:
        """All of it as it is now. Read on the event loop, which is who counts."""
        now_ns = time.time_ns()
        times = {metric.name: histogram for metric, histogram in self._metrics.times.items()}
        shared = {"gen_ai.provider.name": "headway"}
        told = [
            self._metric(name, METRICS[ours].meaning, "s", [(shared, times[ours])], now_ns)
            for name, ours in _TIMES.items()
            if ours in times
        ]
        calls = self._metrics.calls
        tokens: list[tuple[Mapping[str, str], Histogram]] = [
            ({**shared, "gen_ai.token.type": kind}, histogram)
            for kind, histogram in (("input", calls.input_tokens), ("output", calls.output_tokens))
        ]
        told.append(self._metric(_TOKENS, "Input and output tokens of answered requests.", "{token}", tokens, now_ns))
        scoped = ScopeMetrics(self._scope, told, "")
        return MetricsData([ResourceMetrics(self._resource, [scoped], "")])

    def _metric(
        self, name: str, meaning: str, unit: str, rows: list[tuple[Mapping[str, str], Histogram]], now_ns: int
    ) -> Metric:
        points = [
            HistogramDataPoint(
                attributes=dict(attributes),
                start_time_unix_nano=self._start_ns,
                time_unix_nano=now_ns,
                count=histogram.count,
                sum=histogram.sum,
                bucket_counts=list(histogram.counts),
                explicit_bounds=list(histogram.bounds),
                min=None,  # type: ignore[arg-type]  # unknown, and left out of what is sent
                max=None,  # type: ignore[arg-type]
            )
            for attributes, histogram in rows
        ]
        return Metric(name, meaning, unit, OtelHistogram(points, AggregationTemporality.CUMULATIVE))

    async def send_for_ever(self) -> None:
        while True:
            await asyncio.sleep(interval_s())
            await self.send()

    async def send(self) -> None:
        """Now. One that does not arrive is logged, once until one does: the next says all that it said."""
        data = self.data()
        try:
            result = await asyncio.to_thread(self._exporter.export, data)
        except Exception:  # whatever it is, it must not end the sending
            log.exception("OpenTelemetry metrics could not be sent")
            return
        failed = result is not MetricExportResult.SUCCESS
        if failed and not self._failed:
            log.warning("OpenTelemetry metrics could not be sent; they are tried again")
        self._failed = failed

    def close(self) -> None:
        """Blocking."""
        self._exporter.shutdown()
