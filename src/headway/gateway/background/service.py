"""`Background`: keeps calls for later, and owns what computes them. One store, one runner, one process."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from headway.core.errors import MAX_RETRY_AFTER_S, Refused
from headway.gateway.background.batch.source import BatchSource
from headway.gateway.background.config import BackgroundConfig
from headway.gateway.background.jobs import JobSource
from headway.gateway.background.runner import Runner, Source
from headway.gateway.background.tenants import owner_of
from headway.gateway.background.work import BACKGROUND, Runs, Wanted, whole_body
from headway.store import AsyncStore, DiskFull, Job, JobState, Store

log = logging.getLogger("headway.background")

HOLDER = "headway serve"
SWEEP_EVERY_S = 60.0


class BackgroundFull(Refused):
    """So many requests are kept already that no more are."""

    status = 429
    type = "rate_limit_error"
    code = "background_full"


class Background:
    """Open it, then `start`; `drain` begins nothing more; `close` puts back what runs, and closes the store."""

    store: AsyncStore
    jobs: JobSource
    batches: BatchSource
    runner: Runner
    opened = False

    def __init__(self, runs: Runs, config: BackgroundConfig, *, clock_s: Callable[[], float] = time.time) -> None:
        self.config = config
        self.clock_s = clock_s
        self._runs = runs
        self._keeping_house: asyncio.Task[None] | None = None
        self._swept_s = 0.0

    async def open(self) -> None:
        """Raises `StoreError`: in use, damaged, not writable."""
        opening = partial(
            Store.open,
            self.config.directory,
            holder=HOLDER,
            now_s=self.clock_s(),
            max_tenant_bytes=self.config.max_bytes // 2,
        )
        self.store = await AsyncStore.open(opening)
        self.jobs = JobSource(self.store, self.config, self.clock_s)
        sources: list[Source] = [self.jobs]  # somebody asks for these again and again: they go before lines of files
        self.runner = Runner(self._runs, sources, self.config.slots)
        self.batches = BatchSource(
            self.store, self.config, self.clock_s, wake=self.runner.wake, stop=self.runner.cancel
        )
        sources.append(self.batches)
        self.opened = True
        try:
            await self.batches.resume()
        except BaseException:
            await self.close()
            raise

    @property
    def running(self) -> int:
        return self.runner.running if self.opened else 0

    def start(self) -> None:
        self.runner.start()
        self._keeping_house = asyncio.create_task(self._keep_house())

    async def drain(self) -> None:
        await self.runner.stop_feeding()

    async def ended(self) -> None:
        await self.runner.ended()

    async def close(self) -> None:
        """Idempotent."""
        if not self.opened:
            return
        self.opened = False
        if self._keeping_house is not None:
            self._keeping_house.cancel()
            await asyncio.gather(self._keeping_house, return_exceptions=True)
        await self.runner.close()
        await self.batches.close()
        await self.store.close()

    # -- requests --------------------------------------------------------------------------------------------------

    async def keep(self, wanted: Wanted) -> Job:
        """On the disk when it returns. Raises `BackgroundFull`, `DiskFull`, and `InvalidRequest` for a stream."""
        body = whole_body(wanted.body, streams_refused=wanted.why == BACKGROUND)
        job = await self.store.run(partial(self._create, wanted=wanted, body=body))
        self.jobs.kept()
        self.runner.wake()
        return job

    def _create(self, store: Store, *, wanted: Wanted, body: bytes) -> Job:
        owner = owner_of(wanted.tenant)
        backlog = store.jobs.backlog()
        queued, most = sum(backlog.values()), self.config.max_queued
        own = backlog.get(owner, 0)
        if queued >= most or (own >= most // 2 and wanted.tenant):
            whose, number = ("all", queued) if queued >= most else ("this key's tenant", own)
            raise BackgroundFull(
                f"{number:,} background requests of {whose} wait already, and no more are kept (--background-limit). "
                "Come back later.",
                retry_after_s=MAX_RETRY_AFTER_S,
            )
        self.check_space(store, len(body))
        return store.jobs.create(
            f"bg_{secrets.token_hex(16)}",
            owner,
            body,
            kind=wanted.why,
            endpoint=wanted.path,
            now_s=self.clock_s(),
            meta={"model": wanted.model},
        )

    def check_space(self, store: Store, more_bytes: int) -> None:
        """Raises `DiskFull` when the store would pass its own limit."""
        used_bytes = store.used_bytes()
        if used_bytes + more_bytes > self.config.max_bytes:
            raise DiskFull(
                f"The store holds {used_bytes:,} bytes and may hold {self.config.max_bytes:,} (--store-gib). Nothing "
                "was kept. Delete results or files, or come back when they have expired."
            )

    async def cancel(self, id: str, tenant: str) -> Job:
        """At once, also while it runs. Raises `NotFound`."""

        def cancelled(store: Store) -> tuple[bool, Job]:
            with store.transaction():
                ended = store.jobs.get(id, owner_of(tenant)).state.final
                return ended, store.jobs.cancel(id, owner_of(tenant), self.clock_s())

        ended, job = await self.store.run(cancelled)
        if not ended:
            self.jobs.count(JobState.CANCELLED)
        self.runner.cancel(id)
        return job

    # -- its own life ----------------------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self.config.keep_house_s)
            for chore in self.chores():
                try:
                    await chore()
                except Exception:  # a full disk must not stop the clock
                    log.exception("keeping house failed, and is tried again")

    def chores(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self.jobs.keep_house, self._sweep)

    async def _sweep(self) -> None:
        """Delete what has expired, a bounded part at a time."""
        now_s = self.clock_s()
        if now_s - self._swept_s < SWEEP_EVERY_S and now_s >= self._swept_s:
            return
        swept = await self.store.run(
            lambda store: store.sweep(
                now_s, keep_jobs_s=self.config.retention_s, keep_batches_s=self.config.batch_retention_s
            )
        )
        if not swept.more:
            self._swept_s = now_s
