"""Measures what the dashboard costs: time to first paint, and the server's share of a core without and with a viewer.

python -m tests.gateway.dashboard.measure [SECONDS]

Starts a server with a simulated executor and a gateway before two of them; nobody asks them anything meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from tests.cli.running import Server
from tests.gateway.dashboard.browsing import browsing, shown

TICKS_PER_S = 100
PAINTS = 7


def cpu_s(pid: int) -> float:
    """User and system time of a process, from the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def share(pid: int, seconds: float) -> float:
    before, begun = cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - begun)


async def measure(name: str, server: Server, seconds: float) -> None:
    async with browsing() as browser:
        paints = []
        for _ in range(PAINTS):
            async with shown(browser, server.url) as seen:
                await seen.ready()
                paints.append(
                    await seen.page.evaluate(
                        "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
                    )
                )
        alone = await share(server.process.pid, seconds)
        async with shown(browser, server.url) as seen:
            await seen.ready()
            watched = await share(server.process.pid, seconds)
    paints.sort()
    sys.stdout.write(
        f"{name}: first paint {paints[len(paints) // 2]:.3f} s (median of {PAINTS}, worst {paints[-1]:.3f}), "
        f"CPU {alone:.2%} of a core alone, {watched:.2%} with one viewer: {watched - alone:+.2%}\n"
    )


def main(seconds: float) -> None:
    simulated = ("--executor", "simulated")
    with Server(*simulated) as one, Server(*simulated) as other:
        asyncio.run(measure("engine", one, seconds))
        with Server("--worker", one.url, "--worker", other.url) as gateway:
            asyncio.run(measure("gateway before two", gateway, seconds))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
