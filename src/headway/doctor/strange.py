"""Names of a server that are not known here, and which of the signals that it does not tell they may be.

A newer version that renames a metric looks like one that lacks it. Names are compared by their words: a person knows
the renamed one when he sees it, and the table of `metrics/server_names.py` wants one line more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headway.doctor.names import WANTED
from headway.metrics.server_names import GAUGES, HISTOGRAMS, KINDS, TOTALS

# Words that say nothing of what is measured.
_PLAIN = frozenset((
    *("num", "total", "count", "sum", "seconds", "time", "ms", "s", "per", "to", "of", "in", "the", "request"),
    *("requests", "req", "reqs", "token", "tokens", "latency", "duration", "size", "current", "mean", "ratio"),
    *("perc", "rate", "worker", "success"),
))  # fmt: skip
_STARTS = tuple(KINDS.values())
_ALIKE = 6  # letters at the beginning; or a whole word of four: queue and queued, preempted and preemptions
_LEAST = 4
_BESIDE, _LEFT = 3, 6  # names shown


def missing(known: Iterable[str], strange: Mapping[str, bool]) -> tuple[str, ...]:
    """A line for each signal that is not `known`, with what cannot be told without it and the names it may go by now.

    `strange`: names that are not known here, and whether each is a histogram. What none of the lines shows is in the
    last one.
    """
    told = {*known}
    lacking = {signal: blind for signal, blind in WANTED.items() if signal not in told}
    shown: set[str] = set()
    lines, unlike = [], False
    for signal, blind in lacking.items():
        found = [name for name in sorted(strange) if strange[name] == (signal in HISTOGRAMS) and _alike(signal, name)]
        shown |= {*found}
        unlike |= not found
        beside = f" (not known here, and may be it in an unknown version: {_few(found, _BESIDE)})" if found else ""
        lines.append(f"{signal}: {blind}{beside}")
    if unlike and (left := sorted(strange.keys() - shown)):
        lines.append(f"it exports names that are not known here, such as {_few(left, _LEFT)}: an unknown version?")
    return tuple(lines)


def _few(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def _alike(signal: str, name: str) -> bool:
    names = (*HISTOGRAMS.get(signal, ()), *GAUGES.get(signal, ()), *TOTALS.get(signal, ()))
    ours = {word for one in (signal, *names) for word in _words(one)}
    return any(_same(word, other) for word in _words(name) for other in ours)


def _words(name: str) -> set[str]:
    for start in _STARTS:
        name = name.removeprefix(start)
    return {*re.split(r"[_:]", name.lower())} - _PLAIN


def _same(one: str, other: str) -> bool:
    if min(len(one), len(other)) >= _LEAST and (one.startswith(other) or other.startswith(one)):
        return True
    return one == other or (len(one) >= _ALIKE and one[:_ALIKE] == other[:_ALIKE])
