"""`SharedQuotas`: keeps a gateway's `Sharing` and its store in touch: one ask at a time, away from the requests' path.

What many requests need goes into one ask. A request waits for one only when what is at hand here is not enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from headway.core.front.ledger import Amounts
from headway.core.front.sharing import Mode, Sharing
from headway.core.request import Request
from headway.workers.quota_store import QuotaStore, QuotaStoreFault

log = logging.getLogger("headway.quota")

INTERVAL_S = 0.1
# A store that does not answer is asked after so long, then after twice that, and so on, up to a second.
MAX_INTERVAL_S = 1.0
CLOSE_TIMEOUT_S = 1.0


class SharedQuotas:
    """`where`: the store's name, for people; without its password."""

    def __init__(
        self,
        sharing: Sharing,
        store: QuotaStore,
        where: str,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.sharing = sharing
        self.where = where
        self.exchanges: Counter[str] = Counter(answered=0, failed=0)
        self.waited = 0  # requests that waited for an ask
        self._store = store
        self._clock = clock
        self._interval_s = interval_s
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._told = sharing.mode
        self._lost_ns = 0
        self._trouble = ""

    async def start(self) -> None:
        """Returns when the store has been asked once, whether it answered or not."""
        self._lost_ns = self._clock()
        await self._exchange()
        if self.sharing.mode is Mode.STORE:
            log.info("limits are shared with %d other gateways at %s", self.sharing.gateways - 1, self.where)
        else:
            log.error("%s", self._lost())
        self._told = self.sharing.mode
        self._task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        """Give back what this gateway has, so that the others need not wait for its lease to run out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._release()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self.sharing.gateways:
                    await self._store.exchange(self.sharing.leave(self._clock()))
                await self._store.close()
        except (QuotaStoreFault, TimeoutError) as error:
            log.warning("what this gateway had of the shared limits was not given back: %s", error)

    def short(self, request: Request) -> bool:
        """Before it is let in: is it worth while for it to wait for `more`?"""
        return self.sharing.short(request.tenant, Amounts(1, 1, request.total_tokens), self._clock())

    async def more(self) -> None:
        """Returns when an ask for what was `short` has been answered, or has failed."""
        self.waited += 1
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._wake.set()
        await waiter

    # -- the other side ------------------------------------------------------------------------------------------------

    async def _go_on(self) -> None:
        wait_s = self._interval_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                if self._waiting or self.sharing.due(self._clock()):
                    await self._exchange()
            except Exception:  # a defect must not leave this gateway with what it has for ever
                log.exception("a defect in what is said to the store of quotas")
                self._release()
            self._tell()
            failures = self.sharing.failures
            wait_s = 0.0 if self.sharing.behind else min(MAX_INTERVAL_S, self._interval_s * 2 ** min(failures, 9))

    async def _exchange(self) -> None:
        asked_by, self._waiting = self._waiting, []
        try:
            answer = await self._store.exchange(self.sharing.ask(self._clock()))
        except QuotaStoreFault as fault:
            self.exchanges["failed"] += 1
            self._trouble = str(fault)
            self.sharing.failed(self._clock())
        else:
            self.exchanges["answered"] += 1
            self.sharing.answered(answer, self._clock())
        finally:
            _release(asked_by)

    def _release(self) -> None:
        _release(self._waiting)
        self._waiting = []

    def _tell(self) -> None:
        """A line whenever what holds has changed."""
        self.sharing.look(self._clock())
        mode, before = self.sharing.mode, self._told
        if mode is before:
            return
        self._told = mode
        if mode is Mode.STORE:
            lost_s = (self._clock() - self._lost_ns) / 1e9
            log.warning("limits are shared at %s again, which was lost for %.1f s", self.where, lost_s)
        else:
            self._lost_ns = self._clock()
            log.error("%s", self._lost())

    def _lost(self) -> str:
        what = f"the store of quotas at {self.where} does not answer ({self._trouble or 'it gives nothing yet'})"
        if self.sharing.mode is Mode.SHARE:
            return f"{what}: this gateway goes on with 1/{self.sharing.gateways} of each limit"
        return f"{what}: requests of tenants that have limits are refused"


def _release(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
