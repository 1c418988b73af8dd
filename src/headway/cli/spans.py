"""`--otel`: where spans and numbers go, by OpenTelemetry's own environment variables."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from aiohttp import web

from headway.core.errors import ConfigError
from headway.gateway.app import installed_version
from headway.gateway.service import EDGE

if TYPE_CHECKING:  # an extra
    from opentelemetry.sdk.metrics.export import MetricExporter

    from headway.gateway.tracing import Tracing

PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"


def exporting() -> Tracing:
    """Raises ConfigError where the extra is missing, or the environment asks for what it cannot do."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from headway.gateway.tracing import Tracing
    except ImportError as error:
        raise ConfigError(
            f"--otel needs packages that are not here ({error.name}): pip install 'headway[otel]'.", param="otel"
        ) from error
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), SPOKEN)
    if protocol != SPOKEN:
        raise ConfigError(f"Spans are sent as {SPOKEN}, and the environment asks for {protocol[:40]!r}.", param="otel")
    tracing = Tracing(OTLPSpanExporter(), installed_version())
    if os.environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none":
        tracing.metric_exporter = OTLPMetricExporter()
    return tracing


@contextlib.asynccontextmanager
async def traced(app: web.Application, tracing: Tracing | None) -> AsyncIterator[None]:
    """While it is open, `app` sends spans and numbers; at its end those that are left are sent."""
    app[EDGE].tracing = tracing
    async with contextlib.AsyncExitStack() as stack:
        if tracing is not None:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
            if tracing.metric_exporter is not None:
                await stack.enter_async_context(_metered(app, tracing, tracing.metric_exporter))
        yield


@contextlib.asynccontextmanager
async def _metered(app: web.Application, tracing: Tracing, exporter: MetricExporter) -> AsyncIterator[None]:
    from headway.gateway.genai import GenAiMetrics

    metrics = GenAiMetrics(app[EDGE].metrics, exporter, tracing.version, tracing.resource)
    sending = asyncio.create_task(metrics.send_for_ever())
    try:
        yield
    finally:
        sending.cancel()
        await metrics.send()
        await asyncio.to_thread(metrics.close)
