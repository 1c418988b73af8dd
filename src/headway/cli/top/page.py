"""`Page`: what a server tells at one moment, by its own names; fetched from `/metrics`, or from its load as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headway.metrics.server_names import GAUGES, HISTOGRAMS, TOTALS, of_one_rank
from headway.metrics.text import samples
from headway.metrics.worker_signals import read_load
from headway.wire.asker import Asker, Unreachable
from headway.wire.blocking import Answer

# Servers without `/metrics` that tell their load elsewhere.
LOAD_PATHS = ("/load", "/v1/loads", "/slots")
# Signals, and names of headway alone, that a frame is made of: nothing else on a page is kept.
_NOW = (
    *("in_service", "running", "waiting", "waiting_tokens", "preempted", "step_tokens", "kv_tokens", "memory_bytes"),
    *("kv_reserved_bytes", "ladder_level", "pressure_ratio", "replicas", "desired_replicas"),
)
NOW = {**{signal: GAUGES[signal] for signal in _NOW}, "kv_used_ratio": GAUGES["kv_ratio"]}
_RATES = ("prompt_tokens", "generation_tokens", "preemptions", "lookup_tokens", "hit_tokens")
RATES = {
    **{signal: TOTALS[signal] for signal in _RATES},
    "ended": ("headway_requests_total", *TOTALS["ended"]),
}
TIMES = {what: HISTOGRAMS[f"{what.lower()}_s"] for what in ("TTFT", "ITL", "queue", "E2E")}
BY_LABEL = tuple(
    f"headway_{name}"
    for name in (
        *("lane_waiting", "ladder_level_active", "tenant_waiting", "tenant_weight", "tenant_requests_total"),
        *("tenant_input_tokens_total", "tenant_cached_tokens_total", "tenant_output_tokens_total"),
        *("worker_up", "worker_draining", "worker_requests_in_flight", "worker_window_sequences"),
        *("worker_running", "worker_waiting", "worker_kv_used_ratio", "worker_ttft_seconds"),
    )
)
_KEPT = frozenset(
    (
        *(name for table in (NOW, RATES) for names in table.values() for name in names),
        *(f"{name}_{part}" for names in TIMES.values() for name in names for part in ("bucket", "sum")),
        *BY_LABEL,
    )
)
_STARTS = tuple(_KEPT)

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Page:
    """`series`: by name as a dashboard reads it, then by labels. `load`: of a server without metrics, by our names."""

    at_s: float
    series: dict[str, dict[Labels, float]] = field(default_factory=dict)
    load: Mapping[str, float] = field(default_factory=dict)

    def total(self, name: str | None, *, most: bool = False) -> float | None:
        """Over all labels, or the most of them; None where the name is not there."""
        values = self.series.get(name or "", {}).values()
        return (max if most else sum)(values) if values else None

    def by(self, name: str, label: str, where: tuple[str, str] | None = None) -> dict[str, float]:
        """Summed by the values of one label; `where`: only those series that have that label with that value."""
        found: dict[str, float] = {}
        for labels, value in self.series.get(name, {}).items():
            for key, word in labels:
                if key == label and (where is None or where in labels):
                    found[word] = found.get(word, 0.0) + value
        return found


def page_of(text: str, at_s: float) -> Page:
    """Of Prometheus' text what is shown."""
    page = Page(at_s)
    for name, labels, value in of_one_rank(samples(text, _STARTS)):
        if name in _KEPT:
            page.series.setdefault(name, {})[tuple(sorted(labels.items()))] = value
    return page


class Source:
    """Asks one server. Raises `Unreachable`, and `Unauthorised` where a key is missing or wrong."""

    def __init__(self, asker: Asker, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._asker = asker
        self._clock = clock
        self._path = "/metrics"

    def page(self) -> Page:
        answer = self._asker.get(self._path)
        if self._path != "/metrics":
            return self._loaded(answer) or self._load(answer.status)
        if answer.status == 200 and (page := page_of(answer.text, self._clock())).series:
            return page
        return self._load(answer.status)

    def _load(self, metrics_status: int) -> Page:
        for path in LOAD_PATHS:
            if (page := self._loaded(self._asker.get(path))) is not None:
                self._path = path
                return page
        said = f"answers {metrics_status}" if metrics_status != 200 else "has no name that is known here"
        raise Unreachable(
            f"{self._asker.url}/metrics {said}, and none of {', '.join(LOAD_PATHS)} tells a load. Is it an LLM server? "
            "SGLang needs --enable-metrics, llama.cpp --metrics."
        )

    def _loaded(self, answer: Answer) -> Page | None:
        sample = read_load(answer.json) if answer.status == 200 else None
        return None if sample is None else Page(self._clock(), load=sample.values)
