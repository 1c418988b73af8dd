"""`RayWorker`: a worker that lives in a Ray actor, on whatever machine Ray puts it. Records and resume stay as they
are: the journal is written here, and only items and their answers travel.

Ray itself is an extra (`headway[ray]`), imported when it is asked for. The same headway has to be installed on every
node. What Ray restarts begins with an engine of its own; the items that were on it are tried again as after any loss.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.batch.climb import Climb
from headway.core.batch.dispatch import Fault
from headway.core.errors import ConfigError, EngineFailed, HeadwayError
from headway.offline.items import Item, Sketch, sketch
from headway.offline.worker import Answered, Failed, Worker

log = logging.getLogger(__name__)

STARTS = 5  # of an actor that comes to nothing, before Ray gives it up; later ones are for nodes that were lost
MAX_CALLS = 10_000  # at once on one actor: how many there are is decided here


@dataclass(frozen=True, slots=True)
class Place:
    """What one actor is given of the node that it runs on. `gpus` may be a part of one."""

    name: str
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a worker is, as its owner has to know."""

    models: tuple[str, ...]
    batch: int
    shared: bool
    first: int
    most: int


@dataclass(frozen=True, slots=True)
class _Reply:
    outcome: Answered | Failed
    padding_efficiency_ratio: float | None


class Hosted:
    """In the actor's process. `make` makes the worker there; an actor that was restarted starts it once more."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._worker: Worker | None = None
        self._starting = asyncio.Lock()
        self._cuts: dict[int, asyncio.Event] = {}

    async def shape(self) -> _Shape | HeadwayError:
        """An error travels as a value: Ray would wrap it in one of its own."""
        try:
            worker = await self._started()
        except HeadwayError as error:
            return error
        climb = worker.climb()
        return _Shape(worker.models, worker.batch, worker.shared, climb.most_at_once, int(climb.most))

    async def run(self, item: Item) -> _Reply:
        cut = self._cuts[item.line] = asyncio.Event()
        try:
            worker = await self._started()
            await asyncio.to_thread(worker.prepare, item)
            outcome = await worker.run(item, cut)
            return _Reply(outcome, getattr(worker, "padding_efficiency_ratio", None))
        except HeadwayError as error:
            fault = Fault.LOST if isinstance(error, EngineFailed) else Fault.BAD
            return _Reply(Failed(fault=fault, code=error.code or error.type, message=error.message), None)
        finally:
            del self._cuts[item.line]

    async def there(self) -> None:
        """Returns when it is."""

    async def cut(self, line: int) -> None:
        if (event := self._cuts.get(line)) is not None:
            event.set()

    async def strain(self) -> float:
        return await (await self._started()).strain()

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker.close()

    async def _started(self) -> Worker:
        async with self._starting:
            if self._worker is None:
                worker = self._make()
                await worker.start()
                self._worker = worker
            return self._worker


class RayWorker:
    """`make` is called in the actor: it, and what it holds, must travel (a function of a module, with plain values)."""

    def __init__(self, place: Place, make: Callable[[], Worker]) -> None:
        self.id = place.name
        self._place = place
        self._make = make
        self._ray = ray_module()
        self._actor: Any = None
        self._shape = _Shape((), 0, shared=False, first=1, most=1)
        self._doubtful = False  # it was lost, and has said nothing since
        self.padding_efficiency_ratio: float | None = None

    @property
    def batch(self) -> int:
        return self._shape.batch

    @property
    def models(self) -> tuple[str, ...]:
        return self._shape.models

    @property
    def shared(self) -> bool:
        return self._shape.shared

    def climb(self) -> Climb:
        return Climb(self._shape.first, self._shape.most)

    def prepare(self, item: Item) -> Sketch:
        """From the text alone; what is wrong with it the actor says."""
        return sketch(item)

    async def start(self) -> None:
        place = self._place
        actor = self._ray.remote(Hosted).options(
            num_cpus=place.cpus, num_gpus=place.gpus, max_restarts=STARTS, max_concurrency=MAX_CALLS
        )
        self._actor = actor.remote(self._make)
        try:
            shape = await self._actor.shape.remote()
        except self._ray.exceptions.RayError as error:
            raise EngineFailed(f"Ray could not start {self.id}: {_first_line(error)}") from error
        if isinstance(shape, HeadwayError):
            raise shape
        self._shape = shape

    async def strain(self) -> float:
        try:
            strain: float = await self._actor.strain.remote()
        except self._ray.exceptions.RayError:
            return 1.0  # unknown: others may fare badly
        return strain

    async def run(self, item: Item, cut: asyncio.Event) -> Answered | Failed:
        if self._doubtful:
            try:  # an item that is sent to one that is not back yet would be suspected of having killed it
                await self._actor.there.remote()
            except self._ray.exceptions.RayError as error:
                return self._lost(error, Fault.UNREACHABLE)
            self._doubtful = False
        call = self._actor.run.remote(replace(item, prepared=None))
        cutting = asyncio.ensure_future(self._cut_later(item.line, cut))
        try:
            reply: _Reply = await call
        except asyncio.CancelledError:
            self._ray.cancel(call)
            raise
        except self._ray.exceptions.RayError as error:
            return self._lost(error, Fault.LOST)
        finally:
            cutting.cancel()
        self.padding_efficiency_ratio = reply.padding_efficiency_ratio
        return reply.outcome

    async def close(self) -> None:
        if self._actor is None:
            return
        actor, self._actor = self._actor, None
        try:
            async with asyncio.timeout(30.0):
                await actor.close.remote()
        except (TimeoutError, self._ray.exceptions.RayError) as error:
            log.warning("%s did not close: %s", self.id, _first_line(error))
        self._ray.kill(actor)

    async def _cut_later(self, line: int, cut: asyncio.Event) -> None:
        await cut.wait()
        await self._actor.cut.remote(line)

    def _lost(self, error: Exception, fault: Fault) -> Failed:
        exceptions = self._ray.exceptions
        if isinstance(error, exceptions.OutOfMemoryError):
            return Failed(fault=Fault.OUT_OF_MEMORY, code="out_of_memory", message=_first_line(error))
        if isinstance(error, exceptions.RayTaskError):
            return Failed(fault=Fault.SERVER, code="internal_error", message=f"{_first_line(error)}. Please report it.")
        message = f"The Ray actor {self.id} was lost: {_first_line(error)}"
        if isinstance(error, exceptions.ActorDiedError):  # for good: no restart is left
            return Failed(fault=Fault.FORBIDDEN, code="actor_died", message=message)
        self._doubtful = True
        return Failed(fault=fault, code="actor_lost", message=message)


def ray_module() -> Any:
    """Raises `ConfigError` where it is not installed."""
    try:
        importlib.import_module("ray.exceptions")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(f"--on ray needs Ray: pip install 'headway[ray]' ({error}).", param="on") from None


def connect(address: str | None) -> None:
    """To a cluster that is there (`auto`, host:port, ray://host:port), or with None to one of this machine alone.

    Raises `ConfigError` where none answers.
    """
    ray = ray_module()
    if ray.is_initialized():
        return
    try:
        own = {"include_dashboard": False} if address is None else {"address": address}
        ray.init(**own, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises all kinds, `Exception` itself among them
        where = address or "this machine"
        raise ConfigError(f"No Ray cluster at {where}: {_first_line(error)}", param="ray_address") from None


def places(count: int | None, gpus: float, names: Sequence[str] = ()) -> list[Place]:
    """One for each name, else `count`, else one for each node; each has its share of the cluster's CPUs.

    Raises `ConfigError` for more than there is room for.
    """
    ray = ray_module()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    number = len(names) or count or len(nodes)
    there = ray.cluster_resources()
    if gpus and gpus * number > there.get("GPU", 0):
        raise ConfigError(
            f"{number} workers of {gpus:g} GPUs need {gpus * number:g}; this Ray cluster has {there.get('GPU', 0):g}. "
            "Lower --ray-workers or --ray-gpus.",
            param="ray_gpus",
        )
    if names:  # a server elsewhere does the work
        return [Place(name, 0) for name in names]
    smallest = min((node["Resources"].get("CPU", 0.0) for node in nodes), default=0.0)
    per_node = -(-number // max(1, len(nodes)))
    if smallest < per_node:
        raise ConfigError(
            f"{number} workers on {len(nodes)} nodes are {per_node} on one, and the smallest has {smallest:g} CPUs. "
            "Lower --ray-workers.",
            param="ray_workers",
        )
    return [Place(f"ray-{index + 1}", smallest // per_node, gpus) for index in range(number)]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
