"""What a server says after its finish reason: heard while it comes, and not waited for without end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from headway.loadtest.client.reading import NOT_DONE
from headway.loadtest.record import Fate
from tests.loadtest.servers import DONE, END, QUICK, Turn, head, piece, record_of, records_of, said


async def test_who_speaks_on_after_the_finish_reason_is_heard() -> None:
    """Each word comes within the linger of the one before, and the last long after that of the first finish reason."""

    async def script(turn: Turn) -> None:
        turn.write(head(), piece(said("a", finish="stop")))
        for word in ("b", "c", "d"):
            await turn.writer.drain()
            await asyncio.sleep(0.2)
            turn.write(piece(said(word)))

    record = await record_of(script, limits=replace(QUICK, linger_s=0.4), count_tokens=len)
    assert (record.fate, record.error, record.chunks, record.recounted_tokens) == (Fate.OK, NOT_DONE, 4, 4)
    assert record.last_ns - record.first_ns >= 0.55e9
    assert sum(record.gaps_ns) == record.last_ns - record.first_ns
    assert record.ended_ns >= record.last_ns


async def test_a_ping_is_no_word() -> None:
    """Whoever has finished and keeps the line open with comments is not waited for."""

    async def script(turn: Turn) -> None:
        turn.write(head(), piece(said("a", finish="stop")))
        for _ in range(40):
            await turn.writer.drain()
            await asyncio.sleep(0.05)
            turn.write(piece(b": ping\n\n"))

    record = await record_of(script, limits=replace(QUICK, linger_s=0.3, timeout_s=1.5))
    assert (record.fate, record.error) == (Fate.OK, NOT_DONE)


async def test_a_server_that_says_done_is_waited_for_longer() -> None:
    """Its [DONE] is known from the first answer; in the second, more comes after a pause of three lingers."""

    async def script(turn: Turn) -> None:
        turn.write(head(), piece(said("a", finish="stop")))
        if turn.number:
            await turn.writer.drain()
            await asyncio.sleep(0.6)
            turn.write(piece(said("b")))
        turn.write(piece(DONE), END)

    first, second = await records_of(script, requests=2, limits=replace(QUICK, linger_s=0.2))
    assert (first.fate, first.error, first.chunks) == (Fate.OK, "", 1)
    assert (second.fate, second.error, second.chunks) == (Fate.OK, "", 2)
