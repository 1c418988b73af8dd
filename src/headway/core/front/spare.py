"""Work that nobody waits for: its lane, where it stands, and when there is room for it.

It is stored outside and offered to a front a few at a time. Here is decided whether that may be now; in the front it
is a request like any other, in the lane `batch`, behind everybody, and never aged.
"""

from __future__ import annotations

from headway.core.front.front import Front
from headway.core.front.ladder import Level
from headway.core.lanes import LaneLimits
from headway.core.request import BATCH, Request

BATCH_PRIORITY = 1_000_000  # behind whatever a client or an operator would write


def batch_lane(slots: int) -> LaneLimits:
    """To be the last of a front's lanes: it takes all that is for the pool `batch`, of whatever length."""
    return LaneLimits(BATCH, slots=max(1, slots), pool=BATCH)


def has_spare(front: Front) -> bool:
    """Nobody waits that somebody waits for, the load is none that anything is left out for, and batch work has not got
    its share of the workers' windows: half of them, or all of those that are in a pool of their own.
    """
    if front.not_ready_reason or front.ladder.height or front.ladder.active(Level.DIVERT_BATCH):
        return False
    waiting = front.lanes.waiting_by_lane()
    batch = waiting.pop(BATCH, 0)
    if any(waiting.values()):
        return False
    return not front.remote or batch + front.lanes.running_in(BATCH) < _share(front)


def _share(front: Front) -> int:
    """How many batch requests a fleet has at a time, at most."""
    windows = [(worker.spec.pool == BATCH, int(worker.window.sequences)) for worker in front.fleet.workers.values()]
    apart = sum(sequences for own, sequences in windows if own)
    return apart or max(1, sum(sequences for _, sequences in windows) // 2)


def check_possible(front: Front, request: Request) -> None:
    """Raises `InvalidRequest` for what could never be let in, however long it waits."""
    front.admission.check_possible([request])
    limits = front.tenants.of(request.tenant)
    if limits.lanes:
        limits.check_lane(front.lanes.lane_of(request))
