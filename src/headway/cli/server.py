"""Assembles the server, engine and gateway, and ends it: the first signal drains, the second stops at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from socket import socket

import uvloop

from headway.cli.address import bound_socket, unusable, url_of
from headway.cli.banner import banner, counted
from headway.cli.config import ServeConfig
from headway.cli.load_line import tell_load
from headway.cli.progress import shown_progress
from headway.engine import Engine
from headway.engine.journal import open_log
from headway.gateway import GatewayConfig, create_app, listening

log = logging.getLogger("headway")


class StopSignals:
    """SIGTERM and SIGINT: the first asks to finish what runs, the second insists."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrived)

    def _arrived(self) -> None:
        (self.insisted if self.asked.is_set() else self.asked).set()


def run_server(model: str, config: ServeConfig) -> None:
    """Serve until signalled. Raises ConfigError for an unusable address or log, ModelError for an unusable model."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with bound_socket(config.host, config.port) as sock:
        for path, kind in ((config.engine.step_log, "step"), (config.engine.decision_log, "decision")):
            if path is not None:  # as with the port: what cannot be had must be known before a model is loaded
                open_log(path, kind).close()
        uvloop.run(_serve(model, config, sock))


async def _serve(model: str, config: ServeConfig, sock: socket) -> None:
    with shown_progress("starting") as report:
        engine = Engine(model, config.engine, report=report)
        await engine.start()
    signals = StopSignals()
    name = config.served_model_name or engine.model.name
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(listening(create_app(engine, gateway_config(config, name)), sock))
        except OSError as error:  # somebody else began to listen while the model was loading
            raise unusable(config.host, config.port, error) from error
        finally:
            # Whatever happens, and before the gateway closes: it ends the streams that are left, and the gateway has
            # only to flush them.
            stack.push_async_callback(engine.close)
        load = asyncio.create_task(tell_load(engine.snapshot))
        stack.callback(load.cancel)
        print(banner(engine, name, url_of(sock)), flush=True)
        await signals.asked.wait()
        await _drain(engine, signals, config.drain_timeout)


def gateway_config(config: ServeConfig, name: str) -> GatewayConfig:
    """What the edge is told of the flags."""
    origins = (config.allowed_origins or "").split(",")
    return GatewayConfig(
        served_model_name=name,
        generation_config=config.generation_config,
        allowed_origins=tuple(origin.strip().rstrip("/") for origin in origins if origin.strip()),
    )


async def _drain(engine: Engine, signals: StopSignals, timeout_s: float) -> None:
    """Refuse what is new and let the rest finish, until `timeout_s` is over or a second signal comes."""
    inside = engine.snapshot().requests
    log.info("stopping: %s may finish within %.0f s; signal again to stop at once", counted(inside), timeout_s)
    drained = asyncio.create_task(engine.drain())
    insisted = asyncio.create_task(signals.insisted.wait())
    await asyncio.wait({drained, insisted}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not drained.done():
        cause = "a second signal came" if insisted.done() else f"{timeout_s:.0f} s are over"
        log.warning("%s: %s ended with an error", cause, counted(engine.snapshot().requests))
    for task in (drained, insisted):
        task.cancel()
