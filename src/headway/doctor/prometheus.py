"""`read_prometheus`: the history that a Prometheus has of a server, as its raw samples.

Raw samples, and not a range query's points: those repeat samples or leave some out, which looks like bursts. All times
are Prometheus' own, so a clock that is wrong on either side changes nothing; that it is, is noted.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from headway.core.errors import ConfigError, HeadwayError
from headway.doctor.facts import HELD_SAMPLES, Facts
from headway.doctor.recorder import Recorder
from headway.doctor.scrape import HEADWAY, LENT, Scrape, instance_of
from headway.metrics.server_names import of_one_rank
from headway.wire.asker import Asker

UP = "up"  # Prometheus' own: 1 where a target answered, 0 where it did not
NAMES = "headway_.*|vllm:.*|sglang:.*|llamacpp:.*|tgi_.*"
SKEWED_S = 5.0
_TOLD = 200


class QueryFailed(HeadwayError):
    """Prometheus did not answer the question."""

    status = 502
    code = "query_failed"


def read_prometheus(asker: Asker, since_s: float, selector: str = "") -> Facts:
    """`selector`: more label matchers, such as `job="vllm"`. Raises `Unreachable`, `Unauthorised`, `QueryFailed`."""
    now = _query(asker, "time()")
    now_s = float(now[0]) if isinstance(now, list) and now else math.nan
    skew_s = now_s - time.time() if math.isfinite(now_s) else 0.0
    matchers = f'__name__=~"{NAMES}"' + (f",{selector}" if selector else "")
    series = _query(asker, f"{{{matchers}}}[{max(1, round(since_s))}s]")
    if not isinstance(series, list) or not series:
        raise QueryFailed(
            f"Prometheus at {asker.url} has nothing of a known server in the last {since_s:g} s: looked for {NAMES}"
            + (f" with {selector}." if selector else ". Is it scraped, and is --since long enough?")
        )
    recorder = Recorder()
    for at_s, scrape in _scrapes([*series, *_ups(asker, series, since_s)], now_s):
        recorder.add(scrape, at_s)
    facts = recorder.facts()
    notes = []
    if abs(skew_s) > SKEWED_S:
        notes.append(
            f"Prometheus' clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} ours; its own is used"
        )
    covered_s = facts.service.window_s
    if covered_s < 0.8 * since_s:
        notes.append(f"history covers {covered_s:.0f} of the {since_s:.0f} s asked for")
    return replace(facts.with_notes(*notes), source=facts.source)


def _ups(asker: Asker, series: Iterable[Any], since_s: float) -> Iterable[Any]:
    """Whether the targets of these series answered: a series of one that does not just ends."""
    instances = {_labels(one).get("instance", "") for one in series} - {""}
    if not instances:
        return ()
    either = "|".join(re.escape(one) for one in sorted(instances)).replace("\\", "\\\\").replace('"', '\\"')
    found = _query(asker, f'{UP}{{instance=~"{either}"}}[{max(1, round(since_s))}s]')
    return [one for one in found if _labels(one).get("__name__") == UP] if isinstance(found, list) else ()


def _labels(series: Any) -> Mapping[str, str]:
    labels = series.get("metric") if isinstance(series, dict) else None
    return labels if isinstance(labels, dict) else {}


def _query(asker: Asker, promql: str) -> Any:
    answer = asker.get(f"/api/v1/query?query={quote(promql)}")
    body = answer.json
    if not isinstance(body, dict) or not isinstance(body.get("status"), str):
        said = f"a page of {answer.kind or 'no kind'}" if 200 <= answer.status < 300 else f"status {answer.status}"
        raise QueryFailed(f"{asker.url} is no Prometheus: it answers /api/v1/query with {said}.")
    if body.get("status") != "success":
        raise QueryFailed(
            f"Prometheus at {asker.url} refuses the query: {str(body.get('error', answer.status))[:_TOLD]}."
        )
    data = body.get("data")
    return data.get("result") if isinstance(data, dict) else None


def _scrapes(series: Iterable[Any], now_s: float = math.nan) -> list[tuple[float, Scrape | None]]:
    """All series at one another's times: targets are scraped at moments of their own, which are rounded together.
    Where they all end long before now, None at each moment since.
    """
    rows: list[tuple[str, Mapping[str, str], list[tuple[float, float]]]] = []
    gaps: list[float] = []
    for one in series:
        if not isinstance(one, dict) or not isinstance(one.get("values"), list):
            continue
        samples = [(float(at), _float(value)) for at, value in one["values"]]
        rows.append((_labels(one).get("__name__", ""), _labels(one), samples))
        gaps += [later[0] - sooner[0] for sooner, later in itertools.pairwise(samples)]
    if not gaps:
        return []
    every_s = max(0.1, statistics.median(gaps))
    found: dict[int, Scrape] = defaultdict(Scrape)
    headways = {_target(labels) for name, labels, _ in rows if name.startswith(HEADWAY)}
    instances: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, labels, _ in rows:
        if name != UP:
            instances[_target(labels)].add(instance_of(labels))
    for name, labels, samples in of_one_rank(rows):
        if name.startswith(LENT) and _target(labels) in headways:
            continue
        before = None
        for at_s, value in samples:  # in order of time
            place = round(at_s / every_s)
            if place == before:
                continue
            before = place
            if name == UP:
                found[place].up |= dict.fromkeys(instances[_target(labels)], value > 0)
            else:
                found[place].put(name, labels, value)
    scrapes: list[tuple[float, Scrape | None]] = [(place * every_s, found[place]) for place in sorted(found)]
    last_s = scrapes[-1][0]
    since = int((now_s - last_s) / every_s) if math.isfinite(now_s) else 0
    if since > HELD_SAMPLES:
        scrapes += [(last_s + every_s * number, None) for number in range(1, since + 1)]
    return scrapes


def _target(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")


def _float(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")


def seconds(text: str) -> float:
    """`90`, `90s`, `15m`, `2h` or `1d` as seconds. Raises `ConfigError`."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        value = float(number) * units[unit]
    except ValueError:
        value = 0.0
    if not 0 < value < 366 * 86400.0:
        raise ConfigError(f"--since is {text!r}; give a time such as 90s, 15m or 2h", param="since")
    return value
