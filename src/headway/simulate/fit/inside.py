"""Equations of a server whose steps nobody saw: they are inferred by simulating it (`equations_of`).

With the coefficients so far, a simulation says which steps every request was part of. How long its stretches really
took then is an equation in the coefficients; solving all gives better ones, and so on (`combine.py`). Stretches are, of
requests that were seen to pass both ends: `queue` (where it was long enough to say something), `prefill`, `decode`;
or, of a load test, `ttft` in place of the first two.
"""

from __future__ import annotations

import numpy as np

from headway.simulate.fit.records import Observed
from headway.simulate.fit.served import Served
from headway.simulate.fit.terms import REQUEST, WIDTH, Equations, Floats, Integers

# Queueing for less than so many median decode steps is a matter of which step took one in.
_LONG_QUEUE_STEPS = 10.0


def equations_of(observed: Observed, served: Served) -> Equations:
    """One for each stretch that was seen. `served`: the first requests of `observed`, simulated."""
    count = len(served.demand)
    seen = [times[:count] for times in (observed.queued_s, observed.scheduled_s, observed.first_s, observed.last_s)]
    queued, scheduled, first, last = seen
    parts: list[Equations] = []
    if observed.stamped:
        gap = np.nanmedian((last - first) / np.maximum(1, served.demand.output_tokens - 1))
        long = scheduled - queued > _LONG_QUEUE_STEPS * gap
        parts.append(_stretch("queue", served, served.queued_ns, served.scheduled_ns, scheduled - queued, which=long))
        parts.append(_alike("prefill", served, served.scheduled_ns, served.first_ns, first - scheduled))
    else:
        arrived = served.demand.arrival_ns
        ttft = _alike("ttft", served, arrived, served.first_ns, first - observed.arrival_s[:count])
        ttft.matrix[:, REQUEST] = 1.0
        parts.append(ttft)
    parts.append(
        _stretch("decode", served, served.first_ns, served.last_ns, last - first, which=served.demand.output_tokens > 1)
    )
    together = Equations.joined(parts)
    together.order = np.concatenate([part.order for part in parts])  # the same requests, at the same time
    return together


def _stretch(
    kind: str, served: Served, begin_ns: Integers, end_ns: Integers, took_s: Floats, *, which: np.ndarray | None = None
) -> Equations:
    use = np.isfinite(took_s) & (took_s > 0) & (end_ns > begin_ns)
    if which is not None:
        use &= which
    matrix = np.zeros((int(use.sum()), WIDTH))
    matrix += served.prefix.until(end_ns[use]) - served.prefix.until(begin_ns[use])
    return Equations(matrix, took_s[use] * 1e9, [kind] * len(matrix), served.demand.arrival_ns[use].astype(np.float64))


def _alike(kind: str, served: Served, begin_ns: Integers, end_ns: Integers, took_s: Floats) -> Equations:
    """The shortest that was seen with the shortest simulated, and so on to the longest.

    How long a prompt takes depends on who else's is in its steps. A simulation says how often which of them meet, but
    not always whose they are: paired by request, most of what is compared would be such chance.
    """
    use = np.flatnonzero(np.isfinite(took_s) & (took_s > 0) & (end_ns > begin_ns))
    simulated = use[np.argsort((end_ns - begin_ns)[use], kind="stable")]
    seen = use[np.argsort(took_s[use], kind="stable")]
    matrix = served.prefix.until(end_ns[simulated]) - served.prefix.until(begin_ns[simulated])
    return Equations(matrix, took_s[seen] * 1e9, [kind] * len(use), served.demand.arrival_ns[seen].astype(np.float64))
