"""A world for laws: a front, a scheduler and the auditing simulated executor, on a clock that is just a number.

The executor's tokens are a pure function of what the KV blocks really hold, so a wrong block table, a lost block or a
wrong position changes tokens or raises.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from headway.core.admission import AdmissionLimits
from headway.core.errors import HeadwayError
from headway.core.front import Front
from headway.core.kv import KvPool
from headway.core.request import Request, SamplingParams, State
from headway.core.scheduler import Ended, Event, Produced, Scheduler, SchedulerLimits
from headway.core.step import Outcome, Step
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor

VOCAB = 50
STEP_NS = 1_000_000


@dataclass(frozen=True)
class Setup:
    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 16
    chunk_multiple_tokens: int = 1
    max_model_len: int = 200
    max_waiting: int = 1000
    mean_output_tokens: float = 8.0

    @property
    def capacity(self) -> int:
        return min(self.num_blocks * self.block_size, self.max_model_len)


@dataclass
class World:
    setup: Setup
    now: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, Ended] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.setup
        self.pool = KvPool(s.num_blocks, s.block_size)
        self.front = Front(AdmissionLimits(s.max_model_len, self.pool.capacity_tokens, s.max_waiting))
        limits = SchedulerLimits(s.max_num_seqs, s.max_num_batched_tokens, s.chunk_multiple_tokens)
        self.scheduler = Scheduler(limits, self.pool, self.front.pull)
        self.executor = SimulatedExecutor(
            SimulatedConfig(
                clock="virtual",
                block_size=s.block_size,
                num_blocks=s.num_blocks,
                vocab_size=VOCAB,
                eos_token_id=0,
                first_token_id=1,
                mean_output_tokens=s.mean_output_tokens,
                audit=True,
            )
        )

    def submit(self, request: Request) -> bool:
        try:
            self.front.submit(request, self.now)
        except HeadwayError:
            return False
        self.tokens[request.id] = []
        return True

    def cancel(self, request_id: str) -> None:
        if not self.front.cancel(request_id):
            self.take(self.scheduler.cancel(request_id, self.now))

    def plan(self) -> Step | None:
        self.now += STEP_NS
        self.front.plan(self.now)
        step = self.scheduler.plan(self.now)
        if step is not None:
            # Tables are shared with the scheduler and change later: keep what the step really said.
            self.steps.append(replace(step, rows=[replace(row, blocks=list(row.blocks)) for row in step.rows]))
            self.check_step(step)
        return step

    def compute(self, step: Step) -> Outcome:
        return self.executor.run(step)

    def commit(self, step: Step, outcome: Outcome) -> None:
        self.now += STEP_NS
        self.take(self.scheduler.commit(step, outcome, self.now))
        self.check_counters()

    def step(self) -> bool:
        """One plan, run and commit. False when there is nothing to do."""
        step = self.plan()
        if step is None:
            return False
        self.commit(step, self.compute(step))
        return True

    def run(self, most: int = 20_000) -> None:
        """Until idle. Fails when that takes more than `most` steps: somebody is starved or lost."""
        for _ in range(most):
            if not self.step():
                break
        else:
            raise AssertionError(f"not idle after {most} steps")

    def take(self, events: list[Event]) -> None:
        for event in events:
            name = event.request.id
            assert name not in self.ends, f"{name} had an event after its end"
            if isinstance(event, Produced):
                self.tokens[name].extend(event.tokens)
            else:
                self.front.settle(name)
                self.ends[name] = event

    # -- laws that hold at every moment --------------------------------------------------------------------------

    def check_step(self, step: Step) -> None:
        s = self.setup
        assert 0 < step.tokens <= s.max_num_batched_tokens
        assert step.tokens == sum(len(row.tokens) for row in step.rows)
        assert len(self.scheduler.running) <= s.max_num_seqs
        assert len({row.seq for row in step.rows}) == len(step.rows)
        for row in step.rows:
            end = row.start + len(row.tokens)
            assert row.samples or end % s.chunk_multiple_tokens == 0

    def check_counters(self) -> None:
        running = self.scheduler.running
        held = Counter(block for seq in running for block in seq.blocks)
        assert all(count == 1 for count in held.values()), "a block is in two tables"
        assert self.pool.used_blocks == len(held)
        for seq in running:
            assert len(seq.blocks) >= self.pool.blocks_for(seq.computed)
        assert all(not seq.blocks and not seq.computed for seq in self.scheduler.preempted)
        assert [seq.handle for seq in running] == sorted(seq.handle for seq in running)
        inside = len(self.front.lanes) + len(running) + len(self.scheduler.preempted)
        assert self.front.admission.requests == inside
        assert self.front.admission.waiting == len(self.front.lanes)

    def check_empty(self) -> None:
        assert self.pool.used_blocks == 0
        assert not self.scheduler.busy
        assert self.front.admission.requests == self.front.admission.waiting == 0
        assert self.front.admission.waiting_tokens == 0


def make_request(name: str, prompt_tokens: int, max_tokens: int, *, ignore_eos: bool = False, seed: int = 0) -> Request:
    """A request whose prompt depends on its name alone."""
    start = sum(map(ord, name))
    prompt = [(start + 7 * i * i + i) % (VOCAB - 1) + 1 for i in range(prompt_tokens)]
    params = SamplingParams(temperature=1.0 if seed else 0.0, seed=seed, ignore_eos=ignore_eos)
    return Request(name, prompt, max_tokens, params=params)


def alone(request: Request) -> list[int]:
    """The tokens of `request` in a world of its own, with room for everything and no chunking."""
    world = World(Setup(num_blocks=200, max_num_seqs=1, max_num_batched_tokens=512))
    assert world.submit(make_copy(request))
    world.run()
    return world.tokens[request.id]


def make_copy(request: Request) -> Request:
    return Request(request.id, request.prompt, request.max_tokens, params=request.params)


def finished(world: World, name: str) -> bool:
    return name in world.ends and world.ends[name].state is State.FINISHED
