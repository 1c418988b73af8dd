"""When a run is ended early because nothing succeeds any more, and when it is not."""

from __future__ import annotations

import asyncio

from headway.loadtest.client.limits import Limits
from headway.loadtest.record import Fate
from headway.loadtest.runner.run import run
from tests.loadtest.servers import Turn, error, plan_for, serving, talks, whole


async def test_a_server_whose_answers_take_long_is_not_given_up_for_some_refusals() -> None:
    """Neither while it is at its first answer, nor between two later on."""

    async def script(turn: Turn) -> None:
        if turn.number not in {0, 9}:
            turn.write(whole(error("too many at a time"), status=400))
            return
        await asyncio.sleep(1.0)
        await talks(turn)

    async with serving(script) as server:
        plan = plan_for(server.url, requests=18, concurrency=2, limits=Limits(give_up_s=0.4))
        measured = await run(plan)
    assert measured.ended_early == ""
    assert [record.index for record in measured.records if record.ok] == [0, 9]
    assert len(measured.records) == 18


async def test_refused_when_the_server_died() -> None:
    async with serving(talks) as server:
        plan = plan_for(server.url, requests=40, limits=Limits(give_up_s=0.3))

        async def later() -> None:
            while len(server.asked) < 5:
                await asyncio.sleep(0.001)
            await server.die()

        killer = asyncio.create_task(later())
        measured = await run(plan)
        await killer
    fates = [record.fate for record in measured.records]
    assert fates[:4] == [Fate.OK] * 4
    assert fates[-1] is Fate.CONNECTION
    assert measured.records[-1].error == "connection refused"
    assert len(fates) < 40
    assert "nothing succeeded for 0.3 s" in measured.ended_early
    assert "connection refused" in measured.ended_early
    assert not measured.interrupted
