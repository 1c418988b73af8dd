"""What every route needs, made once per application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

from headway.core.errors import HeadwayError, InvalidRequest
from headway.gateway.backend import Backend
from headway.gateway.config import GatewayConfig
from headway.gateway.prepare import Preparer
from headway.metrics.exporter import EdgeExporter, Exporter, PromiseCollector, SnapshotCollector, vllm_numbers
from headway.wire import limits, translate

if TYPE_CHECKING:  # an extra
    from headway.gateway.tracing import Tracing

T = TypeVar("T")

log = logging.getLogger("headway.gateway")


class BodyTooLarge(HeadwayError):
    """Refused unread: the client can only send less."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class BodyTooSlow(HeadwayError):
    """The body did not arrive in time."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class Edge:
    """What every application here has, whatever is behind it: its numbers, and a limit to what a client may send."""

    def __init__(self, config: GatewayConfig, metrics: EdgeExporter) -> None:
        self.config = config
        self.metrics = metrics
        self.tracing: Tracing | None = None

    async def body(self, request: web.Request) -> bytes:
        """The body, within its limits of size and time. Raises `BodyTooLarge`, `BodyTooSlow` or `InvalidRequest`."""
        if (request.content_length or 0) > limits.MAX_BODY_BYTES:
            raise _too_large()
        try:
            async with asyncio.timeout(self.config.body_timeout_s):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise _too_large() from None
        except TimeoutError:
            raise BodyTooSlow(
                f"The request body did not arrive within {self.config.body_timeout_s:g} s. Send it again."
            ) from None
        except web.RequestPayloadError as error:
            raise InvalidRequest(f"The request body cannot be read: {error}.", code="invalid_body") from None


class Service(Edge):
    """The backend, and the parts of the edge that outlive a request."""

    metrics: Exporter

    def __init__(self, backend: Backend, config: GatewayConfig) -> None:
        self.backend = backend
        self.names = (config.served_model_name or backend.model.name,)
        collector = SnapshotCollector(backend.snapshot, lambda: not backend.not_ready_reason, self.names[0])
        super().__init__(config, Exporter(collector))
        self.metrics.registry.register(PromiseCollector(lambda: backend.default_slo))
        recommended = backend.model.sampling_defaults if config.generation_config == "auto" else {}
        self.sampling_defaults = {**translate.SAMPLING_DEFAULTS, **recommended}
        if config.metrics_names == "vllm":
            block_size = getattr(getattr(backend, "info", None), "block_size", None)
            self.metrics.tell_as_vllm(lambda: vllm_numbers(backend.snapshot(), self.names[0], block_size))
        self.preparer = Preparer(backend, self.names, self.sampling_defaults)
        self._threads = ThreadPoolExecutor(config.tokenise_threads, thread_name_prefix="headway-tokenise")
        # Keeps a call (its path, its body) for later; None where there is no store.
        self.divert: Callable[[str, bytes], Awaitable[web.Response]] | None = None
        # Whoever only counts tokens, of however much text, does not stand in the way of those who want an answer.
        self._side_thread = ThreadPoolExecutor(1, thread_name_prefix="headway-tokenise-aside")

    async def prepared(self, prepare: Callable[[bytes], T], body: bytes) -> T:
        """Run `prepare` on a call's body, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, prepare, body)

    async def prepared_aside(self, prepare: Callable[[bytes], T], body: bytes) -> T:
        """The same for work that no generation waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._side_thread, prepare, body)

    def close(self) -> None:
        for threads in (self._threads, self._side_thread):
            threads.shutdown(wait=False, cancel_futures=True)


EDGE = web.AppKey("headway.edge", Edge)
SERVICE = web.AppKey("headway.service", Service)


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than the limit of {limits.MAX_BODY_BYTES:,} bytes. Send less.")
