"""A gateway with a store, in this process and on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from headway.cli.address import bound_socket, url_of
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.spare import batch_lane
from headway.core.front.tenants import Tenants
from headway.core.front.treatment import Degradation
from headway.core.lanes import LaneLimits
from headway.gateway import listening
from headway.gateway.background.config import BackgroundConfig
from headway.gateway.background.fleet import attach, routes_for
from headway.gateway.background.service import Background
from headway.gateway.fleet import FleetConfig, FleetDriver, FleetService, Member, Roster, create_fleet_app
from headway.gateway.tenancy import Door, KeyRing
from tests.gateway.fleet.gateway import CHAT, Fleet, member


class Keeping(Fleet):
    """Speaks to a gateway that has a store."""

    background: Background

    async def kept(self, body: Any, **headers: str) -> str:
        """Send it to the background; its id."""
        status, told, got = await self.post(CHAT, {**body, "background": True}, **headers)
        assert status == 202, told
        assert got["location"] == told["url"] == f"/v1/background/{told['id']}"
        assert told["status"] == "queued"
        return str(told["id"])

    async def look(self, name: str, **headers: str) -> Any:
        async with self.session.get(f"/v1/background/{name}", headers=headers) as response:
            return await response.json()

    async def ended(self, name: str, timeout_s: float = 10.0, headers: Mapping[str, str] | None = None) -> Any:
        """What it shows once it has ended."""
        async with asyncio.timeout(timeout_s):
            while (told := await self.look(name, **(headers or {})))["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.02)
        return told


@asynccontextmanager
async def keeping(
    directory: Path,
    upstreams: Sequence[Any] = (),
    *,
    members: Sequence[Member] = (),
    tenants: Tenants | None = None,
    ring: KeyRing | None = None,
    limits: dict[str, Any] | None = None,
    degradation: Degradation | None = None,
    slots: int = 4,
    headers: dict[str, str] | None = None,
    **config: Any,
) -> AsyncIterator[Keeping]:
    admission = AdmissionLimits(**{"max_model_len": 1 << 20, "kv_capacity_tokens": 1 << 40, **(limits or {})})
    lanes = FrontLimits(lanes=(LaneLimits("all"), batch_lane(slots)))
    front = Front(admission, lanes, tenants=tenants, degradation=degradation, remote=True)
    driver = FleetDriver(front)
    roster = Roster(driver)
    service = FleetService(front, FleetConfig(), driver=driver, roster=roster, door=Door(ring))
    background = attach(service, BackgroundConfig(directory=directory, slots=slots, **{"keep_house_s": 0.1, **config}))
    await background.open()
    driver.start()
    for number, one in enumerate(upstreams):
        await roster.add(member(f"w{number}", one.url))
    for one in members:
        await roster.add(one)
    background.start()
    with bound_socket("127.0.0.1", 0) as sock:
        try:
            async with (
                listening(create_fleet_app(service, routes_for(background)), sock),
                aiohttp.ClientSession(base_url=url_of(sock), headers=headers) as session,
            ):
                fleet = Keeping(session, url_of(sock))
                fleet.watch(service)
                fleet.background = background
                yield fleet
        finally:
            await background.close()
            await driver.close()
            await roster.close()
