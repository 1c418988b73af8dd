"""A whole gateway in this process, on a real socket, in front of what a test gives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from headway.cli.address import bound_socket, url_of
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.tenants import Tenants
from headway.core.front.treatment import Degradation
from headway.core.request import Request
from headway.gateway import GatewayConfig, listening
from headway.gateway.fleet import (
    Counter,
    FleetConfig,
    FleetDriver,
    FleetService,
    Hooks,
    Member,
    Roster,
    create_fleet_app,
)
from headway.gateway.fleet.driver import Place
from headway.gateway.tenancy import Door, KeyRing
from headway.workers.remote import RemoteConfig, RemoteWorker
from headway.workers.watch import Intervals
from tests.gateway.fake import Client, until

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}


def member(name: str, url: str, spec: WorkerSpec | None = None, **config: Any) -> Member:
    settings = {"connect_s": 1.0, "first_byte_s": 1.0, "between_bytes_s": 0.6, **config}
    intervals = Intervals(load_s=0.1, health_s=0.2, load_timeout_s=0.5, health_timeout_s=0.5)
    remote = RemoteConfig(id=name, url=url, intervals=intervals, **settings)
    return Member(RemoteWorker(remote), spec or WorkerSpec(id=name), url)


class Fleet(Client):
    """Speaks to a gateway, and sees into it."""

    service: FleetService
    entered = 0  # requests that were let in

    def watch(self, service: FleetService) -> None:
        """Count who is let in, and see that each leaves once."""
        self.service = service
        enter = service.driver.enter

        def counted(request: Request) -> Place:
            place = enter(request)
            self.entered += 1
            return place

        service.driver.enter = counted  # type: ignore[method-assign] # a test listens

    @property
    def front(self) -> Front:
        return self.service.front

    @property
    def inside(self) -> dict[str, int]:
        """Everything that counts requests; all of it is zero when nobody is inside."""
        admission, fleet = self.front.admission, self.front.fleet
        return {
            "requests": admission.requests,
            "waiting": admission.waiting,
            "waiting_tokens": admission.waiting_tokens,
            "claimed_tokens": admission.claimed_tokens,
            "places": len(self.service.driver.places),
            "lanes": len(self.front.lanes),
            "flights": len(fleet.flights),
            "worker_flights": sum(len(worker.flights) for worker in fleet.workers.values()),
            "worker_tokens": sum(worker.tokens for worker in fleet.workers.values()),
            "worker_work": sum(worker.work_tokens for worker in fleet.workers.values()),
            "held": sum(admission.ledger.held(tenant) for tenant in ("", "alice", "bob", "anonymous")),
        }

    async def empty(self, timeout_s: float = 5.0) -> None:
        """Wait until nobody is inside, and see that nothing was left behind."""
        await until(lambda: not any(self.inside.values()), timeout_s)


@asynccontextmanager
async def gateway(
    *members: Member,
    tenants: Tenants | None = None,
    ring: KeyRing | None = None,
    anonymous: bool = False,
    limits: Mapping[str, Any] | None = None,
    front_limits: FrontLimits = FrontLimits(),
    degradation: Degradation | None = None,
    counters: Mapping[str, Counter] | None = None,
    config: FleetConfig = FleetConfig(),
    hooks: Hooks = Hooks(),
    edge: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Fleet]:
    admission = AdmissionLimits(**{"max_model_len": 1 << 20, "kv_capacity_tokens": 1 << 40, **(limits or {})})
    front = Front(admission, front_limits, tenants=tenants, degradation=degradation, remote=True)
    driver = FleetDriver(front)
    roster = Roster(driver)
    if edge is not None:
        config = FleetConfig(GatewayConfig(**edge), config.default_slo, config.recent_requests)
    door = Door(ring, anonymous=anonymous)
    service = FleetService(front, config, driver=driver, roster=roster, door=door, counters=counters, hooks=hooks)
    driver.start()
    for one in members:
        await roster.add(one)
    with bound_socket("127.0.0.1", 0) as sock:
        try:
            async with (
                listening(create_fleet_app(service), sock),
                aiohttp.ClientSession(base_url=url_of(sock), headers=headers) as session,
            ):
                fleet = Fleet(session, url_of(sock))
                fleet.watch(service)
                yield fleet
        finally:
            await driver.close()
            await roster.close()


@asynccontextmanager
async def over(upstreams: Sequence[Any], **settings: Any) -> AsyncIterator[Fleet]:
    """A gateway over `upstreams`, called w0, w1 and so on."""
    members = [member(f"w{number}", one.url) for number, one in enumerate(upstreams)]
    async with gateway(*members, **settings) as fleet:
        yield fleet
