"""`Frame`: what is worth a look, from the pages of the last seconds. What a server does not tell is None."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.cli.top.page import NOW, RATES, TIMES, Page
from headway.metrics.server_names import first, kind_of

# Rates and percentiles are over so many seconds, or since `top` looks.
WINDOW_S = 10.0
_NAMED = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "tgi": "TGI", "": "a server without metrics"}


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a histogram in the window, in seconds. A percentile is interpolated in its bucket; inf is beyond the last."""

    count: float
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    up: float
    draining: bool
    in_flight: float
    window: float
    running: float | None
    waiting: float | None
    kv_used_ratio: float | None
    ttft_s: float | None


@dataclass(frozen=True, slots=True)
class Tenant:
    """`share` of the tokens in the window, `fair` by the weights of those that had any; None while there were none."""

    name: str
    waiting: float
    requests_per_s: float
    limited_per_s: float
    tokens_per_s: float
    share: float | None
    fair: float | None


@dataclass(slots=True)
class Frame:
    server: str
    window_s: float
    now: dict[str, float | None] = field(default_factory=dict)
    rates: dict[str, float | None] = field(default_factory=dict)
    outcomes: dict[str, float] = field(default_factory=dict)  # per second
    times: dict[str, Spread] = field(default_factory=dict)
    lanes: dict[str, float] = field(default_factory=dict)
    levels: list[str] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)


class Window:
    """The pages of the last seconds."""

    def __init__(self, seconds: float = WINDOW_S) -> None:
        self._seconds = seconds
        self._pages: deque[Page] = deque()

    def add(self, page: Page) -> Frame:
        """A counter that fell was reset: then the window begins anew."""
        if self._pages and _restarted(self._pages[-1], page):
            self._pages.clear()
        self._pages.append(page)
        while len(self._pages) > 2 and page.at_s - self._pages[1].at_s >= self._seconds:
            self._pages.popleft()
        return frame_of(self._pages[0], page)


def _restarted(before: Page, now: Page) -> bool:
    totals = [(before.total(name), now.total(name)) for names in RATES.values() for name in names]
    return any(old is not None and new is not None and new < old for old, new in totals)


def frame_of(before: Page, last: Page) -> Frame:
    kind, there = kind_of(*last.series), last.series
    between = _Between(before, last)
    return Frame(
        _NAMED.get(kind, kind),
        between.span_s,
        # Of several engines' ratios the highest counts; else they add up.
        now={what: last.total(first(names, there), most=what.endswith("_ratio")) for what, names in NOW.items()}
        | dict(last.load),
        rates={what: between.rate(first(names, there)) for what, names in RATES.items()},
        outcomes=between.by("headway_requests_total", "outcome"),
        times={what: spread for what, names in TIMES.items() if (spread := between.spread(names)) is not None},
        lanes=last.by("headway_lane_waiting", "lane"),
        levels=[name for name, active in last.by("headway_ladder_level_active", "level").items() if active],
        workers=[_worker(last, name) for name in last.by("headway_worker_up", "worker")],
        tenants=_tenants(last, between),
    )


class _Between:
    """Two pages, and what was counted from one to the other."""

    def __init__(self, before: Page, last: Page) -> None:
        self._first = before
        self._last = last
        self.span_s = last.at_s - before.at_s

    def rate(self, name: str | None) -> float | None:
        """Per second. None where the name is not there, or there is one page."""
        now = self._last.total(name)
        if now is None or self.span_s <= 0:
            return None
        return (now - (self._first.total(name) or 0.0)) / self.span_s

    def by(self, name: str, label: str, where: tuple[str, str] | None = None) -> dict[str, float]:
        """Per second."""
        if self.span_s <= 0:
            return {}
        before = self._first.by(name, label, where)
        return {
            word: max(0.0, count - before.get(word, 0.0)) / self.span_s
            for word, count in self._last.by(name, label, where).items()
        }

    def spread(self, names: Sequence[str]) -> Spread | None:
        name = next((name for name in names if f"{name}_bucket" in self._last.series), None)
        if name is None:
            return None
        before, now = self._first.by(f"{name}_bucket", "le"), self._last.by(f"{name}_bucket", "le")
        upto = sorted((float(bound), count - before.get(bound, 0.0)) for bound, count in now.items())
        count = upto[-1][1] if upto else 0.0
        if count <= 0:
            return None
        total = (self._last.total(f"{name}_sum") or 0.0) - (self._first.total(f"{name}_sum") or 0.0)
        p50_s, p90_s, p99_s = (_percentile(upto, share) for share in (0.5, 0.9, 0.99))
        return Spread(count, total / count, p50_s, p90_s, p99_s)


def _percentile(upto: Sequence[tuple[float, float]], share: float) -> float:
    """As Prometheus' `histogram_quantile`, but for the last bucket: nobody knows how far beyond its bound it was."""
    rank, below_s, below = share * upto[-1][1], 0.0, 0.0
    for bound_s, count in upto:
        if count >= rank and count > below:
            return math.inf if math.isinf(bound_s) else below_s + (bound_s - below_s) * (rank - below) / (count - below)
        below_s, below = bound_s, count
    return math.inf


def _worker(page: Page, name: str) -> Worker:
    def told(what: str) -> float | None:
        return page.by(f"headway_worker_{what}", "worker").get(name)

    return Worker(
        name=name,
        up=told("up") or 0.0,
        draining=bool(told("draining")),
        in_flight=told("requests_in_flight") or 0.0,
        window=told("window_sequences") or 0.0,
        running=told("running"),
        waiting=told("waiting"),
        kv_used_ratio=told("kv_used_ratio"),
        ttft_s=told("ttft_seconds"),
    )


def _tenants(page: Page, between: _Between) -> list[Tenant]:
    """The busiest first. Of what a tenant was served, what was found in a cache costs nothing."""
    waiting, weights = page.by("headway_tenant_waiting", "tenant"), page.by("headway_tenant_weight", "tenant")
    sent = {what: between.by(f"headway_tenant_{what}_tokens_total", "tenant") for what in ("input", "cached", "output")}
    requests = between.by("headway_tenant_requests_total", "tenant")
    limited = between.by("headway_tenant_requests_total", "tenant", ("outcome", "limited"))
    names = dict.fromkeys((*sent["output"], *requests, *waiting))
    tokens = {
        name: sent["input"].get(name, 0.0) - sent["cached"].get(name, 0.0) + sent["output"].get(name, 0.0)
        for name in names
    }
    total, weight = sum(tokens.values()), sum(weights.get(name, 0.0) for name in names if tokens[name] > 0)
    found = [
        Tenant(
            name=name,
            waiting=waiting.get(name, 0.0),
            requests_per_s=requests.get(name, 0.0),
            limited_per_s=limited.get(name, 0.0),
            tokens_per_s=tokens[name],
            share=tokens[name] / total if total > 0 else None,
            fair=weights[name] / weight if weight > 0 and tokens[name] > 0 and name in weights else None,
        )
        for name in names
    ]
    return sorted(found, key=lambda one: (-one.tokens_per_s, -one.waiting, one.name))
