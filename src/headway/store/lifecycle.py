"""The lives of jobs, batches and items: tables of states and moves, and the one function that applies them.

Documentation and the tests of illegal moves are generated from the tables. What the tables cannot say (a batch is
finished only when none of its items is missing) is checked where the move is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from headway.store.errors import IllegalMove


class JobState(Enum):
    """A background request. A cancelled one ends at once; whoever computes it learns so at its next call."""

    QUEUED = "queued"
    RUNNING = "in_progress"

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return not JOB_MOVES[self]


JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    # Back to the queue when its lease ran out or its owner gave it back; failed instead once its tries are used up.
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class BatchState(Enum):
    """OpenAI's states of a batch, under OpenAI's names."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return not BATCH_MOVES[self]


BATCH_MOVES: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.VALIDATING: frozenset(
        {BatchState.IN_PROGRESS, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLING}
    ),
    BatchState.IN_PROGRESS: frozenset(
        {BatchState.FINALIZING, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLING}
    ),
    # Nothing is left to cancel or to expire: every item has its end, only the files are being written.
    BatchState.FINALIZING: frozenset({BatchState.COMPLETED, BatchState.FAILED}),
    BatchState.CANCELLING: frozenset({BatchState.CANCELLED}),
    BatchState.COMPLETED: frozenset(),
    BatchState.FAILED: frozenset(),
    BatchState.EXPIRED: frozenset(),
    BatchState.CANCELLED: frozenset(),
}


class ItemState(Enum):
    """One line of a batch. There is no "running": after a crash whatever is not finished is missing, and is redone."""

    PENDING = "pending"

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "batch_expired"
    CANCELLED = "batch_cancelled"

    @property
    def final(self) -> bool:
        return self is not ItemState.PENDING


ITEM_MOVES: Mapping[ItemState, frozenset[ItemState]] = {
    ItemState.PENDING: frozenset({ItemState.COMPLETED, ItemState.FAILED, ItemState.EXPIRED, ItemState.CANCELLED}),
    ItemState.COMPLETED: frozenset(),
    ItemState.FAILED: frozenset({ItemState.PENDING}),  # tried again alone, while its batch is in progress
    ItemState.EXPIRED: frozenset(),
    ItemState.CANCELLED: frozenset(),
}

S = TypeVar("S", JobState, BatchState, ItemState)


def check_move(moves: Mapping[S, frozenset[S]], current: S, to: S, what: str) -> None:
    """Raises `IllegalMove`, saying of `what` where it is and where it could go."""
    if to in moves[current]:
        return
    ways = " or ".join(sorted(state.value for state in moves[current]))
    raise IllegalMove(
        f"{what} is {current.value} and cannot become {to.value}: "
        + (f"from here it can only become {ways}." if ways else "that is its end.")
    )
