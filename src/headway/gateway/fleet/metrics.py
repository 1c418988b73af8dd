"""A fleet's numbers for Prometheus. Read off the front, the roster and the figures: nothing is counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric as MetricFamily

from headway.core.fleet.breaker import Trust
from headway.core.fleet.worker import LOAD_FIELDS, Signal, WorkerState
from headway.core.front.front import Front
from headway.core.front.ladder import Level
from headway.core.front.sharing import Mode
from headway.gateway.fleet.driver import FleetDriver
from headway.gateway.fleet.figures import Figures
from headway.gateway.fleet.shadow import ShadowingDriver
from headway.metrics.exporter import family
from headway.metrics.histogram import Histogram
from headway.metrics.names import DURATION_BUCKETS_S, GATEWAY_DIMENSIONS, METRICS, Metric
from headway.metrics.text import series
from headway.metrics.vllm_names import Numbers
from headway.workers.quota import SharedQuotas

_WORKER = ("worker",)
_TENANT = ("tenant",)

_TABLE = (
    Metric("headway_worker_up", "gauge", "1 while the worker is trusted with requests; a half, to find out.", _WORKER),
    Metric("headway_worker_draining", "gauge", "1 while the worker gets nothing new.", _WORKER),
    Metric("headway_worker_requests_in_flight", "gauge", "Requests that were sent there and have not ended.", _WORKER),
    Metric("headway_worker_tokens_in_flight", "gauge", "Their tokens: prompts, and outputs as expected.", _WORKER),
    Metric("headway_worker_window_sequences", "gauge", "How many requests it may have in flight.", _WORKER),
    Metric("headway_worker_window_tokens", "gauge", "How many of their tokens; +Inf while there is no limit.", _WORKER),
    Metric("headway_worker_ttft_seconds", "gauge", "Sending to first byte, lately, as measured here.", _WORKER),
    Metric("headway_worker_running", "gauge", "Sequences that it runs, as it says.", _WORKER),
    Metric("headway_worker_waiting", "gauge", "Sequences that queue inside it, as it says.", _WORKER),
    Metric("headway_worker_kv_used_ratio", "gauge", "KV in use, as it says.", _WORKER),
    Metric("headway_worker_kv_capacity_tokens", "gauge", "KV there is, as it says.", _WORKER),
    Metric("headway_worker_batch_tokens", "gauge", "Tokens of its last steps, as it says.", _WORKER),
    Metric("headway_worker_own_ttft_seconds", "gauge", "Its own TTFT, as it says.", _WORKER),
    Metric("headway_worker_own_itl_seconds", "gauge", "Its own ITL, as it says.", _WORKER),
    Metric("headway_worker_memory_headroom_ratio", "gauge", "Memory it has left, as it says.", _WORKER),
    Metric(
        "headway_worker_accelerator_used_ratio", "gauge", "Its busiest GPU's busy time, as its exporter says.", _WORKER
    ),
    Metric("headway_worker_signal_age_seconds", "gauge", "Since its newest signal was true.", _WORKER),
    Metric(
        "headway_worker_failures_total", "counter", "Answers that it failed, by what was wrong.", ("worker", "code")
    ),
    Metric("headway_requests_returned_total", "counter", "Requests that were sent to another worker."),
    Metric(
        "headway_keys_ignored_total",
        "counter",
        "Calls of /metrics and /load with an API key that is no good, answered as if without.",
    ),
    Metric(
        "headway_worker_seconds",
        "histogram",
        "Sending to the end of the answer: the worker's part of a call.",
        buckets=DURATION_BUCKETS_S,
    ),
    Metric("headway_tenant_waiting", "gauge", "Requests that wait, by tenant.", _TENANT),
    Metric("headway_tenant_running", "gauge", "Requests that were sent and have not ended, by tenant.", _TENANT),
    Metric("headway_tenant_weight", "gauge", "Its share of the tokens, beside others' weights.", _TENANT),
    *GATEWAY_DIMENSIONS.values(),
    Metric("headway_ladder_level", "gauge", "How many levels of degradation the load has climbed, 0 to 6."),
    Metric("headway_ladder_level_active", "gauge", "1 while the level of degradation is in force.", ("level",)),
    Metric("headway_ladder_pressure_ratio", "gauge", "How much too much there is, 0 to 1."),
    Metric("headway_replicas", "gauge", "Workers trusted with requests: not down, not on trial, not draining."),
    Metric("headway_desired_replicas", "gauge", "How many workers there should be: more than there are, or fewer."),
    Metric(
        "headway_quota_mode",
        "gauge",
        "1 for what shared limits go by: store; share, while it is lost, or closed: who has limits is refused.",
        ("mode",),
    ),
    Metric("headway_quota_gateways", "gauge", "Gateways that share the limits, as last known."),
    Metric("headway_quota_losses_total", "counter", "How often the store of shared limits was lost."),
    Metric("headway_quota_exchanges_total", "counter", "Round trips to that store, by outcome.", ("outcome",)),
    Metric("headway_quota_waits_total", "counter", "Requests that waited for one."),
    Metric(
        "headway_shadow_decisions_total",
        "counter",
        "With --shadow: what would have been done: refuse, degrade, queue, expire or displace; and why.",
        ("decision", "why"),
    ),
    Metric("headway_shadow_requests_waiting", "gauge", "With --shadow: requests that would be waiting."),
    Metric("headway_shadow_ladder_level", "gauge", "With --shadow: levels of degradation that would be climbed."),
)
# Signals whose names have another ending here: Prometheus spells units out.
_SECONDS = {"ttft_s": "own_ttft_seconds", "itl_s": "own_itl_seconds"}
FLEET_METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}


class FleetCollector:
    """A Prometheus collector."""

    def __init__(self, driver: FleetDriver, figures: Figures) -> None:
        self._driver = driver
        self._figures = figures

    def describe(self) -> Iterable[MetricFamily]:
        return ()

    def collect(self) -> Iterable[MetricFamily]:
        front = self._driver.front
        yield from self._service(front)
        yield from self._workers(front)
        if self._driver.quotas is not None:
            yield from self._quotas(self._driver.quotas)
        if isinstance(self._driver, ShadowingDriver):
            yield from self._shadow(self._driver)

    def _service(self, front: Front) -> Iterator[MetricFamily]:
        admission, figures = front.admission, self._figures
        yield _of("headway_requests_in_service", admission.requests)
        yield _of("headway_sequences_running", admission.running)
        yield _of("headway_requests_waiting", admission.waiting)
        yield _of("headway_waiting_tokens", admission.waiting_tokens)
        yield _of("headway_lane_waiting", front.lanes.waiting_by_lane())
        yield _of("headway_lane_running", front.lanes.running_by_lane())
        yield from self._models()
        yield _of("headway_requests_ended_total", figures.ended)
        yield _of("headway_requests_refused_total", front.refused)
        yield _of("headway_relegations_total", front.lanes.relegations)
        yield _of("headway_requests_returned_total", figures.returned)
        yield _of("headway_keys_ignored_total", figures.keys_ignored)
        yield _of("headway_prefill_tokens_total", figures.prefill_tokens)
        yield _of("headway_decode_tokens_total", figures.decode_tokens)
        yield _of("headway_ladder_level", front.ladder.height)
        yield _of("headway_ladder_level_active", {one.name.lower(): int(front.ladder.active(one)) for one in Level})
        yield _of("headway_ladder_pressure_ratio", front.ladder.pressure.height)
        # Not `Fleet.up`, which has who may be tried: a dead worker is between any two of its rests.
        trusted = sum(not one.draining and one.breaker.closed for one in front.fleet.workers.values())
        yield _of("headway_replicas", trusted)
        yield _of("headway_desired_replicas", front.overload.replicas.desired)

    def _models(self) -> Iterator[MetricFamily]:
        """Told from those who are inside now, when it is asked: a request costs nothing more for it. Lanes know who of
        them waits.
        """
        models, lanes = self._figures.calls.by["model"], self._driver.front.lanes
        waiting = Counter(request.model for request in lanes)
        inside = Counter(place.request.model for place in self._driver.places.values())
        yield _of("headway_model_waiting", models.bounded(waiting))
        yield _of("headway_model_running", models.bounded(inside - waiting))

    def _workers(self, front: Front) -> Iterator[MetricFamily]:
        now, workers = self._driver.clock(), front.fleet.workers
        up = {Trust.CLOSED: 1.0, Trust.HALF_OPEN: 0.5, Trust.OPEN: 0.0}
        yield _of("headway_worker_up", {name: up[one.breaker.trust(now)] for name, one in workers.items()})
        yield _of("headway_worker_draining", {name: int(one.draining) for name, one in workers.items()})
        yield _of("headway_worker_requests_in_flight", {name: len(one.flights) for name, one in workers.items()})
        yield _of("headway_worker_tokens_in_flight", {name: one.tokens for name, one in workers.items()})
        yield _of("headway_worker_window_sequences", {name: one.window.sequences for name, one in workers.items()})
        yield _of("headway_worker_window_tokens", {name: one.window.tokens for name, one in workers.items()})
        yield _of("headway_worker_ttft_seconds", {name: one.ttft_ns / 1e9 for name, one in workers.items()})
        for field in LOAD_FIELDS:
            # What is not known is not there: unknown is not zero.
            said = {name: signal.value for name, one in workers.items() if (signal := getattr(one.load, field))}
            yield _of(f"headway_worker_{_SECONDS.get(field, field)}", said)
        ages = {name: (now - newest) / 1e9 for name, one in workers.items() if (newest := _newest_ns(one))}
        yield _of("headway_worker_signal_age_seconds", ages)
        yield _of("headway_worker_failures_total", self._figures.failures)

    @staticmethod
    def _shadow(driver: ShadowingDriver) -> Iterator[MetricFamily]:
        yield _of("headway_shadow_decisions_total", driver.shadow.would.counts)
        yield _of("headway_shadow_requests_waiting", driver.decider.admission.waiting)
        yield _of("headway_shadow_ladder_level", driver.decider.ladder.height)

    def _quotas(self, quotas: SharedQuotas) -> Iterator[MetricFamily]:
        sharing = quotas.sharing
        yield _of("headway_quota_mode", {mode.value: int(mode is sharing.mode) for mode in Mode})
        yield _of("headway_quota_gateways", sharing.gateways)
        yield _of("headway_quota_losses_total", sharing.losses)
        yield _of("headway_quota_exchanges_total", quotas.exchanges)
        yield _of("headway_quota_waits_total", quotas.waited)


def tenants_text(driver: FleetDriver, figures: Figures) -> str:
    """Of those that have a series of their own elsewhere, and of those that are new while there is room."""
    front, tenants = driver.front, figures.calls.by["tenant"]
    waiting = Counter(front.lanes.waiting_by_tenant())
    inside = Counter(place.request.tenant for place in driver.places.values())
    told: dict[str, Mapping[str, float]] = {
        "waiting": tenants.bounded(waiting),
        "running": tenants.bounded(inside - waiting),
        "weight": {name: front.tenants.weight(name) for name in tenants.names()},
    }
    return "".join(
        series(FLEET_METRICS[f"headway_tenant_{what}"], {(name,): value for name, value in values.items()})
        for what, values in told.items()
    )


def times_of(figures: Figures) -> dict[Metric, Histogram]:
    """How long calls and their parts took."""
    histograms = {
        "headway_time_to_first_token_seconds": figures.ttft_s,
        "headway_inter_token_latency_seconds": figures.itl_s,
        "headway_request_duration_seconds": figures.duration_s,
        "headway_network_seconds": figures.network_s,
        "headway_tokenise_seconds": figures.tokenise_s,
        "headway_queue_seconds": figures.queue_s,
        "headway_worker_seconds": figures.worker_s,
        "headway_gateway_seconds": figures.gateway_s,
    }
    return {_metric(name): histogram for name, histogram in histograms.items()}


def vllm_numbers(driver: FleetDriver, figures: Figures, models: Sequence[str]) -> Numbers:
    """A gateway's, as vLLM would tell them; of several models they are one."""
    front = driver.front
    return Numbers(
        model=",".join(models),
        running=front.admission.running,
        waiting=front.admission.waiting,
        kv_usage_ratio=front.fleet.kv_used_ratio(driver.clock()),
        unseen_tokens=figures.unseen_tokens,
        ended_total=figures.ended,
    )


def _newest_ns(worker: WorkerState) -> int:
    signals: list[Signal] = [signal for name in LOAD_FIELDS if (signal := getattr(worker.load, name)) is not None]
    return max((signal.at_ns for signal in signals), default=0)


def _metric(name: str) -> Metric:
    return FLEET_METRICS.get(name) or METRICS[name]


def _of(name: str, values: float | Mapping[str, float] | Mapping[tuple[str, str], float]) -> MetricFamily:
    return family(_metric(name), values)
