"""`Watch`: finds out what a worker is, whether it is well, what it serves and how loaded it is, again and again.

Each question is asked by one task, so that never two of a kind are on their way; intervals are blurred, so that many
workers, or many gateways, do not move in step. A question without an answer changes nothing but a
count: what was known keeps its age.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from headway.core.fleet.worker import UNKNOWN, WorkerLoad
from headway.metrics.worker_signals import Meter, read_metrics
from headway.wire.http_client import HttpClient
from headway.wire.http_connection import HttpFault
from headway.workers.kinds import MAX_PAGE_BYTES, OPENAI, Detected, Kind, Page, detect, json_of, models_of, read_page
from headway.workers.worker import Unwatched, Watcher

log = logging.getLogger("headway.workers")

BLUR_RATIO = 0.2
# A page that is not there is not asked for again before the worker is looked at anew.
NOT_THERE = (404, 405, 501)
# A worker that does not answer is asked for its load so much less often, at most.
MAX_SLOWER = 8
GPU_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """In seconds."""

    load_s: float = 0.2
    health_s: float = 1.0
    models_s: float = 30.0
    load_timeout_s: float = 2.0
    health_timeout_s: float = 2.0


class Watch:
    """Of one worker. `kind` None: it is found out, and again whenever the worker comes back."""

    def __init__(
        self,
        worker_id: str,
        client: HttpClient,
        target: Callable[[str], str],
        *,
        kind: Kind | None,
        models: frozenset[str],
        intervals: Intervals,
        gpu: tuple[HttpClient, str] | None,
        clock: Callable[[], int],
        random: Random,
    ) -> None:
        self._id = worker_id
        self._client = client
        self._target = target
        self._given_kind = kind
        self._given_models = models
        self._intervals = intervals
        self._gpu = gpu
        self._clock = clock
        self._random = random
        self._watcher: Watcher = Unwatched()
        self._meter = Meter()
        self._absent: set[str] = set()  # pages that are not there
        self._tasks: list[asyncio.Task[None]] = []
        self._looked_ns = 0
        self._told: frozenset[str] = frozenset()  # the models that the watcher knows of
        self.kind = kind
        self.evidence = "as configured" if kind is not None else ""
        self.models = models
        self.load = UNKNOWN
        self.well: bool | None = None  # None before the first check
        self.reason = "it was not asked yet"
        self.scrapes = self.scrape_failures = self.checks = self.check_failures = 0

    async def start(self, watcher: Watcher) -> None:
        """Looks once before it returns, so that what is up is known."""
        self._watcher = watcher
        await self._check()
        await self._scrape(0)
        self._tasks = [asyncio.create_task(self._checking()), asyncio.create_task(self._scraping())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._gpu is not None:
            await self._gpu[0].close()

    # -- health, kind and models ---------------------------------------------------------------------------------------

    async def _checking(self) -> None:
        while True:
            await self._pause(self._intervals.health_s)
            await self._guarded(self._check())

    async def _check(self) -> None:
        self.checks += 1
        was_well, reason = self.well, await self._ailment()
        self.well, self.reason = not reason, reason
        if reason:
            self.check_failures += 1
            if was_well is not False:
                log.warning("worker %s is not well: %s", self._id, reason)
        elif not was_well:
            log.info("worker %s is well", self._id)
            await self._look(anew=True)
        elif self._clock() - self._looked_ns > self._intervals.models_s * 1e9:
            await self._look(anew=False)
        self._watcher.checked(self._id, well=self.well, reason=reason)

    async def _ailment(self) -> str:
        """Why it is not well; empty when it is."""
        path = self.kind.health if self.kind is not None else "/health"
        status, _ = await self._get(path, self._intervals.health_timeout_s)
        if isinstance(status, HttpFault):
            return str(status)
        if status in (401, 403):
            return f"it refuses our key: {path} answers {status}"
        if status >= 400 and status not in NOT_THERE:
            return f"{path} answers {status}"
        return ""

    async def _look(self, *, anew: bool) -> None:
        """Which models are there? And, when it comes back, is it still what it was?"""
        self._looked_ns = self._clock()
        if anew:
            self._absent.clear()
        if anew and self._given_kind is None:
            found = await detect(self._client, self._target, timeout_s=self._intervals.health_timeout_s)
            if found is not None:
                self._take(found)
            return
        status, body = await self._get("/v1/models", self._intervals.health_timeout_s)
        if status == 200:
            self._serves(models_of(json_of(body))[0])

    def _take(self, found: Detected) -> None:
        if found.kind is OPENAI and self.kind is not None and not found.models:
            return  # it hardly answered: no reason to forget what it is
        if found.kind is not self.kind:
            self.kind, self.evidence = found.kind, found.evidence
            self._meter, self.load = Meter(), UNKNOWN
            log.info("worker %s is of kind %s: %s", self._id, found.kind.name, found.evidence)
        self._serves(found.models)

    def _serves(self, listed: frozenset[str]) -> None:
        """What an operator names is believed, and compared with what the worker lists."""
        if self._given_models:
            if missing := self._given_models - listed:
                log.warning(
                    "worker %s does not list %s; it lists %s", self._id, ", ".join(sorted(missing)), _names(listed)
                )
            listed = self._given_models
        if listed and listed != self._told:
            if self._told:
                log.warning("worker %s serves %s now, not %s", self._id, _names(listed), _names(self._told))
            self.models = self._told = listed
            self._watcher.serves(self._id, listed)

    # -- load ----------------------------------------------------------------------------------------------------------

    async def _scraping(self) -> None:
        turn, slower = 1, 1
        while True:
            await self._pause(self._intervals.load_s * slower)
            failures = self.scrape_failures
            await self._guarded(self._scrape(turn))
            slower = min(MAX_SLOWER, slower * 2) if self.scrape_failures > failures else 1
            turn += 1

    async def _scrape(self, turn: int) -> None:
        fresh = UNKNOWN
        for page in self.kind.pages if self.kind is not None else ():
            if turn % page.every == 0 and page.path not in self._absent:
                fresh = fresh.updated(await self._read(page))
        if self._gpu is not None and turn % GPU_EVERY == 0:
            fresh = fresh.updated(await self._read_gpu(*self._gpu))
        if fresh != UNKNOWN:
            self.load = self.load.updated(fresh)
            self._watcher.loaded(self._id, fresh)

    async def _read(self, page: Page) -> WorkerLoad:
        self.scrapes += 1
        asked_ns = self._clock()
        status, body = await self._get(page.path, self._intervals.load_timeout_s)
        if status in NOT_THERE:
            self._absent.add(page.path)
            return UNKNOWN
        sample = read_page(page, body) if status == 200 else None
        if sample is None:
            self.scrape_failures += 1
            return UNKNOWN
        # It was true some time between the question and the answer.
        restarts, at_ns = self._meter.restarts, (asked_ns + self._clock()) // 2
        load = WorkerLoad.at(at_ns, **self._meter.feed(sample, at_ns))
        if self._meter.restarts > restarts:
            log.info("worker %s has started again", self._id)
            await self._look(anew=True)
        return load

    async def _read_gpu(self, client: HttpClient, path: str) -> WorkerLoad:
        self.scrapes += 1
        at_ns = self._clock()
        try:
            head, body = await client.get(path, most_bytes=MAX_PAGE_BYTES, timeout_s=self._intervals.load_timeout_s)
        except HttpFault:
            self.scrape_failures += 1
            return UNKNOWN
        sample = read_metrics(body.decode("utf-8", "replace")) if head.status == 200 else None
        told = Meter().feed(sample, at_ns) if sample is not None else {}
        names = ("memory_headroom_ratio", "accelerator_used_ratio")
        return WorkerLoad.at(at_ns, **{name: told.get(name) for name in names})

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _get(self, path: str, timeout_s: float) -> tuple[int | HttpFault, bytes]:
        try:
            head, body = await self._client.get(self._target(path), most_bytes=MAX_PAGE_BYTES, timeout_s=timeout_s)
        except HttpFault as fault:
            return fault, b""
        return head.status, body

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._random.uniform(1 - BLUR_RATIO, 1 + BLUR_RATIO))

    async def _guarded(self, question: Coroutine[Any, Any, None]) -> None:
        """A defect, ours or a watcher's, must not end the watching."""
        try:
            await question
        except Exception:
            log.exception("worker %s: a look at it failed; it goes on being watched", self._id)


def _names(models: frozenset[str]) -> str:
    return ", ".join(sorted(models)) or "none"
