"""Prometheus' text format, for what has many series: the client library takes 30 µs for a line, and a scrape has
thousands of them.

The format is version 0.0.4: a HELP and a TYPE line for each name, then its series, one a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from headway.metrics.histogram import Histogram
from headway.metrics.names import Metric

Labels = TypeVar("Labels", bound=tuple[str, ...])  # the values of a metric's labels, in their order


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def header(metric: Metric) -> str:
    meaning = metric.meaning.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {metric.name} {meaning}\n# TYPE {metric.name} {metric.kind}\n"


def series(metric: Metric, values: Mapping[Labels, float]) -> str:
    """A counter or a gauge: its value by the values of its labels."""
    lines = [header(metric)]
    for labels, value in values.items():
        lines.append(f"{metric.name}{_shown(zip(metric.labels, labels, strict=True))} {number(value)}\n")
    return "".join(lines)


def histograms(metric: Metric, values: Mapping[Labels, Histogram]) -> str:
    """A histogram by the values of its labels, in `metric.buckets`, which are bounds of each of them."""
    lines = [header(metric)]
    edges = [f'le="{bound}"}} ' for bound in (*map(float, metric.buckets), "+Inf")]
    for labels, histogram in values.items():
        shown = _shown(zip(metric.labels, labels, strict=True))
        opened = f"{metric.name}_bucket{{{shown[1:-1]}{',' if shown else ''}"
        upto = histogram.upto(metric.buckets)
        lines += [f"{opened}{edge}{count}.0\n" for edge, count in zip(edges, upto, strict=True)]
        lines.append(f"{metric.name}_sum{shown} {number(histogram.sum)}\n{metric.name}_count{shown} {upto[-1]}.0\n")
    return "".join(lines)


def number(value: float) -> str:
    """As Prometheus writes floating point."""
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(shown := repr(float(value)), shown)


def _shown(labels: Iterable[tuple[str, str]]) -> str:
    inside = ",".join(f'{name}="{escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""
