"""`Tracing`: an OpenTelemetry span for each call, joined to its client's trace, with the parts of its time as children.

Imported only where spans were asked for: it needs `headway[otel]`. Names are those of OpenTelemetry's conventions for
HTTP and for generative AI, and `headway.*` for what they have none for. No prompt, output or key is in a span.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from aiohttp import web
from opentelemetry import trace
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headway.gateway.edge import CLIENT_GONE, REQUEST_ID, TRACEPARENT
from headway.gateway.observe import TALLY, Tally

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}
FLUSH_MS = 3000

_propagator = TraceContextTextMapPropagator()
Value = str | bool | int | float | Sequence[str]


class Tracing:
    """Who is asked for health and numbers every second is not traced: only what is under `/v1`."""

    def __init__(self, exporter: SpanExporter, version: str) -> None:
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES overrule this; OTEL_TRACES_SAMPLER is read by the provider.
        resource = Resource({"service.name": "headway", "service.version": version}).merge(_said())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headway", version)
        self.resource = resource
        self.version = version
        self.metric_exporter: MetricExporter | None = None  # where numbers go, beside the spans

    def begin(self, request: web.Request) -> Traced | None:
        return Traced(self._tracer, request) if request.path.startswith("/v1/") else None

    def flush(self) -> None:
        """Blocking."""
        self._provider.force_flush(FLUSH_MS)

    def close(self) -> None:
        """Blocking, for as long as it takes to send what is left, within limits."""
        self.flush()
        self._provider.shutdown()


class Traced:
    """One call's span. From its beginning on, a worker is told of it as its parent."""

    def __init__(self, tracer: trace.Tracer, request: web.Request) -> None:
        self._tracer = tracer
        self._request = request
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        carrier = {name: request.headers[name] for name in ("traceparent", "tracestate") if name in request.headers}
        route = _route(request)
        self._span = tracer.start_span(
            f"{request.method} {route}",
            _propagator.extract(carrier),
            kind=trace.SpanKind.SERVER,
            attributes={
                "http.request.method": request.method,
                "http.route": route,
                "url.path": request.path,
                "headway.request_id": request[REQUEST_ID],
            },
        )
        told: dict[str, str] = {}
        _propagator.inject(told, trace.set_span_in_context(self._span))
        if "traceparent" in told:
            request[TRACEPARENT] = told["traceparent"].encode()

    def end(self, status: int) -> None:
        span, tally = self._span, self._request.get(TALLY)
        if span.is_recording():
            span.set_attribute("http.response.status_code", status)
            failure = tally.failure if tally is not None else ""
            if status >= 500 or failure:
                span.set_attribute("error.type", failure or str(status))
                span.set_status(trace.StatusCode.ERROR)
            elif status == CLIENT_GONE:
                span.set_attribute("error.type", "client_gone")
            if tally is not None:
                self._tell(tally)
        span.end()

    def _tell(self, tally: Tally) -> None:
        span = self._span
        operation = OPERATIONS.get(self._request.path)
        if operation is not None:
            span.update_name(f"{operation} {tally.model}".rstrip())
            span.set_attribute("gen_ai.operation.name", operation)
        span.set_attribute("gen_ai.provider.name", "headway")
        told: Mapping[str, Value | None] = {
            "gen_ai.request.model": tally.model or None,
            "gen_ai.response.finish_reasons": tally.finish_reasons or None,
            "gen_ai.usage.input_tokens": tally.prompt_tokens,
            "gen_ai.usage.output_tokens": tally.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": tally.cached_tokens,
            "gen_ai.response.time_to_first_chunk": tally.ttft_s,
            **tally.facts,
        }
        for name, value in told.items():
            if value is not None:
                span.set_attribute(name, value)
        inside = trace.set_span_in_context(span)
        for part in tally.parts():
            child = self._tracer.start_span(
                part.name, inside, attributes=dict(part.facts), start_time=self._epoch_ns + part.begin_ns
            )
            child.end(self._epoch_ns + part.end_ns)


def _said() -> Resource:
    """What the environment says of this service; not the name that is made up where it says none."""
    attributes = dict(Resource.create().attributes)
    if str(attributes.get("service.name", "")).startswith("unknown_service"):
        del attributes["service.name"]
    return Resource(attributes)


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource else "unmatched"
