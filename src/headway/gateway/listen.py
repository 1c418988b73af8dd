"""A listening server around the application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from headway.core.errors import ConfigError
from headway.gateway.config import GatewayConfig
from headway.gateway.service import SERVICE


def make_runner(app: web.Application) -> web.AppRunner:
    """What serves `app`, set up the way its routes rely on. The owner calls `setup`, adds sites, calls `cleanup`."""
    config: GatewayConfig = app[SERVICE].config
    return web.AppRunner(
        app,
        handle_signals=False,
        handler_cancellation=True,  # a client that leaves cancels its handler, which frees what it held
        access_log=None,
        keepalive_timeout=config.keepalive_timeout_s,
        shutdown_timeout=config.shutdown_timeout_s,
        max_line_size=config.max_header_bytes,
        max_field_size=config.max_header_bytes,
    )


@contextlib.asynccontextmanager
async def listening(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve `app` while the context lasts; yields the address, e.g. `http://127.0.0.1:8000`. Port 0 picks a free one.

    Raises `ConfigError` when the address cannot be had.
    """
    runner = make_runner(app)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(f"Cannot listen on {host}:{port}: {error.strerror}.", param="port") from error
        yield f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
