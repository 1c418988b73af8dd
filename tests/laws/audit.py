"""Laws that hold at every moment, checked around every plan and every commit of a `World`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as ReadOnlySequence
from typing import TYPE_CHECKING

from headway.core.request import State
from headway.core.scheduler.kv import KvPool, Table
from headway.core.scheduler.sequence import Sequence
from headway.core.scheduler.step import Step

if TYPE_CHECKING:
    from tests.laws.world import World

LOST = {State.PREEMPTED, State.FAILED}


class Audit:
    def __init__(self, world: World) -> None:
        self.world = world

        self._decoding: list[Sequence] = []
        self._running: list[Sequence] = []
        self._decided = 0

    # -- around a plan -------------------------------------------------------------------------------------------

    def before_plan(self) -> None:
        scheduler = self.world.scheduler
        self._decided = len(self.world.decisions)
        self._running = scheduler.running[:]
        self._decoding = [seq for seq in scheduler.running if seq.request.state is State.DECODE]

    def after_plan(self, step: Step | None) -> None:
        self._slots()
        self._blocks()
        if step is None:
            scheduler = self.world.scheduler
            assert not scheduler.busy, "nothing is planned for those who run"
            assert len(self.world.front.lanes) == 0, "idle while somebody waits"
            return
        self._budget(step)
        self._victims(step)
        if self.world.setup.core_policy.decode_first:
            self._decodes(step)

    def _budget(self, step: Step) -> None:
        s = self.world.setup
        assert 0 < step.tokens <= s.max_num_batched_tokens
        assert step.tokens == sum(len(row.tokens) for row in step.rows)
        assert len({row.seq for row in step.rows}) == len(step.rows)
        for row in step.rows:
            end = row.start + len(row.tokens)
            seq = self.world.scheduler.residents.by_handle[row.seq]
            assert row.start == seq.computed
            assert list(row.tokens) == seq.tokens[row.start : end]
            assert row.samples == (end == len(seq.tokens))
            assert row.samples or end % s.chunk_multiple_tokens == 0
            assert end <= len(row.blocks) * s.block_size

    def _decodes(self, step: Step) -> None:
        """Whoever streams gets a token, unless it lost its KV; only the oldest may wait, for those who paid enough."""
        fed = {row.seq for row in step.rows}
        left_out = [seq for seq in self._decoding if seq.request.state is State.DECODE and seq.handle not in fed]
        if left_out:
            running = self.world.scheduler.running
            assert left_out == running[:1], "somebody streams and got no token"
            assert all(seq.committed for seq in running[1:])

    def _victims(self, step: Step) -> None:
        """Who lost its KV in this plan, by what `kv_full` and the policy say."""
        world, scheduler = self.world, self.world.scheduler
        decided = world.decisions[self._decided :]
        for_slots = {decision.request for decision in decided if decision.why.startswith("slot")}
        lost = [seq for seq in self._running if seq.request.id not in for_slots and seq.request.state in LOST]
        fed = {row.seq for row in step.rows}
        assert all(seq.handle not in fed for seq in lost)
        policy, mode = world.setup.core_policy, world.setup.kv_full
        assert all(seq.preemptions <= policy.max_preemptions for seq in scheduler.residents.by_handle.values())
        if not lost:
            return
        assert mode != "wait", "--kv-full wait, and somebody lost its KV"
        state = State.PREEMPTED if mode == "preempt" else State.FAILED
        assert {seq.request.state for seq in lost} == {state}
        stayed = [seq for seq in self._running if seq not in lost and seq.request.id not in for_slots]
        assert stayed, "the oldest lost its KV"
        assert stayed[0].handle < lost[0].handle
        if mode == "reject" or policy.name == "vllm":  # the newest, except those who had paid enough
            assert all(seq.handle < lost[0].handle for seq in stayed if not seq.committed)
        if not policy.start_after_preemption:
            assert not {"start", "readmit"} & {decision.kind for decision in decided}

    def _slots(self) -> None:
        world, scheduler = self.world, self.world.scheduler
        assert len(scheduler.running) <= world.setup.max_num_seqs
        lanes = world.front.lanes
        started = scheduler.running + scheduler.preempted
        taken = Counter(lanes.lane_of(seq.request) for seq in started)
        for limits in lanes.limits:
            assert taken[limits.name] <= limits.slots

    # -- after a commit ------------------------------------------------------------------------------------------

    def after_commit(self) -> None:
        self._blocks()
        self._holds()

    def _blocks(self) -> None:
        """`recount`, and what tables and counters say of the sequences."""
        pool, scheduler = self.world.pool, self.world.scheduler
        running = scheduler.running
        recount(pool, [seq.table for seq in running])
        for seq in running:
            assert len(seq.table.blocks) >= pool.blocks_for(seq.computed)
            assert seq.table.published * pool.block_size <= len(seq.tokens)
        assert all(not seq.table.blocks and not seq.computed for seq in scheduler.preempted)
        aside = sum(
            pool.blocks_for(seq.request.total_tokens) - len(seq.table.blocks) for seq in running if seq.committed
        )
        assert scheduler.residents.set_aside_blocks == aside <= pool.free_blocks

    def _holds(self) -> None:
        """Admission's counters, and who is where."""
        front, scheduler = self.world.front, self.world.scheduler
        handles = [seq.handle for seq in scheduler.running]
        assert handles == sorted(handles)
        assert not any(seq.in_flight for seq in scheduler.residents.by_handle.values())
        inside = len(front.lanes) + len(scheduler.running) + len(scheduler.preempted)
        assert front.admission.requests == inside
        assert front.admission.waiting == len(front.lanes) == sum(front.lanes.waiting_by_lane().values())
        assert front.admission.waiting_tokens == sum(request.prompt_tokens for request in front.lanes)

    # -- at the end ----------------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """Everybody has gone: nothing is held, everybody ended once, and the counters tell what happened."""
        world, pool, scheduler = self.world, self.world.pool, self.world.scheduler
        assert pool.used_blocks == 0
        assert not scheduler.busy
        assert world.front.admission.requests == world.front.admission.waiting == 0
        assert world.front.admission.waiting_tokens == 0
        assert scheduler.residents.set_aside_blocks == 0
        assert all(lane.running == 0 == lane.running_tokens for lane in world.front.lanes._lanes)
        assert set(world.tokens) == set(world.ends) | set(world.left)
        assert not set(world.ends) & set(world.left)
        counters = scheduler.counters
        assert sum(counters.ended.values()) == len(world.ends)
        assert sum(world.front.ended.values()) == len(world.left)
        for name, end in world.ends.items():
            assert end.usage.output_tokens == len(world.tokens[name])
            assert end.times.arrival_ns <= end.times.started_ns <= end.times.ended_ns
            assert (end.reason is not None) == (end.state is State.FINISHED)
        assert counters.preemptions == sum(seq.preemptions for seq in world.seqs.values())
        self._cache_is_true()

    def _cache_is_true(self) -> None:
        """What the cache says a block holds is what the executor's memory holds."""
        pool, kv = self.world.pool, self.world.executor._kv
        assert kv is not None
        for run in pool._runs.values():
            for block, content in zip(run.blocks, run.contents, strict=True):
                start = block * pool.block_size
                assert tuple(kv._tokens[start : start + pool.block_size]) == content  # no `Spans` comes here


def recount(pool: KvPool, tables: ReadOnlySequence[Table]) -> None:
    """Every block is exactly one of: empty, cached and idle, held. Every table holds all of a run, or none of it."""
    held = Counter(block for table in tables for block in table.blocks)
    runs = pool._runs.values()
    cached = [block for run in runs for block in run.blocks]
    idle = [block for run in pool._idle for block in run.blocks]
    places = [*pool._empty, *idle, *held]
    assert len(places) == pool.num_blocks == len(set(places))
    assert (pool.used_blocks, pool.free_blocks) == (len(held), len(pool._empty) + len(idle))
    assert pool.cached_blocks == len(cached) == len(set(cached))
    assert set(pool._idle) == {run for run in runs if not run.holders}
    assert all(held[block] == run.holders for run in runs for block in run.blocks)
    assert all(times == 1 for block, times in held.items() if block not in set(cached))
    assert all(len(set(table.blocks)) == len(table.blocks) for table in tables)
    assert pool._run_at == {run.blocks[0]: run for run in runs}
    for key, run in pool._runs.items():
        assert key == run.key
        assert key[1] == run.contents[0]
        assert len(run.contents) == len(run.blocks)
