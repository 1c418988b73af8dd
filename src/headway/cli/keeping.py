"""`--store`: work that is done later, put together from flags, for an engine as for a gateway."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from aiohttp import web

from headway.cli.banner import counted
from headway.cli.config import ServeConfig, batch_hours
from headway.core.errors import ConfigError
from headway.engine import Engine
from headway.gateway.background import engine, fleet
from headway.gateway.background.config import GIB, BackgroundConfig
from headway.gateway.background.service import HOLDER, Background
from headway.gateway.fleet import FleetService
from headway.store import Store, StoreError

log = logging.getLogger("headway")

GATEWAY_SLOTS = 16


def batch_slots(config: ServeConfig, *, gateway: bool) -> int:
    """How much work of the background runs at a time, at most."""
    slots = config.engine.max_num_seqs
    default = GATEWAY_SLOTS if gateway else slots // 2
    return config.engine.batch_slots or max(1, default)


def check_store(config: ServeConfig) -> None:
    """Open it and close it again: what cannot be had must be known before anything is started. Raises ConfigError."""
    if config.store is not None:
        with _explained():
            Store.open(Path(config.store), holder=HOLDER, now_s=time.time()).close()


class Keeping:
    """What there is to open, drain and close of it. Without a store all of that does nothing."""

    def __init__(self, background: Background | None) -> None:
        self.background = background

    @classmethod
    def of_gateway(cls, service: FleetService, config: ServeConfig) -> Keeping:
        settings = _settings(config, gateway=True)
        return cls(fleet.attach(service, settings) if settings is not None else None)

    @classmethod
    def of_engine(cls, app: web.Application, served: Engine, config: ServeConfig) -> Keeping:
        settings = _settings(config, gateway=False)
        return cls(engine.attach(app, served.front, settings) if settings is not None else None)

    @property
    def routes(self) -> Callable[[web.Application], None] | None:
        """For a gateway's application; an engine's has them already."""
        return fleet.routes_for(self.background) if self.background is not None else None

    async def open(self) -> None:
        """Raises ConfigError for a store that another process writes, or that is of no use."""
        if self.background is not None:
            with _explained():
                await self.background.open()
            self.background.start()

    async def drain(self) -> None:
        """Begin nothing more; what runs may end."""
        if self.background is not None:
            await self.background.drain()

    async def ended(self) -> None:
        """What runs has ended: an answer that is there is on the disk as well."""
        if self.background is not None:
            await self.background.ended()

    async def close(self) -> None:
        """What still runs is put back, and is done after the next start."""
        if self.background is None:
            return
        if running := self.background.running:
            log.info("%s of the background go on after the next start", counted(running))
        await self.background.close()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise ConfigError(f"--store: {error.message}", param="store") from error


def _settings(config: ServeConfig, *, gateway: bool) -> BackgroundConfig | None:
    if config.store is None:
        return None
    return BackgroundConfig(
        directory=Path(config.store),
        slots=batch_slots(config, gateway=gateway),
        max_queued=config.background_limit,
        max_bytes=int(config.store_gib * GIB),
        timeout_s=config.background_timeout,
        retention_s=config.background_retention,
        batch_retention_s=config.batch_retention,
        batch_hours=batch_hours(config.batch_window),
    )
