"""What a gateway's numbers say of a worker that fails, and comes back."""

from __future__ import annotations

from headway.core.fleet.breaker import FAILURES, Trust
from tests.gateway.fake import until
from tests.gateway.fleet.gateway import CHAT, HELLO, Fleet, over
from tests.gateway.fleet.upstream import upstreams


async def told(fleet: Fleet, *names: str) -> list[float]:
    async with fleet.session.get("/metrics") as response:
        lines = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[0] != "#")
    return [float(lines[name]) for name in names]


async def test_a_worker_on_trial_is_no_replica_until_a_request_went_well() -> None:
    """A dead one is on trial after each rest: counted, it would end its own outage again and again."""
    names = ("headway_replicas", 'headway_worker_up{worker="w0"}')
    async with upstreams(2) as made, over(made) as fleet:
        assert await told(fleet, *names) == [2, 1]
        worker, clock = fleet.front.fleet.workers["w0"], fleet.service.driver.clock
        for _ in range(FAILURES):
            fleet.front.fleet.health("w0", clock(), well=False)
        # Its health check succeeds, and nobody asks.
        await until(lambda: worker.breaker.trust(clock()) is Trust.HALF_OPEN)
        assert await told(fleet, *names) == [1, 0.5]
        await fleet.post("/admin/workers/w1/drain", {})
        assert await told(fleet, *names) == [0, 0.5]
        assert (await fleet.get("/ready"))[0] == 200  # whoever asks is let in, and finds out
        assert (await fleet.post(CHAT, HELLO))[0] == 200
        assert await told(fleet, *names) == [1, 1]
