"""`Suspects`: items that were running when their worker was lost. One of them may be why, and is found by halving.

Those that were lost together run again in two halves, each with nobody beside it; a half that is lost is halved again.
What is lost alone is what loses workers: after `alone_tries` it is given up. Out of memory is the same story: half of
the items take half of the memory, and an item that does not fit alone never will.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Suspects:
    """Of one worker. A group that was handed out is under trial until each of its items was `cleared` or is `lost`."""

    def __init__(self, alone_tries: int = 2) -> None:
        self._alone_tries = alone_tries
        self._groups: deque[list[int]] = deque()
        self._alone: dict[int, int] = {}  # losses of items that ran alone
        self._on_trial: set[int] = set()
        self._trial_size = 0
        self.largest_cleared = 0  # of the groups that ran whole
        self._lost: list[int] = []  # since the last verdict

    def __len__(self) -> int:
        """Of items that are kept apart and do not run."""
        return sum(map(len, self._groups)) + len(self._lost)

    @property
    def pending(self) -> bool:
        """Is there a group to be run before anybody else begins?"""
        return bool(self._groups or self._lost or self._on_trial)

    def lost(self, number: int) -> bool:
        """It was lost. True when it ran alone, and has been lost so often enough: it is given up."""
        if number in self._on_trial and self._trial_size == 1:
            self._on_trial.discard(number)
            self._alone[number] = self._alone.get(number, 0) + 1
            if self._alone[number] >= self._alone_tries:
                del self._alone[number]
                return True
            self._groups.appendleft([number])
            return False
        self._on_trial.discard(number)
        self._lost.append(number)
        self._trial_size = 0  # it did not run whole
        return False

    def cleared(self, number: int) -> None:
        """It ended in some other way."""
        self._alone.pop(number, None)
        if number in self._on_trial:
            self._on_trial.remove(number)
            if not self._on_trial:
                self.largest_cleared = max(self.largest_cleared, self._trial_size)

    def next_group(self) -> Sequence[int]:
        """The items to run now, alone together. Ask when nothing runs any more; empty when nobody is suspected."""
        assert not self._on_trial, "one trial at a time"
        if self._lost:
            lost, self._lost = self._lost, []
            middle = (len(lost) + 1) // 2
            self._groups.extendleft(half for half in (lost[middle:], lost[:middle]) if half)
        if not self._groups:
            return ()
        group = self._groups.popleft()
        self._on_trial = set(group)
        self._trial_size = len(group)
        return group

    def all(self) -> list[int]:
        """Everybody who is kept apart and does not run; they are nobody's suspects any more."""
        everybody = [number for group in self._groups for number in group] + self._lost
        self._groups.clear()
        self._lost = []
        return everybody
