"""`--local-workers N`: engines that the gateway starts as processes of its own, and what each is told."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.cli.config import ENGINE_KEYS, SERVE_KEYS, Key
from headway.cli.goals import GOALS
from headway.cli.layers import Effective
from headway.core.fleet.worker import WorkerSpec
from headway.gateway.fleet import Member
from headway.models import DEFAULT_MODEL
from headway.workers.local import LocalConfig, LocalWorker

# Who waits, for how long, and who is refused is decided by the gateway; an engine is told how to compute.
GATEWAYS = frozenset(
    {"max_waiting", "max_waiting_tokens", "queue_timeout", "ttft_limit", "age_bound", "batch_slots", "decision_log"}
)
ENGINES = frozenset(key.field for key in ENGINE_KEYS) - GATEWAYS - {"step_log", "threads"}
PASSED_ON = ENGINES | {"goal", "served_model_name", "generation_config", "drain_timeout", "log_level", "otel"}


def local_count(effective: Effective) -> int:
    """As many as were asked for; one for a model that is named beside `--worker`."""
    return effective.config.local_workers or int(effective.model is not None)


def local_members(effective: Effective) -> list[Member]:
    count, config = local_count(effective), effective.config
    seqs = _max_num_seqs(effective)
    members = []
    for number in range(count):
        name = f"local-{number}"
        local = LocalConfig(arguments=arguments(effective, name, count), drain_timeout_s=config.drain_timeout)
        # What it can run is known; more would only wait in its order instead of ours.
        spec = WorkerSpec(id=name, first_sequences=seqs, most_sequences=seqs)
        members.append(Member(LocalWorker(name, local), spec))
    return members


def _max_num_seqs(effective: Effective) -> int:
    """Of each engine: what its goal sets for engines is not in a gateway's own settings."""
    goal = effective.config.goal
    if goal is not None and effective.layers["max_num_seqs"] == "default":
        choice = GOALS[goal].of("engine").get("max_num_seqs")
        return choice.value if choice is not None else effective.config.engine.max_num_seqs
    return effective.config.engine.max_num_seqs


def arguments(effective: Effective, name: str, count: int) -> list[str]:
    """The command line of one engine, but for its address: what was said of engines, by flags, file and goal."""
    engine = effective.config.engine
    said = [effective.model or DEFAULT_MODEL]
    for key in SERVE_KEYS:
        if key.field in PASSED_ON and effective.layers[key.field] in ("flag", "file"):
            said += _flag(key, effective.value(key.field))
    said += [f"--threads={engine.threads or max(1, physical_cores() // count)}"]
    if engine.step_log is not None:
        path = Path(engine.step_log)
        said += [f"--step-log={path.with_name(f'{path.stem}.{name}{path.suffix}')}"]
    return said


def _flag(key: Key, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        # A switch that is off by default has no flag to say so.
        yield from [f"--{key.name}"] if value else [f"--no-{key.name}"] if key.default else []
    elif value is not None:
        yield f"--{key.name}={value}"


def physical_cores() -> int:
    """That this process may use; logical ones where the system does not tell which belong together."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in os.sched_getaffinity(0):
        core = str(cpu)
        with contextlib.suppress(OSError):
            core = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text("ascii")
        cores.add(core)
    return len(cores)
