"""`Roster`: the workers there are, by id: added at the start or by an operator, watched, drained, removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.errors import ConfigError, NotFound
from headway.core.fleet.worker import WorkerLoad, WorkerSpec
from headway.gateway.fleet.driver import FleetDriver
from headway.workers.worker import Worker

log = logging.getLogger("headway.gateway")

LOOK_EVERY_S = 0.1
# So long may what runs on a removed worker go on, before its connections are closed.
REMOVAL_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Member:
    """A worker, and what its operator says of it. Where no models were named, they are those that it lists."""

    worker: Worker
    spec: WorkerSpec
    url: str = ""  # empty: as the worker says, which may move

    @property
    def models(self) -> frozenset[str]:
        return self.spec.models or self.worker.models


class Roster:
    """Meets `workers.Watcher`: what is found out about a worker goes on to the driver, in the core's words."""

    def __init__(self, driver: FleetDriver) -> None:
        self._driver = driver
        self._members: dict[str, Member] = {}
        self._reasons: dict[str, str] = {}  # why a worker is not well
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members

    def worker(self, worker_id: str) -> Worker:
        """Of a dispatch. One that was removed since then is not found."""
        member = self._members.get(worker_id)
        if member is None:
            raise NotFound(f"There is no worker {worker_id!r}.")
        return member.worker

    def reason(self, worker_id: str) -> str:
        """Why a worker is not well; empty when it is, or when nothing is known."""
        return self._reasons.get(worker_id, "")

    def models(self) -> list[str]:
        """Every model that somebody serves, in order of the workers."""
        found: dict[str, None] = {}
        for member in self._members.values():
            found.update(dict.fromkeys(sorted(member.models)))
        return list(found)

    async def add(self, member: Member) -> None:
        """Begin to watch it, and to send it requests. Raises ConfigError when its id is taken."""
        worker_id = member.spec.id
        if worker_id in self._members:
            raise ConfigError(f"There is a worker {worker_id!r} already.", param="worker")
        self._members[worker_id] = member
        self._driver.add_worker(member.spec)
        await member.worker.start(self)

    async def remove(self, worker_id: str) -> None:
        """Send it nothing more; what runs there may end. Raises NotFound."""
        member = self._members.get(worker_id)
        if member is None:
            raise NotFound(f"There is no worker {worker_id!r}.")
        state = self._driver.front.fleet.workers[worker_id]
        self._driver.remove_worker(worker_id)
        del self._members[worker_id]
        self._reasons.pop(worker_id, None)

        async def leave() -> None:
            try:
                async with asyncio.timeout(REMOVAL_TIMEOUT_S):
                    while state.flights:  # noqa: ASYNC110 - the core's, which tells nobody
                        await asyncio.sleep(LOOK_EVERY_S)
            except TimeoutError:
                log.warning("worker %s is removed with %d requests still running", worker_id, len(state.flights))
            finally:
                await member.worker.close()

        task = asyncio.get_running_loop().create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def drain(self, worker_id: str, *, draining: bool) -> None:
        """Send it nothing new, or let it have requests again. Raises NotFound."""
        self._driver.drain_worker(worker_id, draining=draining)

    async def close(self) -> None:
        for task in self._leaving:
            task.cancel()
        closing = [member.worker.close() for member in self._members.values()]
        await asyncio.gather(*self._leaving, *closing, return_exceptions=True)

    # -- workers.Watcher -------------------------------------------------------------------------------------------

    def loaded(self, worker_id: str, load: WorkerLoad) -> None:
        self._driver.loaded(worker_id, load)

    def checked(self, worker_id: str, *, well: bool, reason: str) -> None:
        if worker_id not in self._members:
            return
        self._reasons[worker_id] = "" if well else reason or "its health check failed"
        self._driver.checked(worker_id, well=well)

    def serves(self, worker_id: str, models: frozenset[str]) -> None:
        member = self._members.get(worker_id)
        if member is not None and not member.spec.models:  # what its operator named is not for it to change
            self._driver.serves(worker_id, models)
