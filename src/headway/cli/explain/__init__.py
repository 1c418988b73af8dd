"""`headway explain`: what a metric, a finding of the doctor, an error code, a flag or any other name here means."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headway.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from headway.cli.explain.entries import Entry

app = App(name="explain")
NEAREST = 5
# Where the pages are, in a checkout; an installed package is without them.
REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
# Facts that are told in a list of a kind too.
_LISTED = ("level", "entered at", "status", "exit status", "severity")
_ENDINGS = ("_bucket", "_sum", "_count", "_created")  # of the series of one metric

Name = Annotated[
    str,
    Parameter(
        help="What to explain, or a kind of which to list all.",
        show_default=lambda _: "list the kinds",
        allow_leading_hyphen=True,  # flags have a meaning as well
    ),
]


@app.default
def explain(*names: Name) -> None:
    """What a metric, alert, figure, cause, lane, level, error, status, flag or header means, as in the reference."""
    from rich.console import Console

    from headway.cli.explain.entries import BY_THEMSELVES, KINDS, entries

    name = " ".join(names)  # of several words, quoted or not
    console = Console(highlight=False, soft_wrap=True)
    if not name:
        for kind, (about, _) in KINDS.items():
            all_of = entries(kind)
            console.print(f"{kind:<8} {about}: {len(all_of)}, such as {all_of[0].name}", markup=False)
        console.print("\nheadway explain NAME tells what it means; headway explain metric lists all of a kind.")
        return
    if (of := _kind(name, KINDS)) is not None:
        for entry in entries(of):
            facts = "; ".join(f"{fact} {entry.facts[fact]}" for fact in _LISTED if fact in entry.facts)
            console.print(f"{entry.name}: {entry.meaning}" + (f" ({facts})" if facts else ""), markup=False)
        return
    every = list(chain.from_iterable(map(entries, BY_THEMSELVES)))
    found = named(name, every)
    if not found:
        every = list(chain.from_iterable(map(entries, KINDS)))
        found = named(name, every)
    if not found:
        nearest = nearest_names(name, every)
        meant = f" Nearest: {', '.join(nearest)}." if nearest else ""
        raise ConfigError(
            f"Nothing here is called {name[:80]!r}.{meant} `headway explain` lists what there is.", param="name"
        )
    for number, entry in enumerate(found):
        if number:
            console.print()
        _show(console, entry)


def _show(console: Console, entry: Entry) -> None:
    console.print(f"{entry.name}, {entry.kind}", style="bold", markup=False)
    console.print(entry.meaning, markup=False)
    width = max(map(len, entry.facts), default=0)
    for fact, value in entry.facts.items():
        console.print(f"  {fact:<{width}}  {value}", markup=False)
    if entry.page and (REFERENCE / entry.page).exists():
        console.print(f"  docs/reference/{entry.page}", style="dim", markup=False)


def plain(name: str) -> str:
    """As names are compared: without dashes in front, brackets of a series, and case."""
    word = name.strip().partition("{")[0].lower().lstrip("-")
    return word.replace("-", "_").replace(" ", "_")


def _kind(name: str, kinds: Iterable[str]) -> str | None:
    """The kind of that name, or of that in the plural; an error is known by its code."""
    called = {plain(kind): kind for kind in kinds} | {"code": "error"}
    return next((called[word] for word in _singulars(plain(name)) if word in called), None)


def _singulars(word: str) -> tuple[str, ...]:
    return word, *(word.removesuffix(end) for end in ("s", "es") if word.endswith(end))


def named(name: str, every: Iterable[Entry]) -> list[Entry]:
    """Those of that name, of whatever kind; of a series of a histogram, its metric; of a plural, what it is one of."""
    every = list(every)
    ended = (plain(name).removesuffix(end) for end in _ENDINGS if plain(name).endswith(end))
    for word in (plain(name), *ended, *_singulars(plain(name))):
        if found := [entry for entry in every if word in map(plain, (entry.name, *entry.also))]:
            return found
    return []


def nearest_names(name: str, every: Iterable[Entry]) -> list[str]:
    """By spelling, and those that hold it, as a word before as a part of one."""
    word, names = plain(name), dict[str, str]()
    for entry in every:
        names.setdefault(plain(entry.name), entry.name)
    worded = [one for one in names if word in one.split("_")]
    holding = [one for one in names if len(word) >= 3 and word in one]
    close = [*get_close_matches(word, names, NEAREST, 0.6), *sorted(worded, key=len), *sorted(holding, key=len)]
    return [names[one] for one in dict.fromkeys(close)][:NEAREST]
