"""A listening server around the application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from socket import socket

from aiohttp import web

from headway.gateway.malformed import Runner
from headway.gateway.service import EDGE

# Connections that may wait to be accepted while the loop is busy; a burst beyond it is dropped by the kernel.
BACKLOG = 2048


@contextlib.asynccontextmanager
async def listening(app: web.Application, sock: socket) -> AsyncIterator[None]:
    """Serve `app` on a bound socket while the context lasts, set up the way its routes rely on.

    Raises `OSError` when somebody else listens there.
    """
    config = app[EDGE].config
    runner = Runner(
        app,
        handle_signals=False,
        handler_cancellation=True,  # a client that leaves cancels its handler, which frees what it held
        access_log=None,
        keepalive_timeout=config.keepalive_timeout_s,
        shutdown_timeout=config.shutdown_timeout_s,
        max_line_size=config.max_header_bytes,
        max_field_size=config.max_header_bytes,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, sock, backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()
