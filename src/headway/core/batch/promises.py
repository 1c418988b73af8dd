"""What batch work must leave to others on the same server: their promises, and how near those are to being broken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Of requests that somebody waits for, in seconds at p95; None for what nobody was promised."""

    ttft_s: float | None = None
    itl_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.itl_s is not None

    def strain(self, *, ttft_s: float | None, itl_s: float | None) -> float:
        """What was measured over what was promised, the worst of them: 1 is the limit. 0 where nothing was measured:
        nobody was there to be disturbed.
        """
        pairs = ((ttft_s, self.ttft_s), (itl_s, self.itl_s))
        return max((seen / kept for seen, kept in pairs if seen is not None and kept), default=0.0)
