"""`Page`: what a server tells at one moment, by its own names; fetched from `/metrics`, or from its load as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from headway.metrics.worker_signals import read_load
from headway.wire.asker import Asker, Unreachable
from headway.wire.blocking import Answer

# Servers without `/metrics` that tell their load elsewhere.
LOAD_PATHS = ("/load", "/v1/loads", "/slots")
# The parser takes its time for each line: those that nobody looks at are not given to it.
_PREFIXES = ("headway_", "vllm:", "sglang:", "llamacpp:", "tgi_")
_UNUSED = ("_tokens_bucket", "headway_http_", "headway_lane_inter", "headway_lane_request_d", "headway_model_")


Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Page:
    """`series`: by name as a dashboard reads it, then by labels. `load`: of a server without metrics, by our names."""

    at_s: float
    series: dict[str, dict[Labels, float]] = field(default_factory=dict)
    load: Mapping[str, float] = field(default_factory=dict)

    def total(self, name: str) -> float | None:
        """Over all labels; None where the name is not there."""
        values = self.series.get(name)
        return sum(values.values()) if values else None

    def by(self, name: str, label: str, where: tuple[str, str] | None = None) -> dict[str, float]:
        """Summed by the values of one label; `where`: only those series that have that label with that value."""
        found: dict[str, float] = {}
        for labels, value in self.series.get(name, {}).items():
            for key, word in labels:
                if key == label and (where is None or where in labels):
                    found[word] = found.get(word, 0.0) + value
        return found


def page_of(text: str, at_s: float) -> Page:
    """Raises ValueError where it is not Prometheus' text."""
    lines = [line for line in text.splitlines() if line.startswith(_PREFIXES) and not _unused(line)]
    page = Page(at_s)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            page.series.setdefault(sample.name, {})[labels] = sample.value
    return page


def _unused(line: str) -> bool:
    name = line.partition("{")[0]
    return name.endswith(_UNUSED[0]) or name.startswith(_UNUSED[1:])


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
        if answer.status == 200 and (page := self._parsed(answer)).series:
            return page
        return self._load(answer.status)

    def _parsed(self, answer: Answer) -> Page:
        try:
            return page_of(answer.text, self._clock())
        except ValueError as error:
            raise Unreachable(f"What {self._asker.url}/metrics says is not Prometheus' text: {error}") from error

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
