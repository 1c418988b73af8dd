"""Rules: each a pure function `Case -> Finding | None`, by what is waited for. `RULES` is all of them."""

from __future__ import annotations

from collections.abc import Callable

from headway.doctor.finding import Finding
from headway.doctor.rules.cache import cold_cache
from headway.doctor.rules.case import Case
from headway.doctor.rules.edge import client_limited, network_delay, slow_preprocessing
from headway.doctor.rules.fleet import hot_worker, slow_worker
from headway.doctor.rules.memory import kv_exhausted, preemption_thrash
from headway.doctor.rules.prompts import long_prompts, prompt_queue
from headway.doctor.rules.queue import bursts, full_windows, long_outputs, slot_limit
from headway.doctor.rules.stops import engine_stalls
from headway.doctor.rules.streams import decode_starvation, oversized_batch, stalls

Rule = Callable[[Case], Finding | None]

RULES: tuple[Rule, ...] = (
    client_limited,
    network_delay,
    slow_preprocessing,
    slow_worker,
    hot_worker,
    preemption_thrash,
    bursts,
    cold_cache,
    long_outputs,
    kv_exhausted,
    slot_limit,
    full_windows,
    oversized_batch,
    decode_starvation,
    stalls,
    engine_stalls,
    prompt_queue,
    long_prompts,
)
