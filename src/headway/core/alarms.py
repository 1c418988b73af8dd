"""`Alarms`: who is due when. Taking one back costs nothing, and those taken back are swept before they are many."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from headway.core.request import RequestId

# As many as this may lie about that nobody waits for, beside as many again as are still waited for.
UNSWEPT = 64
NEVER = 1 << 62


class Alarms:
    """At most one alarm for each request; setting it again moves it."""

    __slots__ = ("_at_ns", "_heap")

    def __init__(self) -> None:
        self._at_ns: dict[RequestId, int] = {}
        self._heap: list[tuple[int, RequestId]] = []

    def set(self, request_id: RequestId, at_ns: int) -> None:
        self._at_ns[request_id] = at_ns
        heappush(self._heap, (at_ns, request_id))
        if len(self._heap) > 2 * len(self._at_ns) + UNSWEPT:
            self._heap = sorted((at_ns, request_id) for request_id, at_ns in self._at_ns.items())

    def drop(self, request_id: RequestId) -> None:
        """It is not waited for any more, if it ever was."""
        self._at_ns.pop(request_id, None)

    def may_be_due(self, now: int) -> bool:
        """Cheap, and wrong at most about those that were dropped or moved."""
        return bool(self._heap) and self._heap[0][0] <= now

    @property
    def next_ns(self) -> int:
        """The earliest; NEVER when nobody is waited for."""
        heap = self._heap
        while heap and self._at_ns.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def due(self, now: int) -> Iterator[RequestId]:
        """Those whose time has come, earliest first. They have no alarm any more."""
        while self.may_be_due(now):
            at_ns, request_id = heappop(self._heap)
            if self._at_ns.get(request_id) == at_ns:
                del self._at_ns[request_id]
                yield request_id
