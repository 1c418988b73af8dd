"""`Limits`: how long is waited for what."""

from __future__ import annotations

from dataclasses import dataclass

from headway.loadtest.errors import InvalidPlan

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    timeout_s: float = 600.0  # of a request: first sending to end, attempts and waits included
    connect_timeout_s: float = 10.0
    # A stream that said all but [DONE] may be silent so long, and its connection may stay open so long after [DONE].
    linger_s: float = 2.0
    respect_retry_after: bool = False  # a refused request is sent again when it may
    # After the last was sent; what has not ended then is CANCELLED. Less than `timeout_s`, and the last have less time.
    drain_s: float = 600.0
    interrupted_drain_s: float = 5.0  # the same after Ctrl-C
    give_up_s: float = 20.0  # the run ends early when requests failed and none succeeded for so long

    def __post_init__(self) -> None:
        for name in ("timeout_s", "connect_timeout_s", "give_up_s"):
            if not getattr(self, name) > 0:
                raise InvalidPlan(f"{name} must be above 0, not {getattr(self, name)}.")
        for name in ("linger_s", "drain_s", "interrupted_drain_s"):
            if not getattr(self, name) >= 0:
                raise InvalidPlan(f"{name} must not be negative, and is {getattr(self, name)}.")
