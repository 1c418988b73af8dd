"""Prometheus' text format, for what has many series: the client library takes 30 µs for a line, and a scrape has
thousands of them.

The format is version 0.0.4: a HELP and a TYPE line for each name, then its series, one a line. `samples` reads it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from headway.metrics.histogram import Histogram
from headway.metrics.names import Metric

Labels = TypeVar("Labels", bound=tuple[str, ...])  # the values of a metric's labels, in their order
# name{labels} value timestamp
_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


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


def samples(text: str, starts: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample whose name begins with one of `starts`: a page has thousands that nobody
    looks at. What cannot be read, or is not finite, is passed over.
    """
    for line in text.split("\n"):
        if not line.startswith(starts) or (found := _LINE.fullmatch(line)) is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if math.isfinite(value):
            labels = dict(_LABEL.findall(found[2] or ""))
            if "\\" in line:
                labels = {label: _ESCAPE.sub(_unescaped, said) for label, said in labels.items()}
            yield found[1], labels, value


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
