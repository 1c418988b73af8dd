"""`Recent`: what a server's requests waited lately, from the histograms in its metrics (Prometheus' text).

Headway's, vLLM's and SGLang's are known. A series that names the lane `batch` is left out: nobody waits for that. Where
lanes are not told apart, batch work counts with the rest, which errs on the side of those who wait.
"""

from __future__ import annotations

import math
from collections import deque

from prometheus_client.parser import text_string_to_metric_families

from headway.core.request import BATCH

TTFT, ITL = "ttft_s", "itl_s"
NAMES = {
    "headway_time_to_first_token_seconds": TTFT,
    "headway_inter_token_latency_seconds": ITL,
    "vllm:time_to_first_token_seconds": TTFT,
    "vllm:inter_token_latency_seconds": ITL,
    "vllm:time_per_output_token_seconds": ITL,  # before vLLM 0.11
    "sglang:time_to_first_token_seconds": TTFT,
    "sglang:inter_token_latency_seconds": ITL,
    "sglang:time_per_output_token_seconds": ITL,
}
WINDOW_S = 10.0
QUANTILE = 0.95

Buckets = dict[float, float]  # upper bound -> how many were at most that


def histograms(text: str) -> dict[str, Buckets]:
    """By `TTFT` and `ITL`, added up over labels. Empty where none is known. Raises ValueError for what is no text."""
    found: dict[str, dict[str, Buckets]] = {}
    for family in text_string_to_metric_families(text):
        if family.name not in NAMES:
            continue
        buckets: Buckets = {}
        for sample in family.samples:
            if sample.name.endswith("_bucket") and sample.labels.get("lane") != BATCH:
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
        if buckets:
            found.setdefault(NAMES[family.name], {})[family.name] = buckets
    # A server between two versions has the old name and the new one, of the same gaps.
    return {ours: min(named.items())[1] for ours, named in found.items()}


class Recent:
    """Over the last `WINDOW_S`. Feed it about once a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, Buckets]]] = deque()

    def feed(self, now_s: float, read: dict[str, Buckets]) -> None:
        if self._seen and not all(_goes_on(self._seen[-1][1].get(name), read.get(name)) for name in (TTFT, ITL)):
            self._seen.clear()  # the server began anew
        self._seen.append((now_s, read))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()

    def p95_s(self, name: str) -> float | None:
        """None where nothing was measured in that time."""
        if not self._seen:
            return None
        before, after = (read.get(name, {}) for read in (self._seen[0][1], self._seen[-1][1]))
        return quantile({bound: count - before.get(bound, 0.0) for bound, count in after.items()}, QUANTILE)


def quantile(buckets: Buckets, q: float) -> float | None:
    """Linear within a bucket, as Prometheus' `histogram_quantile`; beyond the last bound it is that bound."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    below, lower = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= q * total:
            if math.isinf(bound):
                return lower
            inside = buckets[bound] - below
            return lower + (bound - lower) * ((q * total - below) / inside if inside else 1.0)
        below, lower = buckets[bound], bound
    return lower


def _goes_on(before: Buckets | None, after: Buckets | None) -> bool:
    """No count has gone down."""
    return before is None or (after is not None and all(after.get(bound, -1) >= was for bound, was in before.items()))
