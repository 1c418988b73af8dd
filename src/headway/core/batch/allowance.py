"""`Allowance`: how many tokens a batch may use a minute, whatever its workers could do."""

from __future__ import annotations

NS_PER_MINUTE = 60_000_000_000
BURST = 6  # at most so big a part of a minute's worth at once: a sixth


class Allowance:
    """A bucket that refills evenly. What an item takes is only known at its end, so it may begin while anything is
    left, and what it took beyond is paid before the next one: in no minute more than 7/6 of the allowance, one item,
    and what was wrong with what those before it were thought to take.

    `now` is in ns. Without a number there is no limit.
    """

    def __init__(self, tokens_per_minute: int | None = None) -> None:
        self._per_minute = tokens_per_minute
        self._most = (tokens_per_minute or 0) * NS_PER_MINUTE // BURST
        self._left = self._most  # in tokens × ns of a minute, so that it stays whole
        self._since_ns: int | None = None

    def opens_at_ns(self, now: int) -> int:
        """When an item may begin; `now` when it may."""
        if self._per_minute is None:
            return now
        if self._since_ns is not None:
            self._left = min(self._most, self._left + self._per_minute * max(0, now - self._since_ns))
        self._since_ns = max(now, self._since_ns or now)
        return now if self._left > 0 else now + 1 - self._left // self._per_minute

    def take(self, tokens: int) -> None:
        """Of an item that begins, what it is thought to take; of one that has ended, what it took beyond, or less."""
        self._left -= tokens * NS_PER_MINUTE
