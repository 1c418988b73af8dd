"""The end of a batch: what has no end gets one, the two files are put together, and the batch is moved to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.gateway.background.batch.lines import unanswered_line
from headway.gateway.background.batch.spool import BAD, GOOD, Spool
from headway.store import AsyncStore, Batch, BatchState, Item, ItemState, Store

PAGE = 1000
_WHY = {
    ItemState.EXPIRED: "This request could not be executed before the completion window expired.",
    ItemState.CANCELLED: "This request was not executed because the batch was cancelled.",
}


async def finish(
    store: AsyncStore, batch_id: str, spool: Spool, clock_s: Callable[[], float], *, keep_s: float = 0.0
) -> Batch:
    """For a batch that hands out nothing any more. Repeated after a kill, it comes to the same."""
    batch = await store.run(lambda rows: rows.batches.find(batch_id))
    if batch.state.final:
        return batch
    to = await _closed(store, batch, clock_s)
    output, errors = [await _file(store, batch, spool, which, clock_s, keep_s=keep_s) for which in (GOOD, BAD)]
    ended = await store.run(
        lambda rows: rows.batches.move(batch_id, to, clock_s(), output_file_id=output, error_file_id=errors)
    )
    await asyncio.to_thread(spool.remove)
    return ended


async def _closed(store: AsyncStore, batch: Batch, clock_s: Callable[[], float]) -> BatchState:
    """Every line has an end when this returns. Gives what the batch is to become."""
    late = clock_s() >= batch.expires_at_s
    if batch.state is BatchState.CANCELLING:
        await _close(store, batch.id, ItemState.CANCELLED, clock_s)
        return BatchState.CANCELLED
    if batch.state is BatchState.FINALIZING:
        return BatchState.COMPLETED
    if batch.missing or batch.state is BatchState.VALIDATING:
        assert late, "a batch in progress hands out its lines until its window is over"
        await _close(store, batch.id, ItemState.EXPIRED, clock_s)
        return BatchState.EXPIRED
    counts = await store.run(lambda rows: rows.items.counts(batch.id))
    if counts.get(ItemState.EXPIRED):  # it was closed, and the server killed before it was moved
        return BatchState.EXPIRED
    moved = await store.run(lambda rows: _finalizing(rows, batch.id, clock_s()))
    if moved is BatchState.CANCELLING:
        return BatchState.CANCELLED
    return BatchState.COMPLETED


def _finalizing(store: Store, batch_id: str, now_s: float) -> BatchState:
    with store.transaction():
        batch = store.batches.find(batch_id)
        if batch.state is BatchState.IN_PROGRESS:  # else it was cancelled a moment ago
            batch = store.batches.move(batch_id, BatchState.FINALIZING, now_s)
        return batch.state


async def _close(store: AsyncStore, batch_id: str, state: ItemState, clock_s: Callable[[], float]) -> None:
    while await store.run(lambda rows: rows.items.close(batch_id, state, clock_s())):
        pass


async def _file(
    store: AsyncStore, batch: Batch, spool: Spool, which: str, clock_s: Callable[[], float], *, keep_s: float
) -> str | None:
    """Put one file together and store it, under a name that follows from the batch's. None when nothing is in it."""
    target, first = spool.target(which), True
    page: list[str | bytes] = []
    async for item in store.items(batch.id, page_items=PAGE):
        place = _place(batch.id, item, which)
        if place is not None:
            page.append(place)
        if len(page) >= PAGE:
            await asyncio.to_thread(spool.copy, which, page, target, first=first)
            page, first = [], False
    if page:
        await asyncio.to_thread(spool.copy, which, page, target, first=first)
    elif first:
        return None
    name = f"file-{batch.id.removeprefix('batch_')}-{which}"
    received = await store.measure(target)
    now_s = clock_s()
    stored = await store.run(
        lambda rows: rows.files.add(
            received,
            name,
            batch.tenant,
            filename=f"{batch.id}_{'output' if which == GOOD else 'error'}.jsonl",
            purpose="batch_output",
            now_s=now_s,
            expires_at_s=now_s + keep_s if keep_s else None,
        )
    )
    return stored.id


def _place(batch_id: str, item: Item, which: str) -> str | bytes | None:
    """Where its line is in the spool, or the line itself; None when it is not in this file."""
    if (item.state is ItemState.COMPLETED) != (which == GOOD):
        return None
    if item.state in _WHY:
        return unanswered_line(f"{batch_id}-{item.line}", item.custom_id, item.state.value, _WHY[item.state])
    return item.response_ref
