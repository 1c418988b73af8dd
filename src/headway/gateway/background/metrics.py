"""Numbers of the work that is kept, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from headway.gateway.background.service import Background
from headway.metrics.exporter import family
from headway.metrics.names import Metric

_TABLE = (
    Metric("headway_background_queued", "gauge", "Background requests that wait in the store."),
    Metric("headway_background_running", "gauge", "Background requests and lines of batches that are being computed."),
    Metric("headway_background_ended_total", "counter", "Background requests that ended, by how.", ("state",)),
    Metric("headway_batches_unfinished", "gauge", "Batches that have not ended."),
    Metric("headway_batches_ended_total", "counter", "Batches that ended, by how.", ("state",)),
)
BACKGROUND_METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}


class BackgroundCollector(Collector):
    """Of one `Background`. Before it is opened there is nothing to tell."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def describe(self) -> Iterable[MetricFamily]:
        return ()

    def collect(self) -> Iterable[MetricFamily]:
        background = self._background
        if not background.opened:
            return
        yield _of("headway_background_queued", background.jobs.queued)
        yield _of("headway_background_running", background.runner.running)
        yield _of("headway_background_ended_total", background.jobs.ended)
        yield _of("headway_batches_unfinished", background.batches.unfinished)
        yield _of("headway_batches_ended_total", background.batches.ended)


def _of(name: str, values: float | Mapping[str, int]) -> MetricFamily:
    return family(BACKGROUND_METRICS[name], values)
