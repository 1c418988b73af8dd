"""What every route needs, made once per application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aiohttp import web

from headway.core.errors import Draining, HeadwayError, InvalidRequest
from headway.gateway.backend import Backend
from headway.gateway.config import GatewayConfig
from headway.gateway.prepare import Preparer
from headway.metrics.exporter import Exporter, SnapshotCollector
from headway.wire import limits

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


class Service:
    """The backend, and the parts of the edge that outlive a request."""

    def __init__(self, backend: Backend, config: GatewayConfig) -> None:
        self.backend = backend
        self.config = config
        self.names = (config.served_model_name or backend.model.name,)
        self.preparer = Preparer(backend, self.names)
        self.metrics = Exporter(SnapshotCollector(backend.snapshot, lambda: backend.ready))
        self._threads = ThreadPoolExecutor(config.tokenise_threads, thread_name_prefix="headway-tokenise")

    def check_ready(self) -> None:
        """Raises `Draining`, with the reason, while the engine takes no requests."""
        if not self.backend.ready:
            raise Draining(self.backend.not_ready_reason or "The engine is not ready.", retry_after_s=5.0)

    async def prepared(self, request: web.Request, prepare: Callable[[bytes], T]) -> T:
        """Read the body and run `prepare` on it, off the event loop."""
        body = await self._body(request)
        return await asyncio.get_running_loop().run_in_executor(self._threads, prepare, body)

    async def _body(self, request: web.Request) -> bytes:
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

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


SERVICE = web.AppKey("headway.service", Service)


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than the limit of {limits.MAX_BODY_BYTES:,} bytes. Send less.")
