"""Our own engine on virtual time, as its configuration says: lanes, limits, promises and policy."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from headway.core.errors import ConfigError
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.engine.assembly import lanes, ns
from headway.engine.config import EngineConfig, engine_config
from headway.simulate import VirtualSettings
from headway.simulate.fit import StepFit
from headway.tune import Settings, Target, other_server
from headway.tune.predict import Build


def build_of(target: Target) -> Build:
    """How this server is simulated. Raises `ConfigError` for one that batches statically."""
    if target.kind != "headway" or not target.config:
        return other_server
    known = {field.name for field in fields(EngineConfig)}
    config = engine_config(**{name: value for name, value in target.config.items() if name in known})
    if config.batching == "static":
        raise ConfigError("This server batches statically, and has no token budget to tune.", param="batching")

    def build(fit: StepFit, settings: Settings) -> VirtualSettings:
        return virtual(config, fit, settings)

    return build


def virtual(config: EngineConfig, fit: StepFit, settings: Settings) -> VirtualSettings:
    """As `engine.assembly` puts an engine together. Raises `ConfigError` for settings that it would not take."""
    changes: dict[str, Any] = {**settings.fields}
    config = replace(config, **changes)
    policy = POLICIES[config.policy]
    worker = replace(
        fit.worker(),
        limits=SchedulerLimits(
            config.max_num_seqs, config.max_num_batched_tokens, fit.server.chunk_multiple_tokens, config.kv_full
        ),
        policy=policy if config.pace else replace(policy, paced=False),
    )
    longest = min(config.max_model_len or worker.capacity_tokens, worker.capacity_tokens)
    return VirtualSettings(
        workers=(worker,),
        front=FrontLimits(ns(config.queue_timeout), ns(config.age_bound), lanes(config, config.max_num_seqs)),
        admission=AdmissionLimits(longest, worker.capacity_tokens, config.max_waiting, config.max_waiting_tokens),
    )
