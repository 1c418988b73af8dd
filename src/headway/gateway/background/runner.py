"""`Runner`: takes kept work to whoever computes it, a few at a time, when the core says that there is room for it.

Where work comes from, and what becomes of its result, is its source's affair. Work is put back when it is refused for
now, or when the server stops; then it is nobody's fault. A worker or an engine that fails costs it one of its tries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Protocol

from headway.core.errors import HeadwayError, QuotaExceeded, Refused
from headway.gateway.background.work import Answered, Kept, Runs
from headway.store import StoreError
from headway.wire.errors import error_body

log = logging.getLogger("headway.background")

POLL_S = 0.1  # while there is work and no room
IDLE_S = 0.5  # work whose time has come does not say so
PUT_BACK_S = 3.0  # for work to be put back when the server stops; else it is taken back at the next start
STORE_UNWELL_S = 2.0
LONGEST_PAUSE_S = 1.0  # after a refusal that is nobody's quota
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0  # of work that failed by no fault of its own


class Work(Protocol):
    """One kept call. Exactly one of the rest is called of it, and may be cut short when the server stops."""

    @property
    def kept(self) -> Kept: ...
    @property
    def owner(self) -> str: ...
    @property
    def tries(self) -> int:
        """The present one included."""

    @property
    def last_try(self) -> bool: ...

    async def completed(self, answered: Answered) -> None: ...
    async def failed(self, status: int, body: bytes, code: str) -> None: ...
    async def put_back(self, after_s: float, *, counts: bool) -> None:
        """To be tried again, in `after_s` at the soonest."""


class Source(Protocol):
    async def owners(self) -> Sequence[str]:
        """Who has work here that might start."""

    async def take(self, owner: str) -> Work | None: ...


class Runner:
    """`slots`: so many at a time."""

    def __init__(self, runs: Runs, sources: Sequence[Source], slots: int) -> None:
        self._runs = runs
        self._sources = sources
        self._slots = slots
        self._running: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, int] = {}  # how many of each run
        self._paused_until_s = 0.0
        self._over_quota_until_s: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._stopping = False
        self._feeding: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        return len(self._running)

    def start(self) -> None:
        self._feeding = asyncio.create_task(self._feed())

    def wake(self) -> None:
        """There is new work."""
        self._wake.set()

    def cancel(self, id: str) -> None:
        """Stop computing; its source knows already."""
        if (task := self._running.get(id)) is not None:
            task.cancel()

    async def stop_feeding(self) -> None:
        """Begin nothing more; what runs goes on."""
        self._stopping = True
        self._wake.set()
        if self._feeding is not None:
            await self._feeding  # not cancelled: what it has just claimed would be nobody's
            self._feeding = None

    async def ended(self) -> None:
        """What runs has ended, and is written down."""
        while self._running:
            await asyncio.wait(list(self._running.values()))

    async def close(self) -> None:
        """What runs is stopped and put back."""
        await self.stop_feeding()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self) -> None:
        unwell = ""
        while not self._stopping:
            self._wake.clear()
            try:
                more = await self._fill()
                unwell = ""
            except StoreError as error:
                if error.message != unwell:
                    log.error("kept work cannot be begun at the moment: %s", error.message)
                more, unwell = True, error.message
                self._paused_until_s = time.monotonic() + STORE_UNWELL_S
            except Exception:
                log.exception("a defect: kept work could not be begun")
                more = True
                self._paused_until_s = time.monotonic() + STORE_UNWELL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S if more else IDLE_S):
                    await self._wake.wait()

    async def _fill(self) -> bool:
        """Begin what there is room for. True when there may be more."""
        if not self._room():
            return True
        now_s = time.monotonic()
        ready: dict[str, list[Source]] = {}
        for source in self._sources:
            for owner in await source.owners():
                if self._over_quota_until_s.get(owner, 0.0) <= now_s:
                    ready.setdefault(owner, []).append(source)
        while ready:
            if not self._room():
                return True
            owner = min(ready, key=lambda one: self._owners.get(one, 0))
            work = await self._taken(owner, ready[owner])
            if work is None:
                del ready[owner]
                continue
            self._begin(work)
            await asyncio.sleep(0)  # it gets to the front before the next is thought of
        return False

    def _room(self) -> bool:
        has_slot = not self._stopping and len(self._running) < self._slots and time.monotonic() >= self._paused_until_s
        return has_slot and self._runs.has_spare()

    async def _taken(self, owner: str, sources: Sequence[Source]) -> Work | None:
        for source in sources:
            if (work := await source.take(owner)) is not None:
                return work
        return None

    def _begin(self, work: Work) -> None:
        name, owner = work.kept.id, work.owner
        self._owners[owner] = self._owners.get(owner, 0) + 1
        task = self._running[name] = asyncio.create_task(self._run(work))

        def ended(_: object) -> None:
            del self._running[name]
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]
            self._wake.set()

        task.add_done_callback(ended)

    async def _run(self, work: Work) -> None:
        try:
            answered = await self._runs.run(work.kept)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):  # a disk that is full must not keep the server from ending
                async with asyncio.timeout(PUT_BACK_S):
                    await work.put_back(0.0, counts=False)  # or it is cancelled, and this does nothing
            raise
        except Refused as refusal:
            self._pause(work.owner, refusal)
            await work.put_back(refusal.retry_after_s, counts=False)
        except HeadwayError as error:
            await self._stumbled(work, error.status, error_body(error), error.code or error.type)
        except Exception:
            log.exception("kept request %s: unexpected error", work.kept.id)
            defect = HeadwayError("The server failed while computing this. Please report it.", code="internal_error")
            await self._stumbled(work, defect.status, error_body(defect), "internal_error")
        else:
            if answered.status < 400:
                await work.completed(answered)
            else:
                await self._stumbled(work, answered.status, answered.body, f"http_{answered.status}")

    async def _stumbled(self, work: Work, status: int, body: bytes, code: str) -> None:
        """What is its own fault will be its fault again."""
        if status < 500 or work.last_try:
            await work.failed(status, body, code)
            return
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** (work.tries - 1))
        log.warning("kept request %s failed (%s), and is tried again in %g s", work.kept.id, code, rest_s)
        await work.put_back(rest_s, counts=True)

    def _pause(self, owner: str, refusal: Refused) -> None:
        now_s = time.monotonic()
        if isinstance(refusal, QuotaExceeded):
            self._over_quota_until_s[owner] = now_s + refusal.retry_after_s
        else:
            self._paused_until_s = now_s + min(LONGEST_PAUSE_S, refusal.retry_after_s)
