"""A rising load ends when service has clearly degraded: not before, and not for a hiccup."""

from __future__ import annotations

import pytest

from headway.loadtest.runner.degraded import Counts, Degraded


def ramped(capacity: float, *, refuses: bool = False, breaks: bool = False, seconds: float = 120.0) -> float | None:
    """When `Degraded` has seen enough of 1 to 41 requests/s on a server that finishes `capacity`; None: never."""
    degraded = Degraded()
    sent = ok = failed = late = 0.0
    for tick in range(int(seconds * 4)):
        at_s = tick / 4
        rate = 1 + 40 * at_s / seconds
        sent += rate / 4
        over = max(0.0, rate - capacity) / 4
        if refuses:
            ok, failed = ok + min(rate, capacity) / 4 - over * 2, failed + over * 3
        elif breaks:
            ok, late = ok + rate / 4, late + over * 4
        else:
            ok += min(rate, capacity) / 4
        in_flight = max(sent - ok - failed, 0.0) + 0.5 * rate
        if degraded.look(Counts(at_s, int(sent), int(in_flight), int(ok), int(failed), int(late))):
            return at_s
    return None


@pytest.mark.parametrize("how", [{}, {"refuses": True}, {"breaks": True}])
def test_a_ramp_has_seen_enough_only_well_beyond_the_capacity(how: dict[str, bool]) -> None:
    crosses_s = 120 * (10 - 1) / 40
    seen_s = ramped(10.0, **how)
    assert seen_s is not None
    assert 1.2 * crosses_s <= seen_s < 120, "the knee has load on both sides"
    assert ramped(100.0, **how) is None, "a server that keeps up is asked for all of it"


def test_a_hiccup_is_no_end() -> None:
    degraded = Degraded()
    for tick in range(400):
        at_s, sent = tick / 4, 5 * tick
        failed = 20 if tick > 200 else 0  # four seconds' worth, once
        assert not degraded.look(Counts(at_s, sent, 3, sent - failed, failed, 0))
