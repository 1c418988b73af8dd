"""The page: facts, percentiles, plots, failures and stragglers, in one file with plotly's script.

What comes from outside (names, servers' words) is escaped by the template; figures hold no such text. The page forbids
itself every connection.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from headway.offline.manifest import Manifest
from headway.offline.report.figures import Figure, figures
from headway.offline.summary import Summary
from headway.offline.tally import Tally

TEMPLATES = Path(__file__).parent / "template"
KEYS = ("50", "90", "95", "99")
NAMES = {
    "queue_s": "Queue, s",
    "prefill_s": "Prefill, s",
    "decode_s": "Decode, s",
    "wall_s": "In all, s",
    "input_tokens": "Input tokens",
    "cached_tokens": "of them cached",
    "output_tokens": "Output tokens",
}


def report(summary: Summary, tally: Tally, manifest: Manifest) -> str:
    drawn = figures(tally)
    return _template().render(
        title=Path(manifest.input).name,
        manifest=manifest,
        summary=summary,
        tiles=_tiles(summary),
        percentiles=_percentiles(summary),
        keys=KEYS,
        drawn=drawn,
        style=Markup(_read("page.css")),
        figures=Markup(_script_json(drawn)),
        plotly=Markup(_plotly()),
        script=Markup(_read("page.js")),
    )


def _tiles(summary: Summary) -> list[tuple[str, str, str]]:
    of = f"of {summary.items:,} items" if summary.items is not None else ""
    tiles = [
        ("Answered", f"{summary.done:,}", of),
        ("Failed", f"{summary.failed:,}", ", ".join(f"{count:,} {name}" for name, count in summary.errors.items())),
        ("Time", f"{summary.wall_s:,.1f} s", _rate(summary.items_per_s, "items/s")),
        ("Throughput", _rate(summary.tokens_per_s, "tokens/s"), _rate(summary.output_tokens_per_s, "of output")),
        ("Input tokens", f"{summary.input_tokens:,}", f"{summary.cached_tokens:,} from the prefix cache"),
        ("Output tokens", f"{summary.output_tokens:,}", f"{summary.cut:,} items cut off" if summary.cut else ""),
    ]
    if summary.padding_efficiency_ratio is not None:
        tiles.append(("Padding", f"{1 - summary.padding_efficiency_ratio:.1%}", "of what was computed"))
    if summary.cost is not None:
        tiles.append(("Cost", f"{summary.cost:,.4f}", "at the prices given"))
    return tiles


def _rate(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def _percentiles(summary: Summary) -> list[list[str]]:
    rows = []
    for name, found in summary.distributions.items():
        if found.samples:
            digits = ",.0f" if name.endswith("tokens") else ",.3g"
            values = [found.percentiles[key].value for key in KEYS] + [found.max]
            rows.append([NAMES[name], *("–" if value is None else format(value, digits) for value in values)])
    return rows


def _script_json(drawn: list[Figure]) -> str:
    """JSON that no HTML parser can take for the end of its script element."""
    text = msgspec.json.encode({figure.id: figure for figure in drawn}).decode()
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    return str(get_plotlyjs())


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja")


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
