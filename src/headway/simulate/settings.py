"""What a simulation is told: the requests (`VirtualRequest`) and the service they meet (`VirtualSettings`)."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field

from headway.core.admission import AdmissionLimits
from headway.core.errors import ConfigError
from headway.core.front import FrontLimits
from headway.core.limits import SchedulerLimits
from headway.core.pace import StepTime
from headway.core.policies import HEADWAY, Policy
from headway.core.request import NO_SLO, Request, RequestId, Slo
from headway.core.static import BatchLimits
from headway.executors.simulated import StepCost

NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class VirtualRequest:
    """One arrival, and what only the world knows of it: how long its output will be, and when its user leaves.

    `prompt` is token ids, or their number; then they are like nobody else's. An output longer than `max_tokens` ends
    there.
    """

    id: RequestId
    arrival_ns: int
    prompt: int | ReadOnlySequence[int]
    max_tokens: int
    output_tokens: int
    cancel_ns: int | None = None
    tenant: str = ""
    priority: int = 0
    slo: Slo = NO_SLO
    cache_scope: str = ""

    def check(self) -> None:
        """Raises `ConfigError` for what no trace can mean."""
        numbers: dict[str, object] = {"arrival_ns": self.arrival_ns, "output_tokens": self.output_tokens}
        numbers["cancel_ns"] = self.cancel_ns or 0
        for name, value in numbers.items():
            least = 1 if name == "output_tokens" else 0
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} of request {self.id!r} is {value!r}, and must be a whole number >= {least}")

    def request(self, number: int) -> Request:
        """What the service sees of it. `number` is unlike any other request's."""
        prompt = self.prompt
        if isinstance(prompt, int):
            prompt = range(number << 32, (number << 32) + prompt)
        return Request(
            self.id,
            prompt,
            self.max_tokens,
            tenant=self.tenant,
            priority=self.priority,
            slo=self.slo,
            cache_scope=self.cache_scope,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualWorker:
    """One engine. `batching` makes it run in fixed batches; `believes` is what its scheduler takes steps to cost."""

    limits: SchedulerLimits
    num_blocks: int = 2_048
    block_size: int = 32
    prefix_cache: bool = True
    cost: StepCost = field(default_factory=StepCost)
    policy: Policy = HEADWAY
    batching: BatchLimits | None = None
    believes: StepTime | None = None  # None: the truth

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def step_time(self) -> StepTime:
        return self.believes or self.cost.step_time


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSettings:
    """A service: one front door before any number of workers, which pull from it.

    `leaps` takes many equal decode steps at once; it changes how long a simulation takes, and nothing else.
    """

    workers: tuple[VirtualWorker, ...]
    front: FrontLimits = field(default_factory=FrontLimits)
    admission: AdmissionLimits | None = None  # None: whatever the smallest worker can hold, and any number of it
    leaps: bool = True
    log_steps: bool = False
    keeps_kv: bool = False  # tokens from what the blocks hold, as the server's simulated executor draws them; slower

    def __post_init__(self) -> None:
        if not self.workers:
            raise ConfigError("a simulation needs at least one worker")

    @property
    def admits(self) -> AdmissionLimits:
        if self.admission is not None:
            return self.admission
        capacity = min(worker.capacity_tokens for worker in self.workers)
        return AdmissionLimits(capacity, capacity, max_waiting=NO_LIMIT, max_waiting_tokens=NO_LIMIT)
