"""`Gateway`: the parts of a gateway put together from flags and tables, and changed together by a reload."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import Any

from headway.cli.config import ServeConfig, ladder_modes
from headway.cli.fleet.local import local_members
from headway.cli.fleet.parts import Limits, counters_of, limits_of, member_of, worker_tables
from headway.cli.fleet.quotas import shared_quotas
from headway.cli.fleet.reload import Change, change
from headway.cli.fleet.scale import Hook, ScaleHook
from headway.cli.fleet.tables import worker_table
from headway.cli.layers import Effective, Layers
from headway.core.decisions import Decision
from headway.core.errors import ConfigError, HeadwayError
from headway.core.front.front import Front
from headway.core.front.tenants import Tenants
from headway.engine.assembly import default_slo
from headway.engine.journal import Journal, decision_line
from headway.gateway import GatewayConfig
from headway.gateway.fleet import FleetConfig, FleetDriver, FleetService, Hooks, Roster
from headway.gateway.fleet.shadow import Shadow, ShadowingDriver, Would, open_front
from headway.gateway.fleet.stimuli import ToldLedger, header
from headway.gateway.tenancy import Door, KeyRing
from headway.workers.local import LocalWorker


class Gateway:
    """A gateway that is not started: its parts, and what can be read again while it serves."""

    def __init__(self, layers: Layers, effective: Effective, edge: GatewayConfig) -> None:
        self._layers = layers
        self.effective = effective
        self._changing = asyncio.Lock()
        config, tables = effective.config, effective.tables
        limits = limits_of(config)
        self.tenants = Tenants(tables.default_limits, tables.limits)
        self.ring = KeyRing(Path(config.api_keys)) if config.api_keys is not None else None
        self._decisions = _journal(config, limits, self.tenants)
        deciding, would = _deciding_front(config, limits, self.tenants, self._decisions)
        self.quotas = shared_quotas(config, deciding)
        self.front = open_front(limits.front) if would is not None else deciding
        self.scale = ScaleHook(deciding, lambda: _hook(self.effective.config))
        self.driver = _driver(
            self.front, deciding, would, self._decisions, chores=[self.scale.look], quotas=self.quotas
        )
        self.roster = Roster(self.driver)
        remote = [member_of(table) for table in worker_tables(effective).values()]
        self.members = [*remote, *local_members(effective)]
        if len({member.spec.id for member in self.members}) < len(self.members):
            raise ConfigError("A [[worker]] has the id of a local one, local-0 or so; give it another.", param="id")
        self.service = FleetService(
            self.front,
            FleetConfig(edge=edge, default_slo=default_slo(config.engine)),
            driver=self.driver,
            roster=self.roster,
            door=Door(self.ring, anonymous=config.allow_anonymous),
            counters=counters_of(tables.tokenizers),
            hooks=Hooks(
                reload=self.reload if layers.path is not None or self.ring is not None else None,
                member=lambda table: member_of(worker_table(table)),
            ),
        )

    async def start(self) -> None:
        """Returns when every worker has been looked at once, whether it is up or not.

        Raises HeadwayError when none but local ones were asked for, and none of them came up.
        """
        async with self._changing:
            if self.quotas is not None:
                await self.quotas.start()
            self.driver.start()
            self.driver.set_levels(ladder_modes(self.effective.config.ladder))
            await asyncio.gather(*(self.roster.add(member) for member in self.members))
        locals_ = [member.worker for member in self.members if isinstance(member.worker, LocalWorker)]
        if locals_ and len(locals_) == len(self.members) and all(worker.down for worker in locals_):
            raise HeadwayError(f"No engine came up. {locals_[0].id}: {locals_[0].down}")

    async def reload(self) -> dict[str, Any]:
        """Read the file and the API keys again: all of it holds when this returns, but for what needs a restart.

        Raises ConfigError, and then everything is as it was.
        """
        async with self._changing:
            asked = await asyncio.to_thread(self._layers.read)
            new = await asyncio.to_thread(change, self.effective, asked)
            for member in new.added:
                if member.spec.id in self.roster.members and member.spec.id not in new.removed:
                    raise ConfigError(f"There is a worker {member.spec.id!r} already, added while serving.", param="id")
            if self.ring is not None:
                self.ring.reload()
            self._take(new)  # from here on nothing can fail, and nobody sees half of it
            gone = [name for name in new.removed if name in self.roster.members]  # else an operator removed it
            await asyncio.gather(*(self.roster.remove(name) for name in gone))
            await asyncio.gather(*(self.roster.add(member) for member in new.added))
            return {"changed": new.changed, "needs_restart": new.restart}

    def _take(self, new: Change) -> None:
        before, self.effective = self.effective, new.effective
        config, tables = new.effective.config, new.effective.tables
        self.driver.set_tenants(tables.default_limits, tables.limits)
        limits = limits_of(config)
        self.driver.reconfigure(limits.admission, limits.front, limits.degradation)
        self.service.fleet_config = replace(self.service.fleet_config, default_slo=default_slo(config.engine))
        if config.ladder != before.config.ladder:  # else what an operator has pinned since stays pinned
            self.driver.set_levels(ladder_modes(config.ladder))
        if new.counters is not None:
            self.service.counting.know(new.counters)
        logging.getLogger().setLevel(config.log_level.upper())

    async def close(self) -> None:
        """Who waits is told so, and then who is at a worker."""
        await self.driver.close()
        await self.scale.close()
        await self.roster.close()
        if self.quotas is not None:
            await self.quotas.close()

    def close_log(self) -> None:
        """After everything that could still be decided."""
        if self._decisions is not None:
            self._decisions.close()


def _hook(config: ServeConfig) -> Hook | None:
    if config.scale_hook is None or config.shadow:
        return None
    return Hook(config.scale_hook, config.scale_hook_timeout)


def _deciding_front(
    config: ServeConfig, limits: Limits, tenants: Tenants, decisions: Journal | None
) -> tuple[Front, Would | None]:
    """The front that has the limits; and, where none of them is to be enforced, what it would have done."""
    would = Would() if config.shadow else None

    def hear(decision: Decision) -> None:
        if would is not None:
            would.hear(decision)
        if decisions is not None:
            line = decision_line(decision)
            decisions.write({**line, "shadow": True} if would is not None else line)

    front = Front(
        limits.admission,
        limits.front,
        tenants=tenants,
        ledger=ToldLedger(tenants, decisions, monotonic_ns),
        degradation=limits.degradation,
        remote=True,
        listener=hear if decisions is not None or would is not None else None,
    )
    return front, would


def _driver(front: Front, deciding: Front, would: Would | None, decisions: Journal | None, **more: Any) -> FleetDriver:
    if would is None:
        return FleetDriver(front, decisions=decisions, **more)
    return ShadowingDriver(front, Shadow.of(deciding, would, decisions))


def _journal(config: ServeConfig, limits: Limits, tenants: Tenants) -> Journal | None:
    path = config.engine.decision_log
    if path is None:
        return None
    told = header(limits.admission, limits.front, limits.degradation, tenants, shadow=config.shadow)
    return Journal(path, "decision", told)
