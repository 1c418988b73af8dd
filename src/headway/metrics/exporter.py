"""Prometheus text from an engine's snapshot, read when scraped, and from what the gateway observes as it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from headway.core.request import Slo
from headway.metrics.breakdown import Calls
from headway.metrics.gaps import AllGaps
from headway.metrics.histogram import Histogram
from headway.metrics.names import METRICS, Metric
from headway.metrics.snapshot import Snapshot
from headway.metrics.text import Labels, histograms, series
from headway.metrics.vllm_names import Numbers, vllm_text


def family(metric: Metric, values: float | Mapping[str, float] | Mapping[Labels, float]) -> MetricFamily:
    """A counter or a gauge: its value, or its values by its label's or its labels' values."""
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    made = kind(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        made.add_metric((labels,) if isinstance(labels, str) else labels, value)
    return made


class SnapshotCollector(Collector):
    """A Prometheus collector over `read`: nothing is counted twice, since the engine's own counters are shown.

    `model`: the name by which the engine's one model is served.
    """

    def __init__(self, read: Callable[[], Snapshot], ready: Callable[[], bool], model: str) -> None:
        self._read = read
        self._ready = ready
        self._model = model

    def describe(self) -> Iterable[MetricFamily]:
        return ()  # known without reading an engine that may not be up yet

    def collect(self) -> Iterable[MetricFamily]:
        yield _of("headway_engine_ready", 1 if self._ready() else 0)
        now = self._read()
        yield _of("headway_requests_in_service", now.requests)
        yield _of("headway_sequences_running", now.running)
        yield _of("headway_step_tokens", now.step_tokens)
        yield _of("headway_kv_resident_tokens", now.kv_tokens)
        yield _of("headway_requests_waiting", now.waiting)
        yield _of("headway_waiting_tokens", now.waiting_tokens)
        yield _of("headway_sequences_preempted", now.preempted)
        yield _of("headway_kv_usage_ratio", now.kv_usage_ratio)
        yield _of("headway_kv_blocks", now.kv_blocks_total)
        yield _of("headway_kv_cached_blocks", now.kv_blocks_cached)
        yield _of("headway_kv_set_aside_blocks", now.kv_blocks_set_aside)
        yield _of("headway_kv_reserved_bytes", now.kv_reserved_bytes)
        yield _of("headway_memory_used_bytes", now.memory_bytes)
        yield _of("headway_lane_waiting", now.waiting_by_lane)
        yield _of("headway_lane_running", now.running_by_lane)
        yield _of("headway_model_waiting", {self._model: now.waiting})
        yield _of("headway_model_running", {self._model: now.requests - now.waiting})
        yield _of("headway_max_num_seqs", now.max_num_seqs)
        yield _of("headway_max_num_batched_tokens", now.max_num_batched_tokens)
        yield _of("headway_prefill_tokens_total", now.prefill_tokens_total)
        yield _of("headway_decode_tokens_total", now.decode_tokens_total)
        yield _of("headway_prefill_seconds_total", now.prefill_seconds_total)
        yield _of("headway_decode_seconds_total", now.decode_seconds_total)
        yield _of("headway_steps_total", now.steps_total)
        yield _of("headway_preemptions_total", now.preemptions_total)
        yield _of("headway_recomputed_tokens_total", now.recomputed_tokens_total)
        yield _of("headway_pad_tokens_total", now.pad_tokens_total)
        yield _of("headway_kv_evictions_total", now.evictions_total)
        yield _of("headway_relegations_total", now.relegations_total)
        yield _of("headway_prefix_lookup_tokens_total", now.prefix_lookup_tokens_total)
        yield _of("headway_prefix_hit_tokens_total", now.prefix_hit_tokens_total)
        yield _of("headway_step_predicted_seconds_total", now.step_predicted_seconds_total)
        yield _of("headway_step_real_seconds_total", now.step_real_seconds_total)
        yield _of("headway_step_error_seconds_total", now.step_error_seconds_total)
        yield _of("headway_requests_ended_total", now.ended_total)
        yield _of("headway_requests_refused_total", now.refused_total)


class PromiseCollector(Collector):
    """What a request is promised that does not say otherwise. What is not promised has no value."""

    def __init__(self, read: Callable[[], Slo]) -> None:
        self._read = read

    def describe(self) -> Iterable[MetricFamily]:
        return ()

    def collect(self) -> Iterable[MetricFamily]:
        slo = self._read()
        for name, ns in (("ttft", slo.ttft_ns), ("itl", slo.itl_ns)):
            yield family(METRICS[f"headway_slo_{name}_seconds"], {(): ns / 1e9} if ns else {})


def _of(name: str, values: float | Mapping[str, int]) -> MetricFamily:
    return family(METRICS[name], values)


class EdgeExporter:
    """What every HTTP edge counts, beside what `collector` reads, on a registry of its own: two services in one process
    do not collide. `times` are histograms that are observed elsewhere; they and `calls` are asked for at each scrape.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self, collector: Collector, calls: Callable[[], Calls], times: Callable[[], Mapping[Metric, Histogram]]
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(collector)
        self._calls = calls
        self._times = times
        self.stream_errors = self._count("headway_stream_errors_total")
        self.in_flight = 0  # API calls being answered
        in_flight = METRICS["headway_http_requests_in_flight"]
        Gauge(in_flight.name, in_flight.meaning, registry=self.registry).set_function(lambda: self.in_flight)
        # What goes to a scrape as well: the same numbers under other names, and what names tenants.
        self.also: list[Callable[[], str]] = []
        self.of_tenants: list[Callable[[], str]] = []
        self._answered: dict[tuple[str, int], int] = {}

    @property
    def calls(self) -> Calls:
        return self._calls()

    @property
    def times(self) -> Mapping[Metric, Histogram]:
        return self._times()

    def render(self, *, tenants: bool = True) -> bytes:
        """Prometheus' text format, version 0.0.4. Without `tenants` nothing in it names one."""
        parts = [histograms(metric, {(): histogram}) for metric, histogram in self.times.items()]
        answers = {(route, str(status)): count for (route, status), count in self._answered.items()}
        parts += [series(METRICS["headway_http_responses_total"], answers), self.calls.text(tenants=tenants)]
        parts += [write() for write in (*self.also, *(self.of_tenants if tenants else ()))]
        return generate_latest(self.registry) + "".join(parts).encode()

    def tell_as_vllm(self, read: Callable[[], Numbers]) -> None:
        """Tell vLLM's names as well, from now on."""

        def write() -> str:
            times = {metric.name: histogram for metric, histogram in self.times.items()}
            return vllm_text(read(), times, self.calls)

        self.also.append(write)

    def answered(self, route: str, status: int) -> None:
        """Count an answer."""
        key = route, status
        self._answered[key] = self._answered.get(key, 0) + 1

    def _count(self, name: str) -> Counter:
        metric = METRICS[name]
        return Counter(name, metric.meaning, metric.labels, registry=self.registry)


class Exporter(EdgeExporter):
    """An engine's as well: how long each part of a call took."""

    def __init__(self, collector: SnapshotCollector) -> None:
        calls, self._own, self.gaps = Calls(("lane", "model")), dict[Metric, Histogram](), AllGaps()
        itl = METRICS["headway_inter_token_latency_seconds"]
        super().__init__(collector, lambda: calls, lambda: {**self._own, itl: self.itl_s})
        self.ttft_s = self._histogram("headway_time_to_first_token_seconds")
        self.duration_s = self._histogram("headway_request_duration_seconds")
        self.network_s = self._histogram("headway_network_seconds")
        self.tokenise_s = self._histogram("headway_tokenise_seconds")
        self.queue_s = self._histogram("headway_queue_seconds")
        self.prefill_s = self._histogram("headway_prefill_seconds")
        self.decode_s = self._histogram("headway_decode_seconds")
        self.gateway_s = self._histogram("headway_gateway_seconds")

    @property
    def itl_s(self) -> Histogram:
        """As it is now."""
        return self.gaps.histogram

    def _histogram(self, name: str) -> Histogram:
        metric = METRICS[name]
        histogram = self._own[metric] = Histogram(metric.buckets)
        return histogram


def vllm_numbers(now: Snapshot, model: str, block_size: int | None) -> Numbers:
    """An engine's, as vLLM would tell them."""
    return Numbers(
        model=model,
        running=now.running,
        waiting=now.waiting,
        kv_usage_ratio=now.kv_usage_ratio,
        preemptions_total=now.preemptions_total,
        prefix_lookup_tokens_total=now.prefix_lookup_tokens_total,
        prefix_hit_tokens_total=now.prefix_hit_tokens_total,
        ended_total=now.ended_total,
        kv_blocks=now.kv_blocks_total,
        block_size=block_size,
    )
