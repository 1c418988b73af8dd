"""`Lanes`: the waiting room and its order. One lane, first come, first served."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headway.core.request import Request, RequestId


class Lanes:
    """Holds waiting requests. Adding, removing by id and taking the head are O(1)."""

    def __init__(self) -> None:
        # Insertion order is arrival order, and a cancelled request leaves from the middle without a search.
        self._waiting: dict[RequestId, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())

    def add(self, request: Request) -> None:
        self._waiting[request.id] = request

    def remove(self, request_id: RequestId) -> None:
        """Raises KeyError when the request does not wait here."""
        del self._waiting[request_id]

    def take(self, accepts: Callable[[Request], bool]) -> Request | None:
        """Remove and return the next request, or None when nobody waits or the next one is not accepted."""
        head = next(iter(self._waiting.values()), None)
        if head is None or not accepts(head):
            return None
        del self._waiting[head.id]
        return head
