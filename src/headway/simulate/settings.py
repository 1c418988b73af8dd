"""What a simulation is told: the requests (`VirtualRequest`) and the service they meet (`VirtualSettings`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field

from headway.core.errors import ConfigError
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import NO_LIMITS, TenantLimits
from headway.core.front.treatment import Degradation
from headway.core.pace import StepTime
from headway.core.request import NO_SLO, Request, RequestId, Slo
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import HEADWAY, Policy
from headway.core.scheduler.static import BatchLimits
from headway.executors.simulated import StepCost

NO_LIMIT = 1 << 60
NS_PER_S = 1_000_000_000

# Another gateway's way to choose: a request and how many are in flight at each worker -> the worker's name.
Route = Callable[[Request, Mapping[str, int]], str]


@dataclass(frozen=True, slots=True)
class VirtualRequest:
    """One arrival, and what only the world knows of it: how long its output will be, and when its user leaves.

    `prompt` is token ids, or their number; then they are like nobody else's. An output longer than `max_tokens` ends
    there. A refused client comes back up to `retries` times, when `Retry-After` says.
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
    prefix: tuple[int, ...] = ()  # as `Request.prefix`
    background: bool = False  # nobody waits for it
    retries: int = 0
    model: str = ""  # as `Request.model`
    streams: bool = True  # as `Request.streams`

    def check(self) -> None:
        """Raises `ConfigError` for what no trace can mean."""
        numbers: dict[str, object] = {"arrival_ns": self.arrival_ns, "output_tokens": self.output_tokens}
        numbers["cancel_ns"] = self.cancel_ns or 0
        numbers["retries"] = self.retries
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
            prefix=self.prefix,
            model=self.model,
            streams=self.streams,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualWorker:
    """One engine. `batching` makes it run in fixed batches; `believes` is what its scheduler takes steps to cost.

    `plans_ahead`: it plans a step while the one before is computed, and so sees an arrival a step later.
    """

    limits: SchedulerLimits
    num_blocks: int = 2_048
    block_size: int = 32
    prefix_cache: bool = True
    cost: StepCost = field(default_factory=StepCost)
    policy: Policy = HEADWAY
    batching: BatchLimits | None = None
    believes: StepTime | None = None  # None: the truth
    plans_ahead: bool = False

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def step_time(self) -> StepTime:
        return self.believes or self.cost.step_time


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFleet:
    """A gateway before the workers, each of which is a server with a queue of its own.

    It asks each worker for its load every `scrape_every_ns`, in turns, and hears of it `scrape_late_ns` later. `specs`
    are in order of the workers; none are w0, w1, … as they come. With a `route` a plain router takes the gateway's
    place: it sends each request where that says, at once, whatever the workers hold, and has no ladder.
    """

    specs: tuple[WorkerSpec, ...] = ()
    scrape_every_ns: int = NS_PER_S
    scrape_late_ns: int = 0
    degradation: Degradation = field(default_factory=Degradation)
    levels: Mapping[Level, Mode] = field(default_factory=dict)  # of the ladder, pinned as an operator would
    route: Route | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSettings:
    """A service: one front door before any number of workers, which pull from it; or a gateway before a `fleet`.

    `leaps` takes many equal decode steps at once; it changes how long a simulation takes, and nothing else.
    """

    workers: tuple[VirtualWorker, ...]
    front: FrontLimits = field(default_factory=FrontLimits)
    admission: AdmissionLimits | None = None  # None: whatever the smallest worker can hold, and any number of it
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    default_limits: TenantLimits = NO_LIMITS  # of tenants that have none of their own
    fleet: VirtualFleet | None = None
    leaps: bool = True
    log_steps: bool = False
    log_tokens: bool = False
    keeps_kv: bool = False  # tokens from what the blocks hold, as the server's simulated executor draws them; slower

    def __post_init__(self) -> None:
        if not self.workers:
            raise ConfigError("a simulation needs at least one worker")
        fleet = self.fleet
        if fleet is not None and fleet.specs and len(fleet.specs) != len(self.workers):
            raise ConfigError(f"{len(fleet.specs)} specs are given for {len(self.workers)} workers; give one for each")
        if fleet is not None and (fleet.scrape_every_ns < 1 or fleet.scrape_late_ns < 0):
            raise ConfigError("scrape_every_ns must be at least 1, and scrape_late_ns at least 0")

    @property
    def admits(self) -> AdmissionLimits:
        if self.admission is not None:
            return self.admission
        capacity = min(worker.capacity_tokens for worker in self.workers)
        return AdmissionLimits(capacity, capacity, max_waiting=NO_LIMIT, max_waiting_tokens=NO_LIMIT)
