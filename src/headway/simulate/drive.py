"""`simulate`: a service on virtual time, and the body whose engines pull from its front, as those of one server do.

The other body is in `fleet.py`: a gateway's, which sends. What happens at one instant, and in which order, is in
`timeline.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.front.front import Front
from headway.core.front.tenants import Tenants
from headway.core.pace import StepTimeModel
from headway.core.request import Request
from headway.core.scheduler.sequence import Ended
from headway.simulate.engine import VirtualEngine
from headway.simulate.fleet import Sending
from headway.simulate.run import Record, Run
from headway.simulate.settings import VirtualRequest, VirtualSettings
from headway.simulate.timeline import Follow, Stuck, Timeline, Watch

__all__ = ["Stuck", "simulate"]


def simulate(
    requests: Iterable[VirtualRequest],
    settings: VirtualSettings,
    *,
    follow: Follow | None = None,
    watch: Watch | None = None,
) -> Run:
    """Let `requests` arrive at the service `settings` describes, until every one has ended.

    `follow` says who comes when one has ended, as in a closed loop (`closed.py`). `watch` is told how far it is.

    Raises `ConfigError` for requests that mean nothing, and `Stuck`.
    """
    kind = Pulling if settings.fleet is None else Sending
    body = kind(list(requests), settings)
    body.follow, body.watch = follow, watch
    return body.run()


class Pulling(Timeline):
    """One front, and engines that pull from it."""

    def __init__(self, requests: list[VirtualRequest], settings: VirtualSettings) -> None:
        super().__init__(requests, settings)
        first = settings.workers[0]
        self.front = Front(
            settings.admits,
            settings.front,
            model=StepTimeModel(first.step_time, frozen=True),
            tenants=Tenants(settings.default_limits, settings.tenants),
            policy=first.policy,
        )
        self.engines = [
            VirtualEngine(number, worker, self.front, self.outputs, keeps_kv=settings.keeps_kv)
            for number, worker in enumerate(settings.workers)
        ]
        self._leaps = settings.leaps

    def run(self) -> Run:
        """See `Timeline`."""
        run = super().run()
        if len(self.front.lanes):
            raise Stuck(f"{len(self.front.lanes)} requests wait at {self.now} ns, and nothing will start them")
        return run

    def admit(self, asked: VirtualRequest, request: Request, record: Record) -> None:  # noqa: ARG002 - one shape
        """See `Timeline`."""
        record.lane = self.front.lanes.lane_of(request)
        self.front.submit(request, self.now)
        for engine in self.engines:
            engine.arrived(self.now)

    def cancel(self, record: Record) -> None:
        """See `Timeline`."""
        if self.front.cancel(record.id, self.now):
            self.leave(record, "cancelled")
            return
        for engine in self.engines:
            self.tell(engine.scheduler.cancel(record.id, self.now), engine)

    def ended(self, record: Record, event: Ended, engine: VirtualEngine) -> None:  # noqa: ARG002 - one shape
        """See `Timeline`."""
        self.front.settle(record.id, event.usage, self.now)

    def decide(self, now: int) -> None:
        """Who has waited too long, when somebody is about to pull."""
        if any(engine.ends_ns is None for engine in self.engines):
            for expire in self.front.expire(now):
                self.leave(self.records[expire.request.id], "expired", expire.error)

    def begin_steps(self, now: int) -> None:
        """See `Timeline`."""
        for engine in self.engines:
            if engine.ends_ns is None and (engine.scheduler.busy or len(self.front.lanes)):
                self.begin_step(engine, now, self._most_steps(engine, now))

    def _most_steps(self, engine: VirtualEngine, now: int) -> int:
        """A leap ends before anything comes from outside, or those who wait stand otherwise.

        The step into which an arrival or a cancellation falls is taken alone, so that both are met as they would be.
        """
        if not self._leaps:
            return 1
        if len(self.engines) > 1 and (self.follow is not None or len(self.front.lanes)):
            return 1  # whoever ends on another makes room for somebody who comes or waits
        front = self.front
        until_ns = min(self.next_from_outside, front.give_up.next_ns, front.lanes.stands_until_ns)
        return engine.certain_steps(now, until_ns)
