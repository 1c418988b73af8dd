"""`read_scrape`: one page of `/metrics` -> `Scrape`: who shows what, by our names. What happens from one to the next,
`Recorder` tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.doctor.facts import at_most
from headway.doctor.names import ENGINES, INSTANCES
from headway.metrics.server_names import GAUGE_OF, HISTOGRAM_OF, INFO, KINDS, TOTAL_OF, kind_of, of_one_rank
from headway.metrics.text import samples

HEADWAY, LENT = "headway_", "vllm:"  # headway tells its own numbers under vLLM's names again: --metrics-names vllm
_WORKERS = "headway_worker_"  # what a gateway says of who works for it
_PREFIXES = tuple(start for kind, start in KINDS.items() if kind != "dcgm")
# A histogram's state: upper bound -> samples up to it; None is its sum.
Histogram = dict[float | None, float]


class Place(NamedTuple):
    """Whose number it is. `engine` is "" for an instance as a whole, `instance` for the only one there is."""

    instance: str = ""
    engine: str = ""

    def __str__(self) -> str:
        return " ".join(name for name in (self.engine, self.instance) if name)


@dataclass(slots=True)
class Shown:
    """What one place (an engine, a worker) shows at one moment. `under`: by which of its names each signal came."""

    under: dict[tuple[str, str], str] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def first(self, kind: str, ours: str, name: str) -> bool:
        """Is this the name under which the signal came first?"""
        return self.under.setdefault((kind, ours), name) == name

    def count(self, ours: str, stem: str, part: str, upto: str | None, value: float) -> None:
        """A line of a histogram; how many there are in all, its last bucket says."""
        bound = number_in(upto) if part == "bucket" else None
        if part != "count" and self.first("histogram", ours, stem) and (bound is None or not math.isnan(bound)):
            state = self.histograms.setdefault(ours, {})
            state[bound] = state.get(bound, 0.0) + value


@dataclass(slots=True)
class Scrape:
    """One answer. `gateways`: the instances that tell of workers. `strange`: names of engines that we do not know, and
    whether each is a histogram. `up`: the instances of which it is told whether they answered.
    """

    kind: str = ""
    places: dict[Place, Shown] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)
    gateways: set[str] = field(default_factory=set)
    strange: dict[str, bool] = field(default_factory=dict)
    up: dict[str, bool] = field(default_factory=dict)

    def at(self, engine: str = "", instance: str = "") -> Shown:
        return self.places.setdefault(Place(instance, engine), Shown())

    def put(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """One sample. Of several that differ only by labels we do not tell apart, counters add up; what is there under
        several names (of versions, or with and without `_total`) counts under the first.
        """
        if not math.isfinite(value):
            return
        if not self.kind or self.kind == "headway":
            self.kind = kind_of(name) or self.kind
        if name == INFO:
            self.info |= labels
            return
        instance = instance_of(labels)
        if name.startswith(_WORKERS):
            self.gateways.add(instance)
        # Headway's engine has nothing but itself to tell of: its labels are lanes, models and codes.
        whole = name.startswith(HEADWAY) and not name.startswith(_WORKERS)
        shown = self.at("" if whole else _joined(labels, ENGINES), instance)
        if (ours := GAUGE_OF.get(name)) is not None:
            if shown.first("gauge", ours, name):
                before = shown.gauges.get(ours)
                shown.gauges[ours] = (
                    value if before is None else max(before, value) if at_most(ours) else before + value
                )
            return
        stem, _, part = name.rpartition("_")
        of_histogram = part in ("sum", "bucket", "count")
        if (ours := TOTAL_OF.get(name)) is not None and shown.first("total", ours, name):  # it may be a histogram's sum
            shown.totals[ours] = shown.totals.get(ours, 0.0) + value
        if of_histogram and (ours := HISTOGRAM_OF.get(stem)) is not None:
            shown.count(ours, stem, part, labels.get("le"), value)
        elif name not in TOTAL_OF and part != "created" and not name.startswith(HEADWAY):
            self.strange[stem if of_histogram else name] = of_histogram


def instance_of(labels: Mapping[str, str]) -> str:
    return _joined(labels, INSTANCES)


def _joined(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return " ".join([labels[key] for key in keys if labels.get(key)])


def read_scrape(text: str) -> Scrape:
    """Prometheus' text. Lines that cannot be read are passed over; `kind` is empty where no known name is."""
    scrape, told = Scrape(), of_one_rank(samples(text, _PREFIXES))
    headway = any(name.startswith(HEADWAY) for name, _, _ in told)
    for name, labels, value in told:
        if not (headway and name.startswith(LENT)):
            scrape.put(name, labels, value)
    return scrape


def number_in(text: str | None) -> float:
    """NaN where there is none."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan
