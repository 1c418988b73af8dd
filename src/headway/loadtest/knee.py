"""The knee of a ramp: the load at which service breaks, found as a changepoint and not by eye.

A ramp is cut into bins of equal time. In each: the load (offered requests/s), what was delivered (ended well, per s)
and the logarithm of the median latency. Up to the knee both follow the load along one line, after it along another: two
connected segments (Hudson 1966, JASA 61:1097) with one changepoint for both series, at the maximum of their joint
likelihood. Three things must hold for a knee:

- Two segments explain the ramp better than one line. The changepoint does not exist without a knee, so the usual
  tables of F are wrong (Davies 1987, Biometrika 74:33); the likelihood ratio's distribution comes from a bootstrap of
  the line.
- It matters: beyond it, more load brings clearly less delivery than before, and latency rises or requests are turned
  away; or latency alone rises eightfold by the end. A queue that merely grows as it should on the way to its limit
  curves as well, and has no knee yet.
- It has load on both sides of it.

Residuals are drawn by their sign, in runs of neighbours (the dependent wild bootstrap: Liu 1988; Shao 2010, JASA
105:218): latencies beyond a knee vary more than those before it, and neighbouring bins together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.loadtest.result import Load
from headway.metrics.latency import S_PER_NS, Floats, Timings, bounds_ns, elapsed_s, within

BINS = 40
MOSTLY_ANSWERED = 0.5
MIN_BINS = 12
REQUESTS_PER_BIN = 5
EDGE_BINS = 3  # on each side of a knee
CANDIDATES = 80
REPLICATES = 500
RUN = 2  # neighbouring bins whose residuals turn sign together
SIGNIFICANCE = 0.01
LESS_DELIVERED = 0.7  # by one more request offered, as a share of what it brought before
SLOWER = 1.5  # and latency at the highest load is so many times that at the knee,
LESS_SERVED = 0.95  # or such a share of what was served before it is served beyond it;
MUCH_SLOWER = 8.0  # or latency alone rises so much


@dataclass(frozen=True, slots=True)
class Ramp:
    """A ramp in bins, by rising load."""

    load: Floats
    delivered: Floats  # requests/s
    latency_s: Floats  # median, above 0
    served: Floats  # the share of the requests due that ended well


@dataclass(frozen=True, slots=True)
class Knee:
    """Where service breaks, with a 95 % interval of the place."""

    load: float
    low: float
    high: float
    delivered: float  # requests/s at the knee
    gain_ratio: float  # what more load delivers beyond it, as a share of before
    slowdown: float  # latency at the highest load over that at the knee
    p_value: float


def knee_of(t: Timings, load: Load, window_s: tuple[float, float]) -> dict[str, float]:
    """The knee for a `Summary`. Without one there is only the highest load: no knee within the loads offered."""
    ramp = ramp_bins(t, window_s)
    if ramp is None:
        return {}
    due = t.due_within(window_s)
    figures = {"highest_load": float(ramp.load[-EDGE_BINS:].mean()), "answered_ratio": float(due.ok.mean())}
    knee = find_knee(ramp, seed=load.seed)
    if knee is not None:
        figures |= {
            "load": knee.load,
            "low": knee.low,
            "high": knee.high,
            "delivered_rate": knee.delivered,
            "gain_ratio": knee.gain_ratio,
            "slowdown": knee.slowdown,
            "p_value": knee.p_value,
        }
    return figures


def describe(figures: dict[str, float]) -> str:
    """One line for people about what `knee_of` found."""
    if not figures:
        return "too few requests to look for a knee"
    if "load" not in figures and figures.get("answered_ratio", 1.0) < MOSTLY_ANSWERED:
        return (
            f"no knee can be told: only {figures['answered_ratio']:.0%} of the requests were answered, as if the server"
            " had been past its limit from the start; begin with less"
        )
    if "load" not in figures:
        return f"no knee within the loads offered (up to {figures['highest_load']:.3g})"
    return (
        f"knee at {figures['load']:.3g} ({figures['low']:.3g} to {figures['high']:.3g}, 95 %): beyond it, more load"
        f" delivers {max(figures['gain_ratio'], 0):.0%} of what it did before, and latency rises"
        f" {figures['slowdown']:.3g}-fold up to {figures['highest_load']:.3g}"
    )


def ramp_bins(t: Timings, window_s: tuple[float, float]) -> Ramp | None:
    """The ramp in bins of equal time; None when it has too few requests."""
    start_ns, end_ns = bounds_ns(window_s)
    due = within(t.scheduled_ns, window_s)
    bins = min(BINS, int(due.sum()) // REQUESTS_PER_BIN)
    if bins < MIN_BINS:
        return None
    edges = np.linspace(start_ns, end_ns, bins + 1)
    width_s = (end_ns - start_ns) * S_PER_NS / bins
    arrivals = np.histogram(t.scheduled_ns[due], edges)[0]
    delivered = np.histogram(t.ended_ns[t.ok], edges)[0] / width_s
    served = np.histogram(t.scheduled_ns[due & t.ok], edges)[0] / np.maximum(arrivals, 1)
    latency_s = elapsed_s(t.scheduled_ns, t.ended_ns)
    place = np.clip(np.searchsorted(edges, t.scheduled_ns, side="right") - 1, 0, bins - 1)
    ended = due & ~np.isnan(latency_s)
    mine = [ended & (place == index) for index in range(bins)]
    medians = np.array([_median(latency_s[rows & t.ok], latency_s[rows & ~t.ok]) for rows in mine])
    load = _rising(arrivals / width_s)  # arrivals come at random; the ramp behind them does not
    there = (medians > 0) & (load > 0)
    order = np.argsort(load[there], kind="stable")
    return Ramp(*(column[there][order] for column in (load, delivered, medians, served)))


def find_knee(ramp: Ramp, *, seed: int = 0) -> Knee | None:
    """The knee of a ramp, or None when none is significant and matters."""
    x, bins = ramp.load, len(ramp.load)
    if bins < MIN_BINS or x[0] == x[-1]:
        return None
    # Both series on the same footing: the likelihood does not care for units.
    series = np.stack([ramp.delivered, np.log(ramp.latency_s)])
    places = np.linspace(x[EDGE_BINS], x[-1 - EDGE_BINS], CANDIDATES)
    bent = [_basis(np.stack([np.ones(bins), x, np.maximum(x - place, 0)], axis=1)) for place in places]
    line = _basis(np.stack([np.ones(bins), x], axis=1))
    rng = np.random.default_rng(seed)
    best, gain = _best(series[:, :, None], bent, line)
    straight = _fit(series, line)
    null = straight[:, :, None] + (series - straight)[:, :, None] * _signs(rng, bins)
    p_value = float((1 + (_best(null, bent, line)[1] >= gain).sum()) / (1 + REPLICATES))
    if p_value > SIGNIFICANCE:
        return None
    chosen = int(best[0])
    fitted = _fit(series, bent[chosen])
    again = fitted[:, :, None] + (series - fitted)[:, :, None] * _signs(rng, bins)
    drawn = _best(again, bent, line)[0]
    gains = np.array([_gain_ratio(x, places[k], again[0, :, draw]) for draw, k in enumerate(drawn)])
    gain_ratio = _gain_ratio(x, places[chosen], series[0])
    slowdown = float(np.exp(fitted[1, -1] - np.interp(places[chosen], x, fitted[1])))
    delivers_less = gain_ratio < LESS_DELIVERED and float(np.quantile(gains, 0.975)) < 1
    below, beyond = ramp.served[x <= places[chosen]].mean(), ramp.served[x > places[chosen]].mean()
    suffers = slowdown > SLOWER or beyond < LESS_SERVED * below
    if not (delivers_less and suffers) and slowdown < MUCH_SLOWER:
        return None
    low, high = np.quantile(places[drawn], [0.025, 0.975])
    return Knee(
        load=float(places[chosen]),
        low=float(low),
        high=float(high),
        delivered=float(np.interp(places[chosen], x, fitted[0])),
        gain_ratio=gain_ratio,
        slowdown=slowdown,
        p_value=p_value,
    )


def _rising(values: Floats) -> Floats:
    """The rising series nearest to `values`: neighbours that fall are pooled (Ayer et al. 1955). A line or stairs."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        pool = (value, 1)
        while pools and pools[-1][0] > pool[0]:
            level, count = pools.pop()
            whole = count + pool[1]
            pool = ((level * count + pool[0] * pool[1]) / whole, whole)
        pools.append(pool)
    return np.repeat([level for level, _ in pools], [count for _, count in pools])


def _median(answered: Floats, failed: Floats) -> float:
    """Of the latencies of a bin. A request given up after a long wait would have taken at least that; one that was
    refused at once says nothing about latency (and all about what is served).
    """
    if not len(answered):
        return float(np.median(failed)) if len(failed) else 0.0
    return float(np.median(np.concatenate((answered, failed[failed > np.median(answered)]))))


def _basis(columns: Floats) -> Floats:
    """An orthonormal basis of a model's fits."""
    basis: Floats = np.linalg.qr(columns)[0]
    return basis


def _fit(series: Floats, basis: Floats) -> Floats:
    fitted: Floats = series @ basis @ basis.T
    return fitted


def _best(series: Floats, bent: list[Floats], line: Floats) -> tuple[np.ndarray, Floats]:
    """Of each draw (last axis): the index of the likeliest changepoint, and the gain in log likelihood over a line."""
    bins = series.shape[1]
    total = (series**2).sum(axis=1)

    def unexplained(basis: Floats) -> Floats:
        explained = (np.einsum("bk,sbd->skd", basis, series) ** 2).sum(axis=1)
        # Data without noise (a scripted ramp) fit exactly; a floor keeps the logarithm finite.
        floored = np.maximum(total - explained, 1e-12 * total + 1e-300)
        joint: Floats = np.log(floored).sum(axis=0)
        return joint

    losses = np.stack([unexplained(basis) for basis in bent])
    best = losses.argmin(axis=0)
    return best, bins / 2 * (unexplained(line) - losses.min(axis=0))


def _signs(rng: np.random.Generator, bins: int) -> Floats:
    """A random sign for each run of neighbours, in `REPLICATES` draws."""
    signs = rng.choice([-1.0, 1.0], size=(-(-bins // RUN), REPLICATES))
    runs: Floats = np.repeat(signs, RUN, axis=0)[:bins]
    return runs


def _gain_ratio(x: Floats, place: float, delivered: Floats) -> float:
    """Slope of what is delivered beyond the place, over the slope before it."""
    columns = np.stack([np.ones(len(x)), x, np.maximum(x - place, 0)], axis=1)
    _, before, bend = np.linalg.lstsq(columns, delivered, rcond=None)[0]
    return float((before + bend) / before) if before > 0 else 1.0
