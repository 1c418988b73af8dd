"""Writing to a client that may read slowly, or not at all: for so long it is waited for, and no longer."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

log = logging.getLogger("headway.gateway")

# Below asyncio's low-water mark (16 KiB) a transport is not paused, and above its high-water mark (64 KiB) it will be.
NEVER_BLOCKS_BYTES = 16 * 1024


class SlowReader(ConnectionError):
    """The client did not take what it was sent within the write timeout."""


async def write_in_time(
    request: web.Request, response: web.StreamResponse, data: bytes, *, timeout_s: float, who: str
) -> None:
    """Send, waiting while the client's buffers are full, but not for ever: then it is cut off. Raises `SlowReader`."""
    transport = request.transport
    if transport is not None and transport.get_write_buffer_size() + len(data) < NEVER_BLOCKS_BYTES:
        await response.write(data)  # the usual case, without the cost of a timer per token
        return
    try:
        async with asyncio.timeout(timeout_s):
            await response.write(data)
    except TimeoutError:
        log.warning("request %s: the client read nothing for %g s and is cut off", who, timeout_s)
        if transport is not None:
            transport.abort()
        raise SlowReader from None
