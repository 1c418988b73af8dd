"""What is simulated: a fit, the service's settings over those of the measured server, and that in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.cli.config import ServeConfig, ladder_modes, serve_config
from headway.cli.config_file import config_in
from headway.cli.fleet.parts import limits_of
from headway.cli.fleet.tables import FleetTables, tables_in
from headway.cli.kv import read_shape
from headway.cli.layers import KEYS
from headway.cli.simulate.flags import SERVICE_KEYS, WorldOptions
from headway.cli.toml_file import read_document
from headway.core.errors import ConfigError
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.core.scheduler.static import BatchLimits
from headway.engine.assembly import BYTES_PER_GIB, NO_LIMIT, lanes, ns
from headway.simulate import VirtualFleet, VirtualSettings, VirtualWorker
from headway.simulate.fit import Belief, StepFit, fit, load_fit
from headway.simulate.fit.model import PLENTY_TOKENS
from headway.simulate.sizing import (
    Hardware,
    MemorySettings,
    ModelShape,
    StepRange,
    engine_named,
    hardware_named,
    kv_cost,
    kv_dtype,
    plan_memory,
)

BLOCK_TOKENS = 16
_MEASURED = ("policy", "max_num_seqs", "max_num_batched_tokens")
_LANES = frozenset(key.field for key in SERVICE_KEYS if key.setting.group == "Lanes")


@dataclass(frozen=True, slots=True)
class Service:
    """What the simulator is told, and what a report says of it. `max_model_len` None: nobody knows of a limit."""

    fit: StepFit
    settings: VirtualSettings
    config: ServeConfig
    max_model_len: int | None
    flags: Mapping[str, str]  # as a report tells a server's
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """All that was said. `said` tells which of it, by flag or file, by field."""

    world: WorldOptions
    config: ServeConfig
    tables: FleetTables
    said: Mapping[str, Any]


def service_of(world: WorldOptions, said: Mapping[str, Any], path: Path | None) -> Service:
    """`said`: flags of the service that were given, by field. `path`: of a configuration file.

    Raises ConfigError: no fit and no device, an unknown one, a model too large for it, or limits that contradict.
    """
    shape = read_shape(world.model) if world.model is not None else None
    hardware = _hardware(world)
    filed, tables = _filed(path)
    said = {**filed, **{name: value for name, value in said.items() if value is not None}}
    found = _fit(world, shape, hardware, said)
    config = serve_config({**_measured(found, said), **said})
    asked = _Asked(world, config, tables, said)
    room = _room(asked, shape, hardware, found)
    known_len = config.engine.max_model_len or (shape.context_tokens if shape is not None else None)
    longest = min(known_len or NO_LIMIT, room.num_blocks * room.block_size)
    worker = _worker(config, found, room)
    settings = _settings(asked, worker, longest)
    notes = [*found.notes, *room.notes]
    if not world.workers and tables.limits:
        notes.append("tenants' limits are kept by a gateway: give --workers for them to hold")
    if found.server.plans_ahead:
        notes.append("the measured server plans a step ahead; here what has ended gives its KV back a step sooner")
    return Service(found, settings, config, known_len, _flags(world, config, worker, room), tuple(notes))


def _filed(path: Path | None) -> tuple[dict[str, Any], FleetTables]:
    """What the file says of a service, by field; the rest of it is not about one that is simulated."""
    if path is None:
        return {}, FleetTables()
    document = read_document(path)
    by_name = {key.name: key for key in KEYS.values()}
    wanted = {key.field for key in SERVICE_KEYS}
    values = {}
    for name, value in config_in(document, list(KEYS.values())).items():
        key = by_name[name]
        if key.field in wanted:
            values[key.field] = key.typed(value)
    tenants = {name: value for name, value in document.keys.items() if name == "tenant"}
    return values, tables_in(replace(document, keys=tenants))


def _hardware(world: WorldOptions) -> Hardware | None:
    return hardware_named(world.gpu, memory_gib=world.memory_gib) if world.gpu is not None else None


def _fit(world: WorldOptions, shape: ModelShape | None, hardware: Hardware | None, said: Mapping[str, Any]) -> StepFit:
    if world.fit is not None:
        return load_fit(Path(world.fit).expanduser())
    if shape is None or hardware is None:
        missing = "--gpu, such as --gpu H100" if shape is not None else "--model, such as its config.json"
        if shape is None and hardware is None:
            missing = "--fit FILE, which `headway fit` writes; or --model with --gpu, for a model on a device"
        raise ConfigError(f"How long do steps take? Give {missing}.", param="fit")
    usual = StepRange()
    valid = StepRange(
        said.get("max_num_batched_tokens", usual.max_num_batched_tokens), said.get("max_num_seqs", usual.max_num_seqs)
    )
    belief = Belief.of(
        shape,
        hardware,
        tensor_parallel=world.tensor_parallel_size,
        kv_cache_dtype=world.kv_cache_dtype,
        valid=valid,
    )
    return fit([], [], belief, given={name: said[name] for name in _MEASURED if name in said})


def _measured(found: StepFit, said: Mapping[str, Any]) -> dict[str, Any]:
    """The measured server's settings. Its budget gives way where more sequences are asked for than it has tokens."""
    server = found.server
    values: dict[str, Any] = {name: getattr(server, name) for name in _MEASURED}
    seqs = said.get("max_num_seqs", server.max_num_seqs)
    least = seqs + server.chunk_multiple_tokens - 1
    values["max_num_batched_tokens"] = max(server.max_num_batched_tokens, least)
    if "prefix_cache_scope" not in said:
        values["prefix_cache_scope"] = "shared" if server.policy == "vllm" else "tenant"
        if not server.prefix_cache:
            values["prefix_cache_scope"] = "off"
    return values


@dataclass(frozen=True, slots=True)
class _Room:
    """The KV cache of a worker."""

    num_blocks: int
    block_size: int
    notes: tuple[str, ...] = ()


def _room(asked: _Asked, shape: ModelShape | None, hardware: Hardware | None, found: StepFit) -> _Room:
    world, engine = asked.world, asked.config.engine
    block = world.block_size or (found.server.block_size if world.fit is not None else BLOCK_TOKENS)
    if world.num_blocks is not None:
        return _Room(world.num_blocks, block)
    if "kv_cache_gib" in asked.said:
        return _Room(_blocks_in(world, shape, engine.kv_cache_gib, block), block)
    if shape is not None and hardware is not None:
        memory = MemorySettings(
            tensor_parallel=world.tensor_parallel_size,
            kv_cache_dtype=world.kv_cache_dtype,
            gpu_memory_utilization=world.gpu_memory_utilization,
            max_model_len=engine.max_model_len,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
            block_tokens=block,
        )
        plan = plan_memory(shape, hardware, engine_named("vllm"), memory)
        return _Room(max(1, plan.tokens // block), block)
    if found.server.num_blocks is not None:
        blocks = found.server.num_blocks * found.server.block_size // block
        return _Room(max(1, blocks), block)
    note = "how large the KV cache is, the fit does not say: here it is never full (--num-blocks, --kv-cache-gib)"
    return _Room(PLENTY_TOKENS // block, block, (note,))


def _blocks_in(world: WorldOptions, shape: ModelShape | None, gib: float, block: int) -> int:
    if shape is None:
        raise ConfigError(
            "--kv-cache-gib: how many tokens that holds depends on the model: give --model as well, or --num-blocks.",
            param="kv_cache_gib",
        )
    cost = kv_cost(
        shape,
        kv_dtype(world.kv_cache_dtype, shape.weight_format.dtype),
        tensor_parallel=world.tensor_parallel_size,
        block_tokens=block,
    )
    blocks = int(gib * BYTES_PER_GIB // cost.block_bytes)
    if blocks < 1:
        raise ConfigError(
            f"--kv-cache-gib {gib:g} holds no block: one of {block} tokens takes {cost.block_bytes:,} bytes.",
            param="kv_cache_gib",
        )
    return blocks


def _worker(config: ServeConfig, found: StepFit, room: _Room) -> VirtualWorker:
    engine, server = config.engine, found.server
    policy = POLICIES[engine.policy] if engine.policy != server.policy else server.scheduling()
    return VirtualWorker(
        limits=SchedulerLimits(
            engine.max_num_seqs, engine.max_num_batched_tokens, server.chunk_multiple_tokens, engine.kv_full
        ),
        num_blocks=room.num_blocks,
        block_size=room.block_size,
        prefix_cache=engine.prefix_cache_scope != "off",
        cost=found.cost,
        policy=policy if engine.pace else replace(policy, paced=False),
        batching=BatchLimits() if engine.batching == "static" else None,
        plans_ahead=server.plans_ahead,
    )


def _settings(asked: _Asked, worker: VirtualWorker, longest: int) -> VirtualSettings:
    """The front: a gateway's, our own server's, or the waiting room of a server that refuses nobody."""
    world, config, said = asked.world, asked.config, asked.said
    engine = config.engine
    if world.workers:
        limits = limits_of(config)
        seqs = engine.max_num_seqs
        # As --local-workers has it, whose slots are known; the window of another's server begins small and learns.
        spec = (
            WorkerSpec("", first_sequences=seqs, most_sequences=seqs) if engine.policy == "headway" else WorkerSpec("")
        )
        return VirtualSettings(
            workers=(worker,) * world.workers,
            front=limits.front,
            admission=replace(limits.admission, max_model_len=longest),
            tenants=asked.tables.limits,
            default_limits=asked.tables.default_limits,
            fleet=VirtualFleet(
                specs=tuple(replace(spec, id=f"w{number}") for number in range(world.workers)),
                scrape_every_ns=ns(world.scrape_interval),
                degradation=limits.degradation,
                levels=ladder_modes(config.ladder),
            ),
            log_tokens=True,
        )
    ours = engine.policy == "headway"
    room = (engine.max_waiting, engine.max_waiting_tokens)
    if not ours:
        room = (said.get("max_waiting", NO_LIMIT), said.get("max_waiting_tokens", NO_LIMIT))
    front = FrontLimits(ns(engine.queue_timeout), ns(engine.age_bound) if ours or "age_bound" in said else 0)
    if ours or _LANES & said.keys():
        front = replace(front, lanes=lanes(engine, engine.max_num_seqs))
    admission = AdmissionLimits(
        longest, worker.capacity_tokens, *room, max_running=config.max_running, kv_claim_ratio=config.kv_claim_ratio
    )
    return VirtualSettings(workers=(worker,), front=front, admission=admission, log_tokens=True)


def _flags(world: WorldOptions, config: ServeConfig, worker: VirtualWorker, room: _Room) -> dict[str, str]:
    """In the words of the flags, as a live server's are in a report."""
    engine = config.engine
    told: dict[str, object] = {
        "policy": engine.policy,
        "max-num-seqs": engine.max_num_seqs,
        "max-num-batched-tokens": engine.max_num_batched_tokens,
        "num-blocks": room.num_blocks,
        "block-size": room.block_size,
        "prefix-cache-scope": engine.prefix_cache_scope,
        "kv-full": engine.kv_full,
        "batching": engine.batching,
        "workers": world.workers or 1,
    }
    if engine.max_model_len is not None:
        told["max-model-len"] = engine.max_model_len
    if not worker.policy.paced and engine.policy == "headway":
        told["pace"] = "off"
    return {name: str(value) for name, value in told.items()}
