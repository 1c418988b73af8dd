"""From what was said to the narrow parts that a gateway's components are given; at the start, and at each reload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.cli.config import ServeConfig
from headway.cli.fleet.tables import TokenizerTable, Where, WorkerTable, worker_table
from headway.cli.fleet.tokenizers import TokenizerCounter
from headway.cli.keeping import batch_slots
from headway.cli.layers import Effective
from headway.core.errors import ConfigError
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.core.front.replicas import ReplicaLimits
from headway.core.front.spare import batch_lane
from headway.core.front.treatment import Degradation
from headway.core.lanes import LaneLimits
from headway.engine.assembly import NO_LIMIT, ns
from headway.gateway.fleet import MAX_MODEL_LEN, Counter, Member
from headway.workers.remote import RemoteConfig, RemoteWorker


@dataclass(frozen=True, slots=True)
class Limits:
    """What a front decides by."""

    admission: AdmissionLimits
    front: FrontLimits
    degradation: Degradation


def limits_of(config: ServeConfig) -> Limits:
    engine = config.engine
    admission = AdmissionLimits(
        engine.max_model_len or MAX_MODEL_LEN,
        NO_LIMIT,
        engine.max_waiting,
        engine.max_waiting_tokens,
        max_running=config.max_running,
        kv_claim_ratio=config.kv_claim_ratio,
    )
    replicas = ReplicaLimits(config.min_replicas, config.max_replicas)
    degradation = Degradation(
        clamp_output_tokens=config.clamp_output_tokens,
        long_prompt_tokens=engine.long_prompt_tokens,
        short_context_ratio=config.short_context_ratio,
        overlong=config.overlong,
        online_prompt_tokens=config.overlong_tokens,
    )
    return Limits(
        admission, FrontLimits(ns(engine.queue_timeout), ns(engine.age_bound), lanes(config), replicas), degradation
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
        batch_lane(batch_slots(config, gateway=True)),
    )


def worker_tables(effective: Effective) -> dict[str, WorkerTable]:
    """By id, those of the file and those of `--worker URL`. Raises ConfigError where two have one id."""
    found = {table.spec.id: table for table in effective.tables.workers}
    for url in effective.config.worker:
        table = worker_table({"url": url}, _flagged(url))
        if table.spec.id in found:
            raise ConfigError(f"--worker {url}: there is a worker {table.spec.id!r} already.", param="worker")
        found[table.spec.id] = table
    return found


def _flagged(url: str) -> Where:
    return lambda key: f"--worker {url}: {key}"


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


def counters_of(tables: tuple[TokenizerTable, ...]) -> dict[str, Counter]:
    """By model. Raises ConfigError."""
    return {one.model: TokenizerCounter(Path(one.path)) for one in tables}
