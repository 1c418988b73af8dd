"""What a fleet's gateway counts and times of the calls themselves. Cheap: these stand in the path of every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from headway.metrics.names import DURATION_BUCKETS_S, ITL_BUCKETS_S, TTFT_BUCKETS_S

MAX_TENANTS = 1024  # that are counted by name; the rest together


class Histogram:
    """Counts by bucket, as Prometheus reads them; a tenth of what its own client takes for an observation."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), the last one for all."""
        total, rows = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


class Figures:
    """One gateway's, since its start."""

    def __init__(self) -> None:
        self.ttft_s = Histogram(TTFT_BUCKETS_S)
        self.itl_s = Histogram(ITL_BUCKETS_S)
        self.duration_s = Histogram(DURATION_BUCKETS_S)
        self.network_s = Histogram(TTFT_BUCKETS_S)
        self.tokenise_s = Histogram(TTFT_BUCKETS_S)
        self.queue_s = Histogram(DURATION_BUCKETS_S)
        self.worker_s = Histogram(DURATION_BUCKETS_S)
        self.gateway_s = Histogram(TTFT_BUCKETS_S)
        self.ended: dict[str, int] = {}  # by finish reason, else by how it ended
        self.input_tokens: dict[str, int] = {}  # by tenant
        self.output_tokens: dict[str, int] = {}
        self.returned = 0  # requests that went to another worker
        self.failures: dict[tuple[str, str], int] = {}  # (worker, code)

    def count_tokens(self, tenant: str, input_tokens: int, output_tokens: int) -> None:
        tenant = tenant if tenant in self.input_tokens or len(self.input_tokens) < MAX_TENANTS else "others"
        self.input_tokens[tenant] = self.input_tokens.get(tenant, 0) + input_tokens
        self.output_tokens[tenant] = self.output_tokens.get(tenant, 0) + output_tokens

    def count_end(self, how: str) -> None:
        self.ended[how] = self.ended.get(how, 0) + 1

    def count_failure(self, worker: str, code: str) -> None:
        self.failures[worker, code] = self.failures.get((worker, code), 0) + 1
