"""From flags and tables to a gateway: the narrow parts that each is given, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.cli.config import ServeConfig
from headway.cli.fleet.tables import FleetTables, Where, WorkerTable, read_tables, worker_table
from headway.cli.fleet.tokenizers import TokenizerCounter
from headway.core.admission import AdmissionLimits
from headway.core.front import Front, FrontLimits
from headway.core.lanes import LaneLimits
from headway.core.tenants import Tenants
from headway.core.treatment import Degradation
from headway.engine.assembly import NO_LIMIT, default_slo, ns
from headway.engine.journal import Journal, decision_line
from headway.gateway import GatewayConfig
from headway.gateway.fleet import MAX_MODEL_LEN, FleetConfig, FleetDriver, FleetService, Hooks, Member, Roster
from headway.gateway.tenancy import Door, KeyRing
from headway.workers.remote import RemoteConfig, RemoteWorker


class Gateway:
    """A gateway that is not started: its parts, and what can be read again while it serves."""

    def __init__(self, config: ServeConfig, edge: GatewayConfig, tables: FleetTables, tables_file: Path | None) -> None:
        self._tables_file = tables_file
        self.tenants = Tenants(tables.default_limits, tables.limits)
        self.ring = KeyRing(Path(config.api_keys)) if config.api_keys is not None else None
        self._decisions = decisions = _journal(config)
        self.front = Front(
            admission_limits(config),
            FrontLimits(ns(config.engine.queue_timeout), ns(config.engine.age_bound), lanes(config)),
            tenants=self.tenants,
            degradation=Degradation(long_prompt_tokens=config.engine.long_prompt_tokens, overlong=config.overlong),
            remote=True,
            listener=(lambda decision: decisions.write(decision_line(decision))) if decisions else lambda _: None,
        )
        self.driver = FleetDriver(self.front, decisions=decisions)
        self.roster = Roster(self.driver)
        self.members = [member_of(worker) for worker in (*tables.workers, *flagged(config))]
        self.service = FleetService(
            self.front,
            FleetConfig(edge=edge, default_slo=default_slo(config.engine)),
            driver=self.driver,
            roster=self.roster,
            door=Door(self.ring, anonymous=config.allow_anonymous),
            counters={one.model: TokenizerCounter(Path(one.path)) for one in tables.tokenizers},
            hooks=Hooks(
                reload=self.reload if tables_file is not None or self.ring is not None else None,
                member=lambda table: member_of(worker_table(table)),
            ),
        )

    def reload(self) -> None:
        """Tenants' limits and API keys, all or nothing. Workers are added and removed by the admin API.

        Raises ConfigError, and then everything is as it was.
        """
        tables = read_tables(self._tables_file) if self._tables_file is not None else None
        if self.ring is not None:
            self.ring.reload()
        if tables is not None:
            self.tenants.set(tables.default_limits, tables.limits)

    async def start(self) -> None:
        """Returns when every worker has been looked at once, whether it is up or not."""
        self.driver.start()
        await asyncio.gather(*(self.roster.add(member) for member in self.members))

    async def close(self) -> None:
        """Who waits is told so, and then who is at a worker."""
        await self.driver.close()
        await self.roster.close()

    def close_log(self) -> None:
        """After everything that could still be decided."""
        if self._decisions is not None:
            self._decisions.close()


def admission_limits(config: ServeConfig) -> AdmissionLimits:
    engine = config.engine
    return AdmissionLimits(
        engine.max_model_len or MAX_MODEL_LEN,
        NO_LIMIT,
        engine.max_waiting,
        engine.max_waiting_tokens,
        max_running=config.max_running,
        kv_claim_ratio=config.kv_claim_ratio,
    )


def lanes(config: ServeConfig) -> tuple[LaneLimits, ...]:
    """As an engine's, but that a fleet's slots are its workers' windows: lanes are bounded where that was asked for."""
    engine = config.engine
    prompt_slots, output_slots = engine.long_prompt_slots or NO_LIMIT, engine.long_output_slots or NO_LIMIT
    prompt_tokens = engine.long_prompt_lane_tokens or NO_LIMIT
    output_tokens = engine.long_output_lane_tokens or NO_LIMIT
    both = min(prompt_slots, output_slots), min(prompt_tokens, output_tokens)
    return (
        LaneLimits("short"),
        LaneLimits("long-output", 0, engine.long_output_tokens, output_slots, output_tokens),
        LaneLimits("long-prompt", engine.long_prompt_tokens, 0, prompt_slots, prompt_tokens),
        LaneLimits("long-both", engine.long_prompt_tokens, engine.long_output_tokens, *both),
    )


def flagged(config: ServeConfig) -> list[WorkerTable]:
    """Those of `--worker URL`."""

    def flag(url: str) -> Where:
        return lambda key: f"--worker {url}: {key}"

    return [worker_table({"url": url}, flag(url)) for url in config.worker]


def member_of(table: WorkerTable) -> Member:
    spec = table.spec
    timeouts: Mapping[str, Any] = table.timeouts
    remote = RemoteConfig(
        id=spec.id,
        url=table.url,
        kind=table.kind,
        models=spec.models,
        api_key=table.api_key,
        priority=table.priority,
        verify_tls=table.verify_tls,
        ca_file=table.ca_file,
        gpu_metrics_url=table.gpu_metrics_url,
        **timeouts,
    )
    return Member(RemoteWorker(remote), spec, table.url)


def _journal(config: ServeConfig) -> Journal | None:
    path = config.engine.decision_log
    return None if path is None else Journal(path, "decision", {"body": "gateway"})
