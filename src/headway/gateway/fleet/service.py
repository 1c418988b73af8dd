"""What every route of a fleet needs, made once per application."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aiohttp import web

from headway.core.front.front import Front
from headway.core.request import Request
from headway.gateway.background.work import Wanted
from headway.gateway.fleet.config import FleetConfig
from headway.gateway.fleet.counting import Counter, Counting
from headway.gateway.fleet.driver import FleetDriver
from headway.gateway.fleet.figures import Figures
from headway.gateway.fleet.metrics import FleetCollector, tenants_text, times_of, vllm_numbers
from headway.gateway.fleet.roster import Member, Roster
from headway.gateway.fleet.trail import Trails
from headway.gateway.service import Edge
from headway.gateway.tenancy import Door
from headway.metrics.exporter import EdgeExporter, PromiseCollector
from headway.wire import limits
from headway.workers.worker import Decided

T = TypeVar("T")

SALT_CHARS = 32


class Diverting(Protocol):
    """Where work goes that nobody waits for. The store behind it is another's."""

    async def __call__(self, request: web.Request, wanted: Wanted, asked: Request) -> web.StreamResponse:
        """Keep a call for later, and answer its client: 202 with an id. `asked` is what it would be to the core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the one who assembles a gateway lends it. None: this gateway cannot do that."""

    divert: Diverting | None = None
    # Configuration and keys, all or nothing; tells what of it has changed. Raises ConfigError.
    reload: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    member: Callable[[Mapping[str, Any]], Member] | None = None  # a worker from an operator's table


class FleetService(Edge):
    """The driver, the roster, and the parts of the edge that outlive a call."""

    def __init__(
        self,
        front: Front,
        config: FleetConfig,
        *,
        driver: FleetDriver,
        roster: Roster,
        door: Door,
        counters: Mapping[str, Counter] | None = None,
        hooks: Hooks = Hooks(),
    ) -> None:
        self.front = front
        self.fleet_config = config
        self.driver = driver
        self.roster = roster
        self.door = door
        self.hooks = hooks
        self.counting = Counting(counters)
        self.figures = Figures()
        self.trails = Trails(config.recent_requests)
        exporter = EdgeExporter(
            FleetCollector(driver, self.figures), lambda: self.figures.calls, lambda: times_of(self.figures)
        )
        exporter.registry.register(PromiseCollector(lambda: self.fleet_config.default_slo))
        exporter.of_tenants.append(lambda: tenants_text(driver, self.figures))
        super().__init__(config.edge, exporter)
        if config.edge.metrics_names == "vllm":
            exporter.tell_as_vllm(lambda: vllm_numbers(driver, self.figures, roster.models()))
        self._ids = 0
        self._decided: dict[str, Decided] = {}
        self._threads = ThreadPoolExecutor(config.edge.tokenise_threads, thread_name_prefix="headway-count")
        if door.ring is not None:
            driver.chores.append(door.ring.refresh)

    async def counted(self, count: Callable[[], T], text_bytes: int) -> T:
        """Run `count`, of so much text, off the event loop where it is long."""
        if text_bytes < self.fleet_config.count_inline_bytes:
            return count()
        return await asyncio.get_running_loop().run_in_executor(self._threads, count)

    async def body_of(self, request: web.Request) -> bytes:
        """`body`, without its timer where everything has come with the head."""
        content = request.content
        if content.is_eof() and (request.content_length or 0) <= limits.MAX_BODY_BYTES and content.exception() is None:
            return content.read_nowait()  # bounded: more than its buffers hold does not come with a head
        return await self.body(request)

    def core_id(self, request_id: str) -> str:
        """An id for the core: clients may use theirs twice at once."""
        self._ids += 1
        return f"{request_id}#{self._ids}"

    def usually_decided(self, tenant: str) -> Decided:
        """What is decided of a tenant's calls on a quiet day: only what keeps its cached prefixes apart at the workers.

        The same on every gateway; nothing where there are no tenants.
        """
        decided = self._decided.get(tenant)
        if decided is None:
            salt = hashlib.sha256(tenant.encode()).hexdigest()[:SALT_CHARS] if tenant else None
            decided = self._decided[tenant] = Decided(cache_salt=salt)
        return decided

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


FLEET = web.AppKey("headway.fleet", FleetService)
