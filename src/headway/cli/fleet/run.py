"""Runs a gateway, and ends it: the first signal drains, the second stops at once, SIGHUP reads the tables again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
from collections.abc import Coroutine
from pathlib import Path
from socket import socket
from typing import Any

import uvloop

from headway.cli.address import bound_socket, unusable, url_of
from headway.cli.banner import counted
from headway.cli.config import ServeConfig
from headway.cli.fleet.assemble import Gateway
from headway.cli.fleet.tables import FleetTables
from headway.cli.server import StopSignals, gateway_config
from headway.core.errors import ConfigError
from headway.engine.journal import open_log
from headway.gateway import listening
from headway.gateway.fleet import create_fleet_app

log = logging.getLogger("headway")


def run_gateway(config: ServeConfig, tables: FleetTables, tables_file: Path | None) -> None:
    """Serve until signalled. Raises ConfigError for what cannot be."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    refuse_open_door(config)
    if config.engine.decision_log is not None:
        open_log(config.engine.decision_log, "decision").close()
    gateway = Gateway(config, gateway_config(config, ""), tables, tables_file)
    with bound_socket(config.host, config.port) as sock:
        uvloop.run(_serve(gateway, config, sock))


def refuse_open_door(config: ServeConfig) -> None:
    """Whoever reaches this machine could use its workers: only by the operator's own word. Raises ConfigError."""
    if config.api_keys is None and not config.allow_anonymous and not _is_loopback(config.host):
        raise ConfigError(
            f"--host {config.host} can be reached from other machines, and there are no API keys: anybody could use "
            "the workers. Give --api-keys FILE (`headway keys create` makes one), or --allow-anonymous if that is "
            "meant.",
            param="host",
        )


async def _serve(gateway: Gateway, config: ServeConfig, sock: socket) -> None:
    signals = StopSignals()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, gateway)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(gateway.close_log)
        # What is still being answered when the server closes ends with an error that its client can be told.
        stack.push_async_callback(gateway.close)
        await gateway.start()
        try:
            await stack.enter_async_context(listening(create_fleet_app(gateway.service), sock))
        except OSError as error:
            raise unusable(config.host, config.port, error) from error
        print(banner(gateway, config, url_of(sock)), flush=True)
        # What is there now stays, and a call leaves thousands of small objects that have no cycles: the collector's own
        # pace would look through all of it hundreds of times a second.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await signals.asked.wait()
        await _drain(gateway, signals, config.drain_timeout)
        await gateway.close()


def banner(gateway: Gateway, config: ServeConfig, url: str) -> str:
    """What is in effect."""
    workers = ", ".join(f"{member.spec.id} ({member.url})" for member in gateway.members)
    keys = "none: everybody is one tenant" if gateway.ring is None else f"{len(gateway.ring)} in {config.api_keys}"
    if gateway.ring is not None and config.allow_anonymous:
        keys += "; who has none is let in"
    rows = {
        "Workers": workers or "none yet: POST /admin/workers adds one",
        "API keys": keys,
        "Limits": f"{counted(config.engine.max_waiting)} waiting",
        "Listening": url,
        "Try": f"curl {url}/v1/models",
    }
    return "\n".join(f"{label:<11}{text}" for label, text in rows.items())


def _reload(gateway: Gateway) -> None:
    try:
        gateway.reload()
    except ConfigError as error:
        log.error("nothing was reloaded: %s", error.message)
    else:
        log.info("tenants' limits and API keys were read again")


async def _drain(gateway: Gateway, signals: StopSignals, timeout_s: float) -> None:
    inside = gateway.front.admission.requests
    log.info("stopping: %s may finish within %.0f s; signal again to stop at once", counted(inside), timeout_s)
    ends: tuple[Coroutine[Any, Any, Any], ...] = (gateway.driver.drain(), signals.insisted.wait())
    tasks = [asyncio.create_task(end) for end in ends]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not tasks[0].done():
        log.warning("%s ended with an error", counted(gateway.front.admission.requests))
    for task in tasks:
        task.cancel()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
