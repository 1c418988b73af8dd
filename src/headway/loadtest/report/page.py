"""What a page is made of, and its text: one HTML file that holds its plots, its tables and plotly's script.

What comes from outside (models' names, servers' messages) is escaped twice over: by the template, and by `plot.safe`
where plotly reads it. The page forbids itself every connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from headway.loadtest.report import palette
from headway.loadtest.report.plot import Figure
from headway.loadtest.report.tables import Table
from headway.loadtest.report.wording import printable

TEMPLATES = Path(__file__).parent / "template"


@dataclass(frozen=True, slots=True)
class Banner:
    tone: str  # "good", "warn", "bad"
    word: str
    meaning: str
    evidence: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    below: Sequence[str] = ()  # lines
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    id: str
    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    lines: Sequence[str]
    banner: Banner
    sections: Sequence[Section]
    tiles: Sequence[Tile] = ()
    foot: str = ""


def render(page: Page) -> str:
    drawn = {
        figure.id: {"data": figure.data, "wide": figure.wide.layout, "narrow": figure.narrow.layout}
        for section in page.sections
        for figure in section.figures
    }
    return _template().render(
        page=page,
        style=Markup(palette.style() + _read("page.css")),
        figures=Markup(script_json(drawn)),
        plotly=Markup(plotly_script()),
        script=Markup(_read("page.js")),
    )


def script_json(value: object) -> str:
    """JSON that no HTML parser can take for the end of its script element."""
    text = msgspec.json.encode(value).decode()
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def plotly_script() -> str:
    """About 4.8 MB, which is most of a page."""
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
        finalize=_harmless,
    )
    return environment.get_template("page.html.jinja")


def _harmless(value: object) -> object:
    """What the template writes: without control characters and overrides of the direction."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
