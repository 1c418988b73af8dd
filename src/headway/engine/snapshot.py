"""Reads an engine's `Snapshot` off its driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.metrics.snapshot import Snapshot

if TYPE_CHECKING:
    from headway.engine.driver import Driver


def take_snapshot(driver: Driver, *, kv_reserved_bytes: int = 0, memory_bytes: int = 0) -> Snapshot:
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
        kv_blocks_cached=scheduler.pool.cached_blocks,
        kv_blocks_set_aside=scheduler.residents.set_aside_blocks,
        kv_reserved_bytes=kv_reserved_bytes,
        memory_bytes=memory_bytes,
        waiting_by_lane=front.lanes.waiting_by_lane(),
        running_by_lane=front.lanes.running_by_lane(),
        max_num_seqs=scheduler.limits.max_num_seqs,
        max_num_batched_tokens=scheduler.limits.max_num_batched_tokens,
        steps_total=counters.steps,
        prefill_tokens_total=counters.prefill_tokens,
        decode_tokens_total=counters.decode_tokens,
        prefill_seconds_total=counters.prefill_seconds,
        decode_seconds_total=counters.decode_seconds,
        preemptions_total=counters.preemptions,
        recomputed_tokens_total=counters.recomputed_tokens,
        pad_tokens_total=counters.pad_tokens,
        evictions_total=scheduler.pool.counters.evictions,
        relegations_total=front.lanes.relegations,
        prefix_lookup_tokens_total=scheduler.pool.counters.looked_up_tokens,
        prefix_hit_tokens_total=scheduler.pool.counters.hit_tokens,
        step_predicted_seconds_total=counters.predicted_seconds,
        step_real_seconds_total=counters.real_seconds,
        step_error_seconds_total=counters.error_seconds,
        ended_total={
            reason: counters.ended.get(reason, 0) + front.ended.get(reason, 0)
            for reason in sorted({*counters.ended, *front.ended})
        },
        refused_total=dict(front.refused),
    )
