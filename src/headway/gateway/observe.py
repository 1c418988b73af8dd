"""What one call's timing was: observed into the metrics as it happens, and told in `Server-Timing` at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headway.core.request import Times
from headway.gateway.backend import DeltaView
from headway.metrics.exporter import Exporter

NS_PER_S = 1e9


class Timing:
    """Clocks one call from its arrival. `ready` when it is tokenised, `token` per delta, `finished` once at the end."""

    __slots__ = ("_arrival_ns", "_last_ns", "_metrics", "_tokenise_s")

    def __init__(self, metrics: Exporter) -> None:
        self._metrics = metrics
        self._arrival_ns = time.monotonic_ns()
        self._tokenise_s = 0.0
        self._last_ns: dict[int, int] = {}  # by choice: when its last token came

    def ready(self) -> None:
        self._tokenise_s = (time.monotonic_ns() - self._arrival_ns) / NS_PER_S
        self._metrics.tokenise_s.observe(self._tokenise_s)

    def token(self, index: int, delta: DeltaView) -> None:
        count = len(delta.tokens)
        if not count:
            return
        now = time.monotonic_ns()
        last = self._last_ns.get(index)
        self._last_ns[index] = now
        if last is None:
            self._metrics.ttft_s.observe((now - self._arrival_ns) / NS_PER_S)
            return
        gap_s = (now - last) / NS_PER_S / count
        for _ in range(count):
            self._metrics.itl_s.observe(gap_s)

    def finished(self, times: Sequence[Times | None]) -> str:
        """Observe the parts of every sequence; the `Server-Timing` value tells those of the one that ended last."""
        total_s = (time.monotonic_ns() - self._arrival_ns) / NS_PER_S
        self._metrics.duration_s.observe(total_s)
        parts = {"tokenise": self._tokenise_s}
        reached = [one for one in times if one is not None and one.first_token_ns]
        for one in sorted(reached, key=lambda one: one.ended_ns):
            parts["queue"] = (one.started_ns - one.arrival_ns) / NS_PER_S
            parts["prefill"] = (one.first_token_ns - one.started_ns) / NS_PER_S
            parts["decode"] = (one.ended_ns - one.first_token_ns) / NS_PER_S
            self._metrics.queue_s.observe(parts["queue"])
            self._metrics.prefill_s.observe(parts["prefill"])
            self._metrics.decode_s.observe(parts["decode"])
        parts["total"] = total_s
        return ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in parts.items())
