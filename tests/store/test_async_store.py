from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from headway.store import (
    AsyncStore,
    BatchState,
    Corrupt,
    ItemResult,
    ItemState,
    Locked,
    NewItem,
    NotFound,
    Store,
    TooLarge,
)
from tests.store.places import START_S, open_store, temporary

NOW_S = START_S


@pytest.fixture
async def store(directory):
    opened = await AsyncStore.open(lambda: open_store(directory, max_file_bytes=100_000))
    yield opened
    await opened.close()


def create(store, name):
    return store.jobs.create(name, "alice", b"{}", kind="background", endpoint="/v1/completions", now_s=NOW_S)


async def upload(store, id, content):
    async with await store.receive(id) as incoming:
        for start in range(0, len(content), 1000):
            await incoming.write(content[start : start + 1000])
        received = await incoming.finish()
        return await store.run(lambda s: s.files.add(received, id, "alice", filename=id, purpose="batch", now_s=NOW_S))


async def test_calls_give_what_they_give_and_raise_what_they_raise(store):
    assert (await store.run(lambda s: create(s, "job_1"))).id == "job_1"
    with pytest.raises(NotFound):
        await store.run(lambda s: s.jobs.get("job_2", "alice"))


async def test_all_calls_run_on_one_thread_that_is_not_the_loops(store):
    threads = {await store.run(lambda s: threading.get_ident()) for _ in range(10)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_many_at_once_are_each_carried_out(store):
    def claim(owner, s):
        return s.jobs.claim_next(owner, NOW_S, lease_s=60)

    await asyncio.gather(*(store.run(partial(create, name=f"job_{n}")) for n in range(50)))
    claims = await asyncio.gather(*(store.run(partial(claim, f"w{n}")) for n in range(60)))
    assert sorted(claim.job.id for claim in claims if claim) == sorted(f"job_{n}" for n in range(50))


async def test_the_loop_goes_on_while_the_disk_is_slow(store):
    slow = asyncio.ensure_future(store.run(lambda s: time.sleep(0.3)))
    turns = 0
    while not slow.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 20


async def test_an_upload_does_not_hold_up_the_rows(store):
    held = threading.Event()
    async with await store.receive("f") as incoming:
        store._contents.submit(held.wait)  # a disk that hangs under an upload
        writing = asyncio.ensure_future(incoming.write(b"x"))
        await store.run(lambda s: create(s, "job_1"))
        assert not writing.done()
        held.set()
        await writing


async def test_a_file_goes_in_and_comes_out(store):
    content = bytes(range(256)) * 100
    stored = await upload(store, "f", content)
    assert stored.bytes == len(content)
    assert b"".join([chunk async for chunk in store.read("f", "alice", chunk_bytes=999)]) == content
    with pytest.raises(NotFound):
        async for _ in store.read("f", "bob"):
            pass


async def test_what_is_too_large_or_given_up_leaves_nothing(store, directory):
    with pytest.raises(TooLarge):
        await upload(store, "f", b"x" * 100_001)
    task = asyncio.ensure_future(upload(store, "g", b"x" * 100_000))
    await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.measure(directory / "store.db")  # the thread of the contents has done all before
    if not task.cancelled():
        await store.run(lambda s: s.files.delete("g", "alice", NOW_S))
    assert list((directory / "incoming").iterdir()) == []
    assert list((directory / "files").iterdir()) == []


async def test_an_upload_cancelled_before_it_began_leaves_nothing(store, directory):
    held = threading.Event()
    store._contents.submit(held.wait)
    queued = asyncio.ensure_future(store.receive("f"))
    running = asyncio.ensure_future(store.receive("g"))
    await asyncio.sleep(0.01)
    queued.cancel()
    held.set()
    await asyncio.gather(queued, return_exceptions=True)
    async with await running:
        pass
    await upload(store, "f", b"now")
    await store.measure(directory / "store.db")
    assert list((directory / "incoming").iterdir()) == []


async def test_a_receive_cancelled_while_it_runs_is_undone(store, directory, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    real = store._store.contents.receive

    def slowly(*arguments, **more):
        begun.set()
        assert go_on.wait(10)
        return real(*arguments, **more)

    monkeypatch.setattr(store._store.contents, "receive", slowly)
    task = asyncio.ensure_future(store.receive("f"))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    go_on.set()
    await store.measure(directory / "store.db")
    assert list((directory / "incoming").iterdir()) == []


async def test_a_reader_that_stops_early_is_no_trouble(store):
    await upload(store, "f", b"x" * 50_000)
    chunks = store.read("f", "alice", chunk_bytes=100)
    assert await anext(chunks) == b"x" * 100
    await chunks.aclose()
    assert (await store.run(lambda s: s.files.get("f", "alice"))).bytes == 50_000


async def test_a_damaged_file_is_told_before_the_first_chunk(store, directory):
    await upload(store, "f", b"content")
    (directory / "files" / "f").write_bytes(b"cont")
    with pytest.raises(Corrupt):
        await anext(store.read("f", "alice"))


async def test_items_come_in_pages_while_others_finish_them(store):
    def begin(s):
        s.batches.create("b", "alice", input_file_id="f", endpoint="/v1/completions", now_s=NOW_S)
        s.batches.move("b", BatchState.IN_PROGRESS, NOW_S)
        s.items.add("b", (NewItem(line, f"id-{line}", b"h") for line in range(1, 101)))

    def finish(line, s):
        s.items.record("b", [ItemResult(line=line, state=ItemState.COMPLETED)], NOW_S)

    await store.run(begin)
    seen = []
    async for item in store.items("b", state=ItemState.PENDING, page_items=7):
        seen.append(item.line)
        await store.run(partial(finish, item.line))
    assert seen == list(range(1, 101))


async def test_closing_waits_for_what_was_asked_before(directory):
    store = await AsyncStore.open(lambda: open_store(directory))
    calls = [asyncio.ensure_future(store.run(partial(create, name=f"job_{n}"))) for n in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*calls)
    with Store.read(directory) as reader:
        assert len(reader.jobs.list("alice", limit=100).items) == 20


async def test_an_opening_that_fails_says_why_and_leaves_no_thread(directory):
    before = set(threading.enumerate())
    with open_store(directory), pytest.raises(Locked):
        await AsyncStore.open(lambda: open_store(directory))
    give_up_s = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < give_up_s:
        await asyncio.sleep(0.01)
    assert not set(threading.enumerate()) - before


async def test_an_opening_that_is_cancelled_lets_the_store_go():
    with temporary() as directory:
        begun, go_on = threading.Event(), threading.Event()

        def opening():
            begun.set()
            assert go_on.wait(10)
            return open_store(directory)

        task = asyncio.ensure_future(AsyncStore.open(opening))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        go_on.set()
        give_up_s = time.monotonic() + 10
        while True:
            try:
                open_store(directory).close()
                break
            except Locked:
                assert time.monotonic() < give_up_s
                await asyncio.sleep(0.01)
