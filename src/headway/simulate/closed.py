"""`ClosedLoop`: clients that each send their next request when their last has ended, as `headway bench` does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headway.simulate.demand import EVERYBODY, Clients, request_of
from headway.simulate.run import Record
from headway.simulate.settings import VirtualRequest
from headway.workload.item import Item

# A client whose request came back with nothing waits so long before it sends another.
PAUSE_NS = 100_000_000
# From an answer to the next request at the very least: it comes while the next step is computed.
TURN_NS = 1


@dataclass(slots=True)
class ClosedLoop:
    """`concurrency` requests at any time, until `requests` were sent, or `duration_ns` are over.

    With `at_least`, it goes on after `duration_ns` until so many were sent, but not beyond `most_ns`. `items` may end
    first. The items that were sent are in `sent`, in order, by the number that their requests have.
    """

    items: Iterator[Item]
    concurrency: int
    requests: int | None = None
    duration_ns: int | None = None
    think_ns: int = 0
    at_least: int = 0
    most_ns: int | None = None
    clients: Clients = EVERYBODY
    sent: list[Item] = field(default_factory=list)

    def first(self) -> list[VirtualRequest]:
        """Those that are sent at once."""
        made = (self._next(0) for _ in range(self.concurrency))
        return [request for request in made if request is not None]

    def after(self, record: Record, now: int) -> VirtualRequest | None:
        """What its client sends when `record` has ended, at `now`; None: nothing more."""
        pause_ns = PAUSE_NS if not record.finished and not record.first_token_ns else 0
        return self._next(now + TURN_NS + self.think_ns + pause_ns)

    def _next(self, due_ns: int) -> VirtualRequest | None:
        if self.requests is not None and len(self.sent) >= self.requests:
            return None
        until_ns = self.duration_ns
        if until_ns is not None and len(self.sent) < self.at_least:
            until_ns = self.most_ns
        if until_ns is not None and due_ns >= until_ns:
            return None
        item = next(self.items, None)
        if item is None:
            return None
        self.sent.append(item)
        return request_of(item, len(self.sent) - 1, due_ns, self.clients)
