"""The gateway's own stack with nothing decided: aiohttp's server, our HTTP client, one upstream after the other.

    python -m benchmarks.sides.bare_proxy PORT UPSTREAM_PORT [UPSTREAM_PORT...]

What the gateway costs beyond this is what its features cost.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import uvloop
from aiohttp import web

from headway.wire.http_client import client_of
from headway.wire.http_pool import Server

MOST_BYTES = 1 << 26


async def serve(port: int, upstreams: list[int]) -> None:
    clients = [client_of(Server("127.0.0.1", upstream), f"127.0.0.1:{upstream}") for upstream in upstreams]
    turns = itertools.cycle(clients)

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        json = [(b"content-type", b"application/json")]
        exchange = next(turns).ask(request.method, request.path, headers=json, body=body, repeatable=True)
        head = await exchange.head()
        kind = head.header(b"content-type").decode()
        if not kind.startswith("text/event-stream"):
            return web.Response(status=head.status, body=await exchange.read_all(MOST_BYTES), content_type=kind)
        response = web.StreamResponse(status=head.status, headers={"content-type": kind})
        await response.prepare(request)
        while piece := await exchange.read():
            await response.write(piece)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
