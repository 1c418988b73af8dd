"""`BatchSource`: all batches that have not ended, as a source of work; and what clients do to them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from headway.core.errors import Refused
from headway.gateway.background.batch.item import ItemWork
from headway.gateway.background.batch.run import BatchRun
from headway.gateway.background.batch.spool import Spool, sweep
from headway.gateway.background.config import BackgroundConfig
from headway.store import AsyncStore, BadValue, Batch, BatchState, Store

log = logging.getLogger("headway.background")

AFTER_DEFECT_S = 30.0
TURNS = 2  # of one owner's batches that hand out lines at a time


class TooManyBatches(Refused):
    """A tenant has so many batches that have not ended that it gets no more."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_batches"


class BatchSource:
    """`wake` tells the runner of new work, `stop` what not to compute any more."""

    def __init__(
        self,
        store: AsyncStore,
        config: BackgroundConfig,
        clock_s: Callable[[], float],
        *,
        wake: Callable[[], None],
        stop: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self.clock_s = clock_s
        self._wake = wake
        self._stop = stop
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}
        self.ended: dict[str, int] = {}  # by how, since the start

    @property
    def unfinished(self) -> int:
        return len(self._runs)

    async def resume(self) -> None:
        """Go on with all that had not ended. Raises `StoreError`."""
        unfinished = await self._store.run(lambda store: store.batches.unfinished())
        folder = self._config.directory.absolute() / "spool"
        await asyncio.to_thread(sweep, folder, [batch.id for batch in unfinished])
        for batch in unfinished:
            self._begin(batch)

    async def close(self) -> None:
        """After the runner. What goes on goes on after the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for run in list(self._runs.values()):
            await run.flush()

    # -- as the runner sees them -----------------------------------------------------------------------------------

    async def owners(self) -> Sequence[str]:
        if self._config.batch_hours.opens_in_s(*time.localtime(self.clock_s())[3:6]):
            return []
        return list(dict.fromkeys(run.owner for run in self._runs.values() if run.has_work))

    async def take(self, owner: str) -> ItemWork | None:
        """Of its oldest batch that has a line to hand out."""
        return next((run.take() for run in self._runs.values() if run.owner == owner and run.has_work), None)

    # -- as clients do ---------------------------------------------------------------------------------------------

    async def create(
        self,
        owner: str,
        *,
        input_file_id: str,
        endpoint: str,
        completion_window: str,
        metadata: Mapping[str, str] | None,
    ) -> Batch:
        """Raises `NotFound` for the file, `BadValue`, `TooManyBatches`."""
        name = f"batch_{secrets.token_hex(16)}"

        def create(store: Store) -> Batch:
            with store.transaction():
                file = store.files.get(input_file_id, owner)
                if file.purpose != "batch":
                    raise BadValue(
                        f"The file {file.id} has the purpose {file.purpose!r}; the input of a batch has the purpose "
                        "'batch'.",
                        param="input_file_id",
                    )
                self._check_number(store, owner)
                return store.batches.create(
                    name,
                    owner,
                    input_file_id=input_file_id,
                    endpoint=endpoint,
                    now_s=self.clock_s(),
                    completion_window=completion_window,
                    metadata=metadata,
                )

        batch = await self._store.run(create)
        self._begin(batch)
        return batch

    def _check_number(self, store: Store, owner: str) -> None:
        own = sum(batch.tenant == owner for batch in store.batches.unfinished())
        if own >= self._config.max_batches:
            raise TooManyBatches(
                f"{own} batches have not ended, and no more are taken before one has. Come back later.",
                retry_after_s=60.0,
            )

    async def cancel(self, name: str, owner: str) -> Batch:
        """It stops at once, and is cancelled when its files are written. Raises `NotFound`, and `Conflict` too late."""
        batch = await self._store.run(lambda store: store.batches.cancel(name, owner, self.clock_s()))
        if (run := self._runs.get(name)) is not None:
            run.cancel()
        return batch

    # -- their lives -----------------------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> None:
        turn = self._turns.setdefault(batch.tenant, asyncio.Semaphore(TURNS))
        run = BatchRun(
            self._store,
            batch,
            Spool(self._config.directory.absolute() / "spool", batch.id),
            clock_s=self.clock_s,
            keep_s=self._config.batch_retention_s,
            turn=turn,
            wake=self._wake,
            stop=self._stop,
        )
        if batch.state is BatchState.CANCELLING:
            run.cancel()
        self._runs[batch.id] = run
        self._tasks[batch.id] = asyncio.create_task(self._lived(run))

    async def _lived(self, run: BatchRun) -> None:
        while True:
            try:
                batch = await run.run()
                break
            except Exception:
                log.exception("a defect in the batch %s; it is tried again", run.id)
                await asyncio.sleep(AFTER_DEFECT_S)
        self.ended[batch.state.value] = self.ended.get(batch.state.value, 0) + 1
        del self._runs[run.id], self._tasks[run.id]
