"""`Snapshot`: every number of an engine at one moment. `/load`, `/metrics` and the dashboard read nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.engine.driver import Driver


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
    max_num_seqs: int
    max_num_batched_tokens: int

    steps_total: int
    prefill_tokens_total: int
    decode_tokens_total: int
    prefill_seconds_total: float
    decode_seconds_total: float
    preemptions_total: int
    recomputed_tokens_total: int
    ended_total: dict[str, int]  # by finish reason ("stop", "length"), else by state ("cancelled", "failed", "expired")
    refused_total: dict[str, int]  # by error code

    @property
    def kv_usage_ratio(self) -> float:
        return self.kv_blocks_used / self.kv_blocks_total


def take_snapshot(driver: Driver) -> Snapshot:
    """Read `driver` on its own event loop."""
    front, scheduler = driver.front, driver.scheduler
    counters = scheduler.counters
    step = driver.step_in_flight
    return Snapshot(
        requests=front.admission.requests,
        running=len(scheduler.running),
        step_tokens=step.tokens if step is not None else 0,
        kv_tokens=scheduler.kv_tokens,
        waiting=front.admission.waiting,
        waiting_tokens=front.admission.waiting_tokens,
        preempted=len(scheduler.preempted),
        kv_blocks_used=scheduler.pool.used_blocks,
        kv_blocks_total=scheduler.pool.num_blocks,
        max_num_seqs=scheduler.limits.max_num_seqs,
        max_num_batched_tokens=scheduler.limits.max_num_batched_tokens,
        steps_total=counters.steps,
        prefill_tokens_total=counters.prefill_tokens,
        decode_tokens_total=counters.decode_tokens,
        prefill_seconds_total=counters.prefill_seconds,
        decode_seconds_total=counters.decode_seconds,
        preemptions_total=counters.preemptions,
        recomputed_tokens_total=counters.recomputed_tokens,
        ended_total={
            reason: counters.ended.get(reason, 0) + front.ended.get(reason, 0)
            for reason in sorted({*counters.ended, *front.ended})
        },
        refused_total=dict(front.refused),
    )
