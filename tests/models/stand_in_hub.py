"""A model hub on this machine: the hub's HTTP API for one repository of a few files, with faults on request."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the hub holds, how it misbehaves, and what it was asked."""

    repository: str
    files: dict[str, bytes]
    break_after: dict[str, int] = field(default_factory=dict)  # file -> bytes sent before the connection is cut, once
    token: str | None = None  # required when set
    url: str = ""
    gets: list[tuple[str, str | None]] = field(default_factory=list)  # file, its Range header

    def fetched(self) -> list[str]:
        return sorted(name for name, _ in self.gets)


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` from a thread until the end of the block; `hub.url` is its address."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(_app(hub))

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        hub.url = f"http://{host}:{port}"
        loop.call_soon(started.set)  # by then the loop is in `run_forever`, which `stop` ends

    def serve() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield hub
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def _app(hub: Hub) -> web.Application:
    app = web.Application()
    for path, answer in (
        ("/api/models/{owner}/{name}/revision/{revision}", _info),
        ("/api/models/{owner}/{name}/tree/{revision}", _tree),
        ("/{owner}/{name}/resolve/{revision}/{file}", _file),
    ):
        app.router.add_get(path, functools.partial(answer, hub))
    return app


def _refusal(hub: Hub, request: web.Request) -> web.Response | None:
    if f"{request.match_info['owner']}/{request.match_info['name']}" != hub.repository:
        return web.Response(
            status=404, headers={"X-Error-Code": "RepoNotFound", "X-Error-Message": "no such repository"}
        )
    if hub.token is not None and request.headers.get("Authorization") != f"Bearer {hub.token}":
        return web.Response(status=401, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": "accept the terms"})
    if request.match_info["revision"] not in ("main", COMMIT):
        return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no revision"})
    return None


async def _info(hub: Hub, request: web.Request) -> web.Response:
    if refusal := _refusal(hub, request):
        return refusal
    siblings = [{"rfilename": name} for name in hub.files]
    return web.json_response({"id": hub.repository, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})


async def _tree(hub: Hub, request: web.Request) -> web.Response:
    if refusal := _refusal(hub, request):
        return refusal
    entries = [
        {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        for name, content in hub.files.items()
    ]
    return web.json_response(entries)


async def _file(hub: Hub, request: web.Request) -> web.StreamResponse:
    if refusal := _refusal(hub, request):
        return refusal
    name = request.match_info["file"]
    content = hub.files.get(name)
    if content is None:
        return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound", "X-Error-Message": "no such file"})
    start, status = 0, 200
    span = request.headers.get("Range")
    if span is not None:
        start, status = int(span.removeprefix("bytes=").split("-")[0]), 206
    body = content[start:]
    response = web.StreamResponse(status=status)
    response.headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
    response.headers["X-Repo-Commit"] = COMMIT
    response.headers["Content-Length"] = str(len(body))
    response.headers["Accept-Ranges"] = "bytes"
    if status == 206:
        response.headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    hub.gets.append((name, span))
    cut = hub.break_after.pop(name, None)
    await response.write(body if cut is None else body[:cut])
    if cut is not None:
        await asyncio.sleep(0.1)  # let what was sent arrive before the connection goes
        assert request.transport is not None
        request.transport.abort()
    return response
