"""Static batching: formed by length, held to the end, padded, and never over its limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.pace import StepTimeModel
from headway.core.request import Request, State
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.sequence import Ended
from headway.core.scheduler.static import BatchLimits, StaticScheduler
from headway.core.scheduler.step import Step
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor
from headway.simulate import Run, VirtualRequest, VirtualSettings, VirtualWorker, simulate
from tests.simulate import worlds
from tests.simulate.worlds import COST, MS, arrivals

WAIT_NS = 100 * MS


def worker(**changes: object) -> VirtualWorker:
    return worlds.worker(**{"num_blocks": 200, "batching": BatchLimits(WAIT_NS), **changes})


def service(*workers: VirtualWorker, **changes: object) -> VirtualSettings:
    return VirtualSettings(workers=workers or (worker(),), log_steps=True, **changes)  # type: ignore[arg-type]


def asked(name: str, at_ns: int = 0, prompt: int = 8, output: int = 5, **changes: object) -> VirtualRequest:
    return VirtualRequest(name, at_ns, prompt, 50, output, **changes)  # type: ignore[arg-type]


def shapes(run: Run) -> list[tuple[int, int, int]]:
    return [(step.prefill_tokens, step.decode_tokens, step.pad_tokens) for step in run.steps]


# -- by hand -----------------------------------------------------------------------------------------------------


def test_prompts_are_padded_to_the_longest_and_slots_held_to_the_end():
    requests = [asked("a", prompt=3, output=1), asked("b", prompt=6, output=2), asked("c", prompt=5, output=4)]
    run = simulate(requests, service())
    assert shapes(run) == [(14, 0, 4), (0, 2, 1), (0, 1, 2), (0, 1, 2)]
    assert [r.output_tokens for r in run.records] == [1, 2, 4]
    assert run.counters[0].pad_tokens == 9
    attention = sum(n * n // 2 for n in (3, 6, 5))
    prefill_ns = COST.step_ns + 18 * COST.prefill_token_ns + attention * COST.prefill_attention_ns
    assert run.records[0].ended_ns == prefill_ns


def test_a_finished_sequence_leaves_its_batch_at_once_and_its_slot_at_the_end():
    requests = [asked("quick", output=1), asked("slow", output=9), asked("next", 1)]
    run = simulate(requests, service(worker(max_num_seqs=2)))
    quick, slow, after = run.records
    assert quick.ended_ns < slow.ended_ns == after.started_ns


@pytest.mark.parametrize("leaps", [True, False])
def test_a_batch_that_is_not_full_waits_for_company_so_long_and_no_longer(leaps):
    requests = [asked("a", 0), asked("b", WAIT_NS // 2), asked("c", 10 * WAIT_NS)]
    run = simulate(requests, service(leaps=leaps))
    assert [r.started_ns for r in run.records] == [WAIT_NS, WAIT_NS, 10 * WAIT_NS]  # nothing comes after c


def test_a_full_batch_does_not_wait():
    requests = [*(asked(f"r{i}", i) for i in range(4)), asked("last", 1000 * MS)]
    assert [r.started_ns for r in simulate(requests, service()).records[:4]] == [3] * 4


def test_a_batch_that_fills_the_kv_cache_is_full():
    requests = [*(asked(f"r{i}", i, prompt=30) for i in range(3)), asked("last", 5000 * MS)]
    run = simulate(requests, service(worker(num_blocks=40)))  # 20 blocks each, at worst
    assert [r.started_ns for r in run.records[:2]] == [2, 2]
    assert run.records[2].started_ns >= run.records[1].ended_ns


def test_lengths_go_together_and_the_oldest_bucket_goes_first():
    requests = [asked(f"{kind}{i}", 10 * i + n, prompt) for i in range(4) for n, (kind, prompt) in enumerate(KINDS)]
    run = simulate(requests, service(worker(max_num_batched_tokens=2000, num_blocks=2000)))
    started: dict[int, str] = {}
    for record in run.records:
        started[record.started_ns] = started.get(record.started_ns, "") + record.id[0]
    assert [started[at] for at in sorted(started)] == ["ssss", "llll"]
    assert sum(step.pad_tokens for step in run.steps) == 0


KINDS = (("s", 20), ("l", 300))


def test_buckets_save_padding():
    requests = [asked(f"r{i}", 0, 20 if i % 2 else 300) for i in range(16)]
    one = worker(max_num_batched_tokens=2000, num_blocks=2000)
    mixed = replace(one, batching=BatchLimits(WAIT_NS, bucketed=False))
    bucketed, together = simulate(requests, service(one)), simulate(requests, service(mixed))
    assert bucketed.counters[0].pad_tokens == 0
    assert together.counters[0].pad_tokens == 16 // 2 * 280
    assert bucketed.ended_ns < together.ended_ns


@pytest.mark.parametrize(
    ("prompt", "longest"), [(1, 32), (32, 32), (33, 64), (64, 64), (65, 128), (1000, 1024), (1024, 1024)]
)
def test_a_bucket_is_a_power_of_two(prompt, longest):
    assert BatchLimits().bucket(Request("a", range(prompt), 1)) == longest
    assert BatchLimits(bucketed=False).bucket(Request("a", range(prompt), 1)) == 0


def test_a_batch_over_the_limit_is_fed_in_chunks_of_one_width():
    requests = [asked(name, prompt=n, output=1) for name, n in (("a", 20), ("b", 17), ("c", 9))]
    run = simulate(requests, service(worker(max_num_batched_tokens=24)))  # 8 columns a step for 3 slots
    rows = [[(row.start, row.tokens) for row in step.rows] for step in run.steps]
    assert rows == [[(0, 8)] * 3, [(8, 8), (8, 8), (8, 1)], [(16, 4), (16, 1)]]
    assert [step.pad_tokens for step in run.steps] == [0, 7, 7]


def test_when_no_chunk_of_all_fits_the_batch_is_fed_in_groups():
    requests = [asked(name, prompt=20, output=1) for name in "abcd"]
    run = simulate(requests, service(worker(max_num_batched_tokens=19, chunk_multiple_tokens=8)))
    rows = [[(row.seq, row.start, row.tokens) for row in step.rows] for step in run.steps]
    assert rows[:3] == [[(1, 0, 8), (2, 0, 8)], [(1, 8, 8), (2, 8, 8)], [(1, 16, 4), (2, 16, 4)]]
    assert rows[3] == [(3, 0, 8), (4, 0, 8)]
    assert run.counters[0].pad_tokens == 0


def test_continuous_batching_is_what_it_is_compared_with():
    """Uneven outputs: holding slots costs time, and the counters say where it went."""
    requests = [asked(f"r{i}", 0, prompt=8, output=5 + 40 * (i % 4 == 0)) for i in range(32)]
    static = simulate(requests, service())
    continuous = simulate(requests, service(replace(worker(), batching=None)))
    assert continuous.ended_ns < 0.75 * static.ended_ns
    assert continuous.counters[0].pad_tokens == 0
    assert static.counters[0].decode_tokens == continuous.counters[0].decode_tokens


# -- laws --------------------------------------------------------------------------------------------------------

static_workers = st.builds(
    worker,
    num_blocks=st.integers(20, 80),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([16, 24, 64]),
    chunk_multiple_tokens=st.sampled_from([1, 4, 8]),
    prefix_cache=st.booleans(),
    batching=st.builds(BatchLimits, st.sampled_from([0, 50 * MS]), st.booleans()),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(static_workers | worlds.workers, min_size=1, max_size=2), arrivals())
def test_every_request_ends_once_and_no_step_passes_its_limit(workers, requests):
    run = simulate(requests, service(*workers, keeps_kv=True))
    assert sorted(r.id for r in run.records) == sorted(r.id for r in requests)
    outputs = {r.id: min(r.output_tokens, r.max_tokens) for r in requests}
    for record in run.records:
        assert record.end in {"stop", "length", "cancelled", "refused", "failed"}
        if record.finished:
            assert record.output_tokens == outputs[record.id]
    for step in run.steps:
        limits = workers[step.worker].limits
        assert step.rows
        assert step.pad_tokens >= 0
        assert step.prefill_tokens + step.decode_tokens + step.pad_tokens <= limits.max_num_batched_tokens
        assert len(step.rows) <= limits.max_num_seqs
        assert all(r.samples or (r.start + r.tokens) % limits.chunk_multiple_tokens == 0 for r in step.rows)


class Rig:
    """One static scheduler driven by hand, counted at every step."""

    def __init__(self, limits: SchedulerLimits, num_blocks: int, *, prefix_cache: bool) -> None:
        model = StepTimeModel(COST.step_time, frozen=True)
        self.pool = KvPool(num_blocks, 4, prefix_cache=prefix_cache)
        self.front = Front(AdmissionLimits(num_blocks * 4, num_blocks * 4), FrontLimits(), model=model)
        self.scheduler = StaticScheduler(limits, self.pool, self.front.pull, model=model, batching=BatchLimits(0))
        self.executor = SimulatedExecutor(
            SimulatedConfig(clock="virtual", num_blocks=num_blocks, block_size=4, mean_output_tokens=6.0, audit=True)
        )
        self.ends: Counter[str] = Counter()
        self.now = 0

    def step(self, cancel: str = "") -> Step | None:
        self.now += MS
        step = self.scheduler.plan(self.now)
        events = self.scheduler.cancel(cancel, self.now) if not self.front.cancel(cancel, self.now) else []
        if step is not None:
            events += self.scheduler.commit(step, self.executor.run(step), self.now)
        for event in events:
            if isinstance(event, Ended):
                self.front.settle(event.request.id, event.usage, self.now)
                self.ends[event.request.id] += 1
        self.recount()
        return step

    def recount(self) -> None:
        running = self.scheduler.running
        held = {block for seq in running for block in seq.table.blocks}
        assert self.pool.used_blocks == len(held)
        aside = sum(self.pool.blocks_for(s.request.total_tokens) - len(s.table.blocks) for s in running)
        assert self.scheduler.residents.set_aside_blocks == aside <= self.pool.free_blocks
        assert not self.scheduler.preempted
        assert self.front.admission.requests == len(self.front.lanes) + len(running)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(16, 60),
    st.builds(SchedulerLimits, st.integers(1, 5), st.sampled_from([16, 24]), st.sampled_from([1, 8])),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), st.booleans()), max_size=12),
    st.dictionaries(st.integers(0, 60), st.integers(0, 11), max_size=8),
)
def test_blocks_are_conserved_whoever_leaves_when(num_blocks, limits, prefix_cache, shapes, leave_at):
    rig = Rig(limits, num_blocks, prefix_cache=prefix_cache)
    inside = []
    for number, (prompt, output, shared) in enumerate(shapes):
        request = Request(f"r{number}", range(300, 300 + prompt) if shared else range(prompt), output)
        if request.total_tokens <= num_blocks * 4:
            rig.front.submit(request, 0)
            inside.append(request)
    at = 0
    while rig.step(f"r{leave_at[at]}" if at in leave_at else "") is not None:
        at += 1
        assert at < 3_000, "starved"
    assert all(request.state.terminal for request in inside)
    left_waiting = [r for r in inside if r.state is State.CANCELLED and r.id not in rig.ends]
    assert sum(rig.ends.values()) == len(rig.ends) == len(inside) - len(left_waiting)
    assert (rig.pool.used_blocks, rig.front.admission.requests, rig.scheduler.busy) == (0, 0, False)
    assert 0.0 < rig.scheduler.padding_efficiency_ratio <= 1.0


def test_losing_the_executor_ends_the_batch_and_the_next_one_starts_clean():
    rig = Rig(SchedulerLimits(2, 16), 40, prefix_cache=True)
    for i in range(4):
        rig.front.submit(Request(f"r{i}", range(8), 30), 0)
    step = rig.scheduler.plan(1)
    assert step is not None
    events = rig.scheduler.abort(2)
    assert [event.request.state for event in events] == [State.FAILED] * 2
    for event in events:
        assert isinstance(event, Ended)
        rig.front.settle(event.request.id, event.usage, 2)
    rig.recount()
    again = rig.step()
    assert again is not None
    assert [row.seq for row in again.rows] == [3, 4]
