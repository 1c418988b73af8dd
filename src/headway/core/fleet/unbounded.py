"""`UnboundedFleet`: workers that get what comes, at once. They are chosen as ever, and nobody is held back."""

from __future__ import annotations

from headway.core.fleet.fleet import Fleet
from headway.core.fleet.routing import Choice, choose
from headway.core.lanes import Fit
from headway.core.request import Request


class UnboundedFleet(Fleet):
    """No window and no share of KV counts; a worker that drains or is not trusted still gets nothing."""

    def has_room(self, now: int) -> bool:
        """Is anybody up?"""
        return self.up(now) > 0

    def choose(self, request: Request, tried: tuple[str, ...], now: int) -> Choice | Fit:
        """The best score of those that are up; those that were `tried` only when no other is."""
        up = [worker for worker in self._pool(request) if not worker.draining and worker.breaker.allows(now)]
        able = [worker for worker in up if worker.spec.id not in tried] or up
        if not able:
            return Fit.OTHER_KIND
        return choose(able, request, max(1.0, self.typical_tokens or request.prompt_tokens), now)
