"""A world for laws: a front, a scheduler and the auditing simulated executor, on a clock that is just a number.

The executor's tokens are a pure function of what the KV blocks really hold, so a wrong block table, a lost block or a
wrong position changes tokens or raises. A step lasts exactly what `COST` says, so the step-time model is right.
Laws that hold at every moment are in `audit.py` and are checked around every plan and commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headway.core.decisions import Decision
from headway.core.errors import HeadwayError
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Expire, Front, FrontLimits
from headway.core.pace import StepTimeModel
from headway.core.request import Request, State
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.limits import KvFull, SchedulerLimits
from headway.core.scheduler.policies import POLICIES, Policy
from headway.core.scheduler.scheduler import Scheduler
from headway.core.scheduler.sequence import Ended, Event, Produced, Sequence
from headway.core.scheduler.step import Outcome, Step
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor, StepCost
from tests.laws.audit import Audit

VOCAB = 50
COST = StepCost(200_000, 50_000, 50_000, 500, 50)
STEP_TIME = COST.step_time
MS = 1_000_000
FRONT = FrontLimits()


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
    kv_full: KvFull = "preempt"
    policy: str = "headway"
    prefix_cache: bool = True
    front: FrontLimits = FRONT
    margin: float = 1.0  # of the step-time model
    max_preemptions: int = 0  # 0: the policy's own

    @property
    def core_policy(self) -> Policy:
        policy = POLICIES[self.policy]
        return replace(policy, max_preemptions=self.max_preemptions) if self.max_preemptions else policy


@dataclass
class World:
    setup: Setup
    now: int = MS
    tokens: dict[str, list[int]] = field(default_factory=dict)  # of everybody who was let in
    ends: dict[str, Ended] = field(default_factory=dict)  # of those who were started
    left: dict[str, Expire | None] = field(default_factory=dict)  # ended while waiting: expired, or cancelled (None)
    steps: list[Step] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    seqs: dict[int, Sequence] = field(default_factory=dict)  # everybody ever started, by handle

    def __post_init__(self) -> None:
        s = self.setup
        self.pool = KvPool(s.num_blocks, s.block_size, prefix_cache=s.prefix_cache)
        model, policy = StepTimeModel(STEP_TIME, frozen=True), s.core_policy
        model.margin = s.margin
        admission = AdmissionLimits(s.max_model_len, self.pool.capacity_tokens, s.max_waiting)
        listener = self.decisions.append
        self.front = Front(admission, s.front, model=model, policy=policy, listener=listener)
        limits = SchedulerLimits(s.max_num_seqs, s.max_num_batched_tokens, s.chunk_multiple_tokens, s.kv_full)
        self.scheduler = Scheduler(limits, self.pool, self.front.pull, model=model, policy=policy, listener=listener)
        self.executor = self.new_executor()
        self.audit = Audit(self)

    def new_executor(self) -> SimulatedExecutor:
        s = self.setup
        return SimulatedExecutor(
            SimulatedConfig(
                cost=COST,
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

    # -- stimuli -------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> bool:
        try:
            self.front.submit(request, self.now)
        except HeadwayError:
            return False
        self.tokens[request.id] = []
        return True

    def cancel(self, request_id: str) -> None:
        if self.front.cancel(request_id, self.now):
            self.left[request_id] = None
        else:
            self.take(self.scheduler.cancel(request_id, self.now))

    def abort(self) -> None:
        """The executor died, taking its memory with it; another is started."""
        self.take(self.scheduler.abort(self.now))
        self.executor = self.new_executor()
        self.audit.after_commit()

    # -- driving -------------------------------------------------------------------------------------------------

    def plan(self, most_steps: int = 1) -> Step | None:
        for expire in self.front.expire(self.now):
            self.left[expire.request.id] = expire
        self.audit.before_plan()
        step = self.scheduler.plan(self.now, most_steps=most_steps)
        self.seqs.update(self.scheduler.residents.by_handle)
        self.audit.after_plan(step)
        if step is not None:
            # Tables are shared with the scheduler and change later: keep what the step really said.
            self.steps.append(replace(step, rows=[replace(row, blocks=list(row.blocks)) for row in step.rows]))
        return step

    def compute(self, step: Step) -> Outcome:
        return self.executor.run(step)

    def commit(self, step: Step, outcome: Outcome) -> None:
        self.now += round(outcome.seconds * 1e9)
        self.take(self.scheduler.commit(step, outcome, self.now))
        self.audit.after_commit()

    def step(self, most_steps: int = 1) -> bool:
        """One plan, run and commit. False when there is nothing to do."""
        step = self.plan(most_steps)
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
            assert name not in self.left, f"{name} never started, and had an event"
            if isinstance(event, Produced):
                self.tokens[name].extend(event.tokens)
            else:
                self.front.settle(name, event.usage, self.now)
                self.ends[name] = event

    # -- what to ask of it ---------------------------------------------------------------------------------------

    def finished(self, name: str) -> bool:
        return name in self.ends and self.ends[name].state is State.FINISHED

    def seq(self, name: str) -> Sequence:
        return next(seq for seq in self.seqs.values() if seq.request.id == name)

    def decided(self, kind: str) -> list[str]:
        """About whom `kind` was decided, in order."""
        return [decision.request for decision in self.decisions if decision.kind == kind]
