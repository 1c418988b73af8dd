"""`Client`: what is in flight to one server, its time limits, and its end. No tasks but for connecting."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

from headway.loadtest.client.exchange import Exchange, OnEnd
from headway.loadtest.client.leftover import Leftover
from headway.loadtest.client.limits import NS_PER_S, Limits
from headway.loadtest.client.recount import Recount
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.record import Record
from headway.wire.http_connection import Connection
from headway.wire.http_pool import Pool

SWEEP_S = 0.05
PATIENCE = 5  # so many times as long is waited for the [DONE] of a server that says it


class Client:
    """`zero_ns` is the start of the run on the clock of `time.monotonic_ns`; records count from it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: Pool,
        template: RequestTemplate,
        limits: Limits,
        recount: Recount | None,
    ) -> None:
        self.loop = loop
        self.pool = pool
        self.template = template
        self.limits = limits
        self.redact = template.redactor().line
        self.recount = recount
        self.zero_ns = monotonic_ns()
        self.closing = False  # nothing is sent again
        self.in_flight: dict[Exchange, None] = {}  # in order of sending
        self._lingering: dict[Exchange, int] = {}  # finished, not yet over; when they were heard last
        self.hears_done = False  # this server ends its streams with [DONE], so that one without it has more to say
        self._left: dict[Leftover, int] = {}  # ends of bodies that nobody waits for; since when
        self._sweep = loop.call_later(SWEEP_S, self._sweep_up)

    def now_ns(self) -> int:
        return monotonic_ns() - self.zero_ns

    def send(self, record: Record, request: bytes, on_end: OnEnd) -> None:
        """Send it now. `sent_ns` is taken before a connection is sought, so that opening one is time of the answer."""
        exchange = Exchange(self, record, request, on_end)
        self.in_flight[exchange] = None
        record.sent_ns = self.now_ns()
        exchange.send()

    def linger(self, exchange: Exchange, heard_ns: int) -> None:
        """It has finished, and said something last at `heard_ns`: what it says after its finish reason counts too."""
        self._lingering[exchange] = heard_ns

    def forget(self, exchange: Exchange) -> None:
        """It has ended."""
        self.in_flight.pop(exchange, None)
        self._lingering.pop(exchange, None)

    def leave(self, connection: Connection) -> None:
        """Its answer is whole but for the body's end: it serves again if that comes in time."""
        self._left[Leftover(connection)] = monotonic_ns()

    def tokens_in_flight(self) -> int:
        """Visible chunks of what has not ended: output that no ended record counts yet."""
        return sum(exchange.record.chunks for exchange in self.in_flight)

    def last_token_ns(self) -> int:
        """When any stream in flight last said something; -1 if none did."""
        return max((exchange.record.last_ns for exchange in self.in_flight), default=-1)

    def _sweep_up(self) -> None:
        now_ns = monotonic_ns()
        overdue_ns = now_ns - self.zero_ns - int(self.limits.timeout_s * NS_PER_S)
        overdue = []
        for exchange in self.in_flight:
            if exchange.record.sent_ns > overdue_ns:
                break
            overdue.append(exchange)
        for exchange in overdue:
            exchange.expire(now_ns)
        linger_ns = int(self.limits.linger_s * NS_PER_S)
        patience_ns = linger_ns * (PATIENCE if self.hears_done else 1)
        for exchange, since_ns in tuple(self._lingering.items()):
            if now_ns - since_ns > patience_ns:
                exchange.linger_over(since_ns)
        for leftover, since_ns in tuple(self._left.items()):
            if now_ns - since_ns > linger_ns:
                del self._left[leftover]
                leftover.close()
        self._sweep = self.loop.call_later(SWEEP_S, self._sweep_up)

    async def close(self) -> None:
        """Cancel what is left."""
        self.closing = True
        now_ns = monotonic_ns()
        for exchange in tuple(self.in_flight):
            exchange.cancel(now_ns)
        self._sweep.cancel()
        await self.pool.close()
