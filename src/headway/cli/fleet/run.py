"""Runs a gateway, and ends it: the first signal drains, the second stops at once, SIGHUP reads the file again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import sys
from collections.abc import Coroutine
from socket import socket
from typing import TYPE_CHECKING, Any

import uvloop

from headway.cli.address import bound_socket, unusable, url_of
from headway.cli.banner import counted
from headway.cli.config import ServeConfig
from headway.cli.fleet.assemble import Gateway
from headway.cli.keeping import Keeping, check_store
from headway.cli.layers import Effective, Layers
from headway.cli.reloading import Reloading
from headway.cli.server import StopSignals, gateway_config
from headway.cli.spans import exporting, traced
from headway.core.errors import ConfigError
from headway.engine.journal import open_log
from headway.gateway import listening
from headway.gateway.fleet import create_fleet_app

if TYPE_CHECKING:  # an extra
    from headway.gateway.tracing import Tracing

log = logging.getLogger("headway")


def run_gateway(layers: Layers, effective: Effective) -> int | None:
    """Serve until signalled. A status where a signal came before it served. Raises ConfigError for what cannot be."""
    config = effective.config
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    refuse_open_door(config)
    if config.shadow and config.quota_store is not None:
        raise ConfigError(
            "--shadow decides in this process alone: what it took from --quota-store, other gateways would lack. Leave "
            "one of them out.",
            param="shadow",
        )
    if config.engine.decision_log is not None:
        open_log(config.engine.decision_log, "decision").close()
    tracing = exporting() if config.otel else None
    check_store(config)
    gateway = Gateway(layers, effective, gateway_config(config, ""))
    with bound_socket(config.host, config.port) as sock:
        return uvloop.run(_serve(gateway, config, sock, tracing))


def refuse_open_door(config: ServeConfig) -> None:
    """Whoever reaches this machine could use its workers: only by the operator's own word. Raises ConfigError."""
    if config.api_keys is None and not config.allow_anonymous and not _is_loopback(config.host):
        raise ConfigError(
            f"--host {config.host} can be reached from other machines, and there are no API keys: anybody could use "
            "the workers. Give --api-keys FILE (`headway keys create` makes one), or --allow-anonymous if that is "
            "meant.",
            param="host",
        )


async def _serve(gateway: Gateway, config: ServeConfig, sock: socket, tracing: Tracing | None) -> int | None:
    signals = StopSignals()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(gateway.close_log)
        stack.enter_context(Reloading(gateway.reload))
        # What is still being answered when the server closes ends with an error that its client can be told.
        stack.push_async_callback(gateway.close)
        keeping = Keeping.of_gateway(gateway.service, config)
        stack.push_async_callback(keeping.close)
        await keeping.open()
        if not await _started(gateway, signals):
            print("\nheadway: stopped while starting", file=sys.stderr)
            return 128 + signals.number
        app = create_fleet_app(gateway.service, keeping.routes)
        await stack.enter_async_context(traced(app, tracing))
        try:
            await stack.enter_async_context(listening(app, sock))
        except OSError as error:
            raise unusable(config.host, config.port, error) from error
        print(banner(gateway, config, url_of(sock)), flush=True)
        # What is there now stays, and a call leaves thousands of small objects that have no cycles: the collector's own
        # pace would look through all of it hundreds of times a second.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await signals.asked.wait()
        await keeping.drain()
        await _drain(gateway, keeping, signals, gateway.effective.config.drain_timeout)
        await keeping.close()
        await gateway.close()
    return None


async def _started(gateway: Gateway, signals: StopSignals) -> bool:
    """False when a signal came first: local engines take their time."""
    starting = asyncio.create_task(gateway.start())
    asked = asyncio.create_task(signals.asked.wait())
    try:
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            return True
        return False
    finally:
        for task in (starting, asked):
            task.cancel()


def banner(gateway: Gateway, config: ServeConfig, url: str) -> str:
    """What is in effect."""
    names = [f"{member.spec.id} ({member.url})" if member.url else member.spec.id for member in gateway.members]
    keys = "none: everybody is one tenant" if gateway.ring is None else f"{len(gateway.ring)} in {config.api_keys}"
    if gateway.ring is not None and config.allow_anonymous:
        keys += "; who has none is let in"
    rows = {
        "Goal": f"{config.goal}; --print-config shows what it sets" if config.goal is not None else "",
        "Workers": ", ".join(names) or "none yet: POST /admin/workers adds one",
        "API keys": keys,
        "Limits": f"{counted(config.engine.max_waiting)} waiting",
        "Quotas": _quotas(gateway),
        "Shadow": "nothing is enforced: what the limits would do is counted and logged" if config.shadow else "",
        "Listening": url,
        "Try": f"curl {url}/v1/models",
    }
    return "\n".join(f"{label:<11}{text}" for label, text in rows.items() if text)


def _quotas(gateway: Gateway) -> str:
    quotas = gateway.quotas
    return f"shared at {quotas.where} by {quotas.sharing.gateways} gateways" if quotas is not None else ""


async def _drain(gateway: Gateway, keeping: Keeping, signals: StopSignals, timeout_s: float) -> None:
    inside = gateway.front.admission.requests
    log.info("stopping: %s may finish within %.0f s; signal again to stop at once", counted(inside), timeout_s)
    ends: tuple[Coroutine[Any, Any, Any], ...] = (_ended(gateway, keeping), signals.insisted.wait())
    tasks = [asyncio.create_task(end) for end in ends]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if not tasks[0].done():
        log.warning("%s ended with an error", counted(gateway.front.admission.requests))
    for task in tasks:
        task.cancel()


async def _ended(gateway: Gateway, keeping: Keeping) -> None:
    await gateway.driver.drain()
    await keeping.ended()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
