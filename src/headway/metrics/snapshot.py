"""`Snapshot`: every number of an engine at one moment: what `/load`, `/metrics` and the dashboard read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Gauges of now and totals since start. The three concurrencies are three numbers, never one."""

    requests: int  # request concurrency: inside the service, waiting or running
    running: int  # sequence concurrency: sequences that hold a slot
    step_tokens: int  # token concurrency, part one: tokens of the step being computed, 0 between steps
    kv_tokens: int  # token concurrency, part two: tokens resident in KV

    waiting: int
    waiting_tokens: int
    preempted: int  # started, lost their KV, wait to be readmitted
    kv_blocks_used: int
    kv_blocks_total: int
    kv_blocks_cached: int  # that a later prompt can find, held or idle
    kv_blocks_set_aside: int  # free, and promised to running sequences for their worst case
    kv_reserved_bytes: int  # the KV cache's memory, used or not
    memory_bytes: int  # resident, of the server and the executor's process; 0 where the system does not tell
    waiting_by_lane: dict[str, int]
    running_by_lane: dict[str, int]  # started and not ended, preempted ones too
    max_num_seqs: int
    max_num_batched_tokens: int

    steps_total: int
    prefill_tokens_total: int
    decode_tokens_total: int
    prefill_seconds_total: float
    decode_seconds_total: float
    preemptions_total: int
    recomputed_tokens_total: int
    pad_tokens_total: int
    evictions_total: int  # cached blocks given up for room
    relegations_total: int  # promises found lost while waiting
    prefix_lookup_tokens_total: int
    prefix_hit_tokens_total: int
    step_predicted_seconds_total: float
    step_real_seconds_total: float
    step_error_seconds_total: float  # sum of |real - predicted|
    ended_total: dict[str, int]  # by finish reason ("stop", "length"), else by state ("cancelled", "failed", "expired")
    refused_total: dict[str, int]  # by error code

    @property
    def kv_usage_ratio(self) -> float:
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0


class RecentStep(NamedTuple):
    """What one of an engine's last steps carried, and how long it took from plan to commit."""

    id: int
    prefill_tokens: int
    decode_tokens: int
    pad_tokens: int
    sequences: int
    seconds: float
