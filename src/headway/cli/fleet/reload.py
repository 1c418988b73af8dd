"""What a reload may change while a gateway serves, and what has to wait for a restart."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from headway.cli.config import ServeConfig
from headway.cli.fleet.local import ENGINES, local_count
from headway.cli.fleet.parts import counters_of, member_of, worker_tables
from headway.cli.layers import KEYS, Effective
from headway.gateway.fleet import Counter, Member

LIVE = frozenset(
    {
        *("max_model_len", "max_waiting", "max_waiting_tokens", "max_running", "kv_claim_ratio"),
        *("queue_timeout", "age_bound", "slo_ttft", "slo_itl", "ttft_limit"),
        *("long_prompt_slots", "long_output_slots", "long_prompt_lane_tokens", "long_output_lane_tokens"),
        *("overlong", "overlong_tokens", "ladder", "clamp_output_tokens", "short_context_ratio"),
        *("min_replicas", "max_replicas", "scale_hook", "scale_hook_timeout"),
        *("worker", "drain_timeout", "log_level"),
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """What is new, made and checked, but not in force yet.

    `changed` names settings and tables; `restart` those that stay as they are until then.
    """

    effective: Effective
    changed: list[str]
    restart: list[str]
    added: list[Member]
    removed: list[str]
    counters: dict[str, Counter] | None  # None: as before


def change(running: Effective, asked: Effective) -> Change:
    """From what holds to what the file says now. Raises ConfigError; nothing has happened then."""
    effective, restart = merged(running, asked)
    before, after = worker_tables(running), worker_tables(effective)
    removed = [name for name, table in before.items() if after.get(name) != table]
    added = [member_of(table) for name, table in after.items() if before.get(name) != table]
    tokenizers = effective.tables.tokenizers
    counters = counters_of(tokenizers) if tokenizers != running.tables.tokenizers else None
    changed = [KEYS[name].name for name in KEYS if effective.value(name) != running.value(name) and name != "worker"]
    old, new = running.tables, effective.tables
    changed += ["worker"] * bool(removed or added)
    changed += ["tenant"] * ((old.default_limits, old.limits) != (new.default_limits, new.limits))
    changed += ["tokenizer"] * (counters is not None)
    return Change(effective, changed, restart, added, removed, counters)


def merged(running: Effective, asked: Effective) -> tuple[Effective, list[str]]:
    """`asked`, with what cannot change while it serves as it is; and the names of that, where it was to change."""
    live = LIVE - ENGINES if local_count(running) else LIVE  # engines that run here were told at their start
    kept = [name for name in KEYS if name not in live]
    restart = [KEYS[name].name for name in kept if asked.value(name) != running.value(name)]
    own = {field.name for field in dataclasses.fields(ServeConfig)}
    engine = {name: running.value(name) for name in kept if hasattr(running.config.engine, name)}
    rest = {name: running.value(name) for name in kept if name in own}
    config = dataclasses.replace(asked.config, **rest, engine=dataclasses.replace(asked.config.engine, **engine))
    return dataclasses.replace(asked, model=running.model, config=config), restart
