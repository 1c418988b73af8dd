"""The real core and driver behind the gateway, in this process and without waiting: what a test of text needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.pace import StepTime, StepTimeModel
from headway.core.request import Reason, Request, Slo
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.scheduler import Scheduler
from headway.core.scheduler.step import Outcome, RowResult, Step, TokenLogprob
from headway.engine.config import EngineConfig, engine_config
from headway.engine.driver import DrivenExecutor, Driver
from headway.engine.snapshot import take_snapshot
from headway.executors.simulated import SimulatedConfig, SimulatedExecutor
from headway.executors.simulated_text import CHAT_TEMPLATE, EOS, SimulatedTokenizer
from headway.metrics.snapshot import RecentStep, Snapshot
from headway.models import ChatTemplate
from tests.gateway.fake import FakeModel


class Instant(SimulatedExecutor):
    """The simulated executor with a clock that does not wait."""

    def __init__(self) -> None:
        super().__init__(SimulatedConfig(clock="virtual", mean_output_tokens=8.0))

    alive = True

    def restart(self) -> None: ...
    def interrupt(self) -> None: ...


class Scripted:
    """An executor that says the same tokens to everybody, then ends the sequence."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = [*tokens, EOS]
        self._said: dict[int, int] = {}
        self._max_tokens: dict[int, int] = {}
        self._logprobs: set[int] = set()

    def run(self, step: Step) -> Outcome:
        results = []
        for row in step.rows:
            if row.begin is not None:
                self._said[row.seq] = 0
                self._max_tokens[row.seq] = row.begin.max_tokens
                if row.begin.params.logprobs is not None:
                    self._logprobs.add(row.seq)
            if row.samples:
                token = self._tokens[self._said[row.seq]]
                self._said[row.seq] += 1
                at_limit = self._said[row.seq] >= self._max_tokens[row.seq]
                ended = Reason.STOP if token == EOS else Reason.LENGTH if at_limit else None
                logprobs = [TokenLogprob(token, -0.5)] if row.seq in self._logprobs else None
                results.append(RowResult(row.seq, [token], ended, logprobs))
        return Outcome(step.id, results)

    alive = True

    def restart(self) -> None: ...
    def interrupt(self) -> None: ...


class DrivenBackend:
    """Meets `gateway.Backend` with a driver of its own."""

    def __init__(self, executor: DrivenExecutor, *, max_model_len: int = 256, max_waiting: int = 4096) -> None:
        self.model = FakeModel("driven")
        self.tokenizer = SimulatedTokenizer()
        self.chat_template = ChatTemplate(CHAT_TEMPLATE, {})
        self.max_model_len = max_model_len
        pool = KvPool(2048, 32)
        model = StepTimeModel(StepTime(1e6, 1e5, 1e5, 100, 10), frozen=True)
        front = Front(AdmissionLimits(max_model_len, 2048 * 32, max_waiting), FrontLimits(), model=model)
        scheduler = Scheduler(SchedulerLimits(64, 256), pool, front.pull, model=model)
        self.driver = Driver(front, scheduler, executor, self.tokenizer.stream)
        self.submit_all = self.driver.submit_all

    @property
    def default_slo(self) -> Slo:
        return Slo()

    @property
    def config(self) -> EngineConfig:
        return EngineConfig()

    def reconfigure(self, **changes: Any) -> EngineConfig:
        return engine_config(**changes)

    def lane_of(self, request: Request) -> str:
        return self.driver.front.lanes.lane_of(request)

    def check_door(self) -> None:
        self.driver.check_door()

    @property
    def not_ready_reason(self) -> str:
        return self.driver.front.not_ready_reason

    @property
    def dead(self) -> bool:
        return self.driver.dead

    @property
    def recent_steps(self) -> Sequence[RecentStep]:
        return tuple(self.driver.recent_steps)

    def snapshot(self) -> Snapshot:
        return take_snapshot(self.driver)


@asynccontextmanager
async def driving(make_executor: Callable[[], DrivenExecutor] = Instant) -> AsyncIterator[DrivenBackend]:
    """A backend that runs while the context lasts, and must be empty at its end."""
    backend = DrivenBackend(make_executor())
    backend.driver.start()
    try:
        yield backend
        now = backend.snapshot()
        assert (now.requests, now.running, now.waiting, now.kv_blocks_used) == (0, 0, 0, 0)
    finally:
        await backend.driver.close()
