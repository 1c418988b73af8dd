"""Prometheus text from an engine's snapshot, read when scraped, and from what the gateway observes as it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily

from headway.metrics.names import METRICS


class SnapshotView(Protocol):
    """The plain numbers an engine shows."""

    @property
    def requests(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def waiting_tokens(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def step_tokens(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def preempted(self) -> int: ...
    @property
    def kv_blocks_used(self) -> int: ...
    @property
    def kv_blocks_total(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def prefill_tokens_total(self) -> int: ...
    @property
    def decode_tokens_total(self) -> int: ...
    @property
    def prefill_seconds_total(self) -> float: ...
    @property
    def decode_seconds_total(self) -> float: ...
    @property
    def steps_total(self) -> int: ...
    @property
    def preemptions_total(self) -> int: ...
    @property
    def recomputed_tokens_total(self) -> int: ...
    @property
    def ended_total(self) -> Mapping[str, int]: ...
    @property
    def refused_total(self) -> Mapping[str, int]: ...


class SnapshotCollector:
    """A Prometheus collector over `read`: nothing is counted twice, since the engine's own counters are shown."""

    def __init__(self, read: Callable[[], SnapshotView], ready: Callable[[], bool]) -> None:
        self._read = read
        self._ready = ready

    def describe(self) -> Iterable[MetricFamily]:
        return ()  # known without reading an engine that may not be up yet

    def collect(self) -> Iterable[MetricFamily]:
        yield _gauge("headway_engine_ready", 1 if self._ready() else 0)
        now = self._read()
        yield _gauge("headway_requests_in_service", now.requests)
        yield _gauge("headway_sequences_running", now.running)
        yield _gauge("headway_step_tokens", now.step_tokens)
        yield _gauge("headway_kv_resident_tokens", now.kv_tokens)
        yield _gauge("headway_requests_waiting", now.waiting)
        yield _gauge("headway_waiting_tokens", now.waiting_tokens)
        yield _gauge("headway_sequences_preempted", now.preempted)
        yield _gauge("headway_kv_usage_ratio", now.kv_blocks_used / now.kv_blocks_total if now.kv_blocks_total else 0.0)
        yield _gauge("headway_kv_blocks", now.kv_blocks_total)
        yield _gauge("headway_max_num_seqs", now.max_num_seqs)
        yield _gauge("headway_max_num_batched_tokens", now.max_num_batched_tokens)
        yield _counter("headway_prefill_tokens_total", now.prefill_tokens_total)
        yield _counter("headway_decode_tokens_total", now.decode_tokens_total)
        yield _counter("headway_prefill_seconds_total", now.prefill_seconds_total)
        yield _counter("headway_decode_seconds_total", now.decode_seconds_total)
        yield _counter("headway_steps_total", now.steps_total)
        yield _counter("headway_preemptions_total", now.preemptions_total)
        yield _counter("headway_recomputed_tokens_total", now.recomputed_tokens_total)
        yield _counter("headway_requests_ended_total", now.ended_total)
        yield _counter("headway_requests_refused_total", now.refused_total)


class Exporter:
    """The service's metrics on a registry of their own, so that two services in one process do not collide."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, collector: SnapshotCollector) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(collector)
        self.ttft_s = self._histogram("headway_time_to_first_token_seconds")
        self.itl_s = self._histogram("headway_inter_token_latency_seconds")
        self.duration_s = self._histogram("headway_request_duration_seconds")
        self.tokenise_s = self._histogram("headway_tokenise_seconds")
        self.queue_s = self._histogram("headway_queue_seconds")
        self.prefill_s = self._histogram("headway_prefill_seconds")
        self.decode_s = self._histogram("headway_decode_seconds")
        responses = METRICS["headway_http_responses_total"]
        self.responses = Counter(responses.name, responses.meaning, responses.labels, registry=self.registry)
        in_flight = METRICS["headway_http_requests_in_flight"]
        self.in_flight = Gauge(in_flight.name, in_flight.meaning, registry=self.registry)

    def render(self) -> bytes:
        """Prometheus' text format, version 0.0.4."""
        return generate_latest(self.registry)

    def _histogram(self, name: str) -> Histogram:
        metric = METRICS[name]
        return Histogram(name, metric.meaning, buckets=metric.buckets, registry=self.registry)


def _gauge(name: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, METRICS[name].meaning, value=value)


def _counter(name: str, value: float | Mapping[str, int]) -> CounterMetricFamily:
    metric = METRICS[name]
    if not isinstance(value, Mapping):
        return CounterMetricFamily(name, metric.meaning, value=value)
    family = CounterMetricFamily(name, metric.meaning, labels=metric.labels)
    for label, count in value.items():
        family.add_metric([label], count)
    return family
