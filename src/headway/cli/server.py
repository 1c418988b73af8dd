"""Assembles the server, engine and gateway, and ends it: the first signal drains, the second stops at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from socket import socket
from typing import Any

import uvloop

from headway.cli.address import bound_socket, unusable, url_of
from headway.cli.banner import banner, counted
from headway.cli.config import ServeConfig
from headway.cli.keeping import Keeping, check_store
from headway.cli.layers import KEYS, Effective, Layers
from headway.cli.load_line import tell_load
from headway.cli.progress import shown_progress
from headway.cli.reloading import Reloading
from headway.cli.spans import exporting, traced
from headway.engine import Engine
from headway.engine.engine import RECONFIGURABLE
from headway.engine.journal import open_log
from headway.gateway import GatewayConfig, create_app, listening
from headway.models import DEFAULT_MODEL
from headway.workers.lifeline import SECRET

log = logging.getLogger("headway")


class StopSignals:
    """SIGTERM and SIGINT: the first asks to finish what runs, the second insists."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        self.number = 0  # of the last one
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrived, number)

    def _arrived(self, number: int) -> None:
        self.number = number
        (self.insisted if self.asked.is_set() else self.asked).set()


def run_server(layers: Layers, effective: Effective) -> None:
    """Serve until signalled. Raises ConfigError for an unusable address or log, ModelError for an unusable model."""
    config = effective.config
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with bound_socket(config.host, config.port) as sock:
        for path, kind in ((config.engine.step_log, "step"), (config.engine.decision_log, "decision")):
            if path is not None:  # as with the port: what cannot be had must be known before a model is loaded
                open_log(path, kind).close()
        check_store(config)
        uvloop.run(_serve(layers, effective, sock))


async def _serve(layers: Layers, effective: Effective, sock: socket) -> None:
    config = effective.config
    tracing = exporting() if config.otel else None
    model = effective.model or DEFAULT_MODEL
    with shown_progress("starting") as report:
        engine = Engine(model, config.engine, report=report)
        await engine.start()
    signals = StopSignals()
    name = config.served_model_name or engine.model.name
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(Reloading(EngineReload(engine, layers, effective)))
        app = create_app(engine, gateway_config(config, name))
        await stack.enter_async_context(traced(app, tracing))
        keeping = Keeping.of_engine(app, engine, config)
        try:
            await keeping.open()
            await stack.enter_async_context(listening(app, sock))
        except OSError as error:  # somebody else began to listen while the model was loading
            raise unusable(config.host, config.port, error) from error
        finally:
            # Whatever happens, and before the gateway closes: it ends the streams that are left, and the gateway has
            # only to flush them.
            stack.push_async_callback(engine.close)
            stack.push_async_callback(keeping.close)
        load = asyncio.create_task(tell_load(engine.snapshot))
        stack.callback(load.cancel)
        print(banner(engine, name, url_of(sock)), flush=True)
        await signals.asked.wait()
        await keeping.drain()
        await _drain(engine, keeping, signals, config.drain_timeout)


class EngineReload:
    """Reads the file again: what an engine can change while it serves holds when the call returns."""

    def __init__(self, engine: Engine, layers: Layers, effective: Effective) -> None:
        self._engine = engine
        self._layers = layers
        self._said = effective  # an operator may have changed the engine's own settings since

    async def __call__(self) -> Mapping[str, Any]:
        """Raises ConfigError, and then everything is as it was."""
        asked = await asyncio.to_thread(self._layers.read)
        differ = [name for name in KEYS if asked.value(name) != self._said.value(name)]
        live = [name for name in differ if name in RECONFIGURABLE]
        if live:
            self._engine.reconfigure(**{name: asked.value(name) for name in live})
            engine = replace(self._said.config.engine, **{name: asked.value(name) for name in live})
            self._said = replace(self._said, config=replace(self._said.config, engine=engine))
        told = {"changed": live, "needs_restart": [name for name in differ if name not in live]}
        return {kind: [KEYS[name].name for name in names] for kind, names in told.items()}


def gateway_config(config: ServeConfig, name: str) -> GatewayConfig:
    """What the edge is told of the flags."""
    origins = (config.allowed_origins or "").split(",")
    return GatewayConfig(
        served_model_name=name,
        secret=os.environ.get(SECRET, ""),
        generation_config=config.generation_config,
        metrics_names=config.metrics_names,
        allowed_origins=tuple(origin.strip().rstrip("/") for origin in origins if origin.strip()),
    )


async def _drain(engine: Engine, keeping: Keeping, signals: StopSignals, timeout_s: float) -> None:
    """Refuse what is new and let the rest finish, until `timeout_s` is over or a second signal comes."""
    inside = engine.snapshot().requests
    log.info("stopping: %s may finish within %.0f s; signal again to stop at once", counted(inside), timeout_s)
    drained = asyncio.create_task(_ended(engine, keeping))
    insisted = asyncio.create_task(signals.insisted.wait())
    await asyncio.wait({drained, insisted}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not drained.done():
        cause = "a second signal came" if insisted.done() else f"{timeout_s:.0f} s are over"
        log.warning("%s: %s ended with an error", cause, counted(engine.snapshot().requests))
    for task in (drained, insisted):
        task.cancel()


async def _ended(engine: Engine, keeping: Keeping) -> None:
    await engine.drain()
    await keeping.ended()
