"""From a config and an executor's facts to a core: the narrow limits that each part is given, and nothing more."""

from __future__ import annotations

from dataclasses import replace

from headway.core.decisions import Listener, ignore
from headway.core.errors import ConfigError
from headway.core.front.admission import NS_PER_S, AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.spare import batch_lane
from headway.core.lanes import LaneLimits
from headway.core.pace import StepTime, StepTimeModel
from headway.core.request import Slo
from headway.core.scheduler.base import SchedulerBase
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.core.scheduler.scheduler import Scheduler
from headway.core.scheduler.static import StaticScheduler
from headway.engine.config import EngineConfig
from headway.executors.executor import ExecutorInfo

BYTES_PER_GIB = 1 << 30
NO_LIMIT = 1 << 60

# Before anything was measured: SmolLM2-135M in bf16 on two AVX-512 cores. The profile at start replaces it.
FIRST_GUESS = StepTime(9e6, 480e3, 680e3, 1e3, 280.0)


def step_time_model(info: ExecutorInfo) -> StepTimeModel:
    """An executor that states its step time is believed, but for what this process adds; any other is measured."""
    return StepTimeModel(info.step_time or FIRST_GUESS, stated=info.step_time is not None)


def default_slo(config: EngineConfig) -> Slo:
    """What a request is promised that does not say otherwise."""
    return Slo(ns(config.slo_ttft), ns(config.slo_itl), ns(config.ttft_limit))


def ns(seconds: float) -> int:
    return int(seconds * NS_PER_S)


def assemble(
    config: EngineConfig, info: ExecutorInfo, model: StepTimeModel, listener: Listener | None = None
) -> tuple[Front, SchedulerBase]:
    """The front and the scheduler of one engine. Raises `ConfigError` for limits that the executor cannot keep."""
    pool = KvPool(info.num_blocks, info.block_size, prefix_cache=config.prefix_cache_scope != "off")
    policy = POLICIES[config.policy]
    if not config.pace:
        policy = replace(policy, paced=False)
    front = Front(
        AdmissionLimits(
            max_model_len(config, info, pool), pool.capacity_tokens, config.max_waiting, config.max_waiting_tokens
        ),
        FrontLimits(ns(config.queue_timeout), ns(config.age_bound), lanes(config, config.max_num_seqs)),
        model=model,
        policy=policy,
        listener=listener,
    )
    heard = listener or ignore
    limits = SchedulerLimits(
        config.max_num_seqs, config.max_num_batched_tokens, info.chunk_multiple_tokens, config.kv_full
    )
    if config.batching == "static":
        return front, StaticScheduler(limits, pool, front.pull, model=model, listener=heard)
    return front, Scheduler(limits, pool, front.pull, model=model, policy=policy, listener=heard)


def lanes(config: EngineConfig, max_num_seqs: int) -> tuple[LaneLimits, ...]:
    """Four lanes, by input × output length, and one for what nobody waits for.

    What is not long keeps slots that the long ones cannot take.
    """
    prompt_slots = min(max_num_seqs, config.long_prompt_slots or max(1, max_num_seqs // 2))
    output_slots = min(max_num_seqs, config.long_output_slots or max(1, max_num_seqs * 3 // 4))
    prompt_tokens = config.long_prompt_lane_tokens or NO_LIMIT
    output_tokens = config.long_output_lane_tokens or NO_LIMIT
    long_prompt, long_output = config.long_prompt_tokens, config.long_output_tokens
    both = min(prompt_slots, output_slots), min(prompt_tokens, output_tokens)
    return (
        LaneLimits("short", slots=max_num_seqs),
        LaneLimits("long-output", 0, long_output, output_slots, output_tokens),
        LaneLimits("long-prompt", long_prompt, 0, prompt_slots, prompt_tokens),
        LaneLimits("long-both", long_prompt, long_output, *both),
        batch_lane(min(max_num_seqs, config.batch_slots or max_num_seqs // 2)),
    )


def max_model_len(config: EngineConfig, info: ExecutorInfo, pool: KvPool) -> int:
    """What the model and the KV cache both hold. Raises `ConfigError` when more was asked for."""
    asked = config.max_model_len or min(info.max_model_len, pool.capacity_tokens)
    if asked > info.max_model_len:
        raise ConfigError(
            f"max_model_len is {asked}; the model was trained for {info.max_model_len} positions.",
            param="max_model_len",
        )
    if asked > pool.capacity_tokens:
        raise ConfigError(
            f"max_model_len is {asked}; {config.kv_cache_gib:g} GiB of KV cache hold {pool.capacity_tokens} tokens. "
            f"Give at least {asked * info.kv_bytes_per_token / BYTES_PER_GIB:.2f} GiB, or lower max_model_len.",
            param="max_model_len",
        )
    return asked
