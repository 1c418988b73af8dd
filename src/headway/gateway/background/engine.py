"""Kept calls through the front of an engine in this process."""

from __future__ import annotations

import time

import msgspec
from aiohttp import web

from headway.core.front.front import Front
from headway.core.front.spare import BATCH_PRIORITY, check_possible, has_spare
from headway.core.request import BATCH, NO_SLO, Usage
from headway.gateway import inform
from headway.gateway.app import installed_version
from headway.gateway.background.app import add_background_routes
from headway.gateway.background.config import BackgroundConfig
from headway.gateway.background.metrics import BackgroundCollector
from headway.gateway.background.routes import answer_kept
from headway.gateway.background.service import Background
from headway.gateway.background.work import BACKGROUND, CHAT, Answered, Kept, Wanted
from headway.gateway.generate import whole_answer
from headway.gateway.openapi import describe, routes
from headway.gateway.prepare import Call
from headway.gateway.service import SERVICE, Service
from headway.wire.responses import Index


def attach(app: web.Application, front: Front, config: BackgroundConfig) -> Background:
    """Give an engine's edge a store, before it is started. To open and close it is its owner's affair."""
    service = app[SERVICE]
    runs = EngineRuns(service, front)
    background = Background(runs, config)
    service.metrics.registry.register(BackgroundCollector(background))
    described = describe(service.names, installed_version(), store=True)
    app[inform.DESCRIPTION] = msgspec.json.encode(described)
    app[inform.INDEX] = Index(version=installed_version(), models=list(service.names), routes=routes(described))
    service.divert = EngineDiverting(runs, background)
    add_background_routes(app, background, lambda _: "")
    return background


class EngineRuns:
    """`front` is the engine's own."""

    def __init__(self, service: Service, front: Front) -> None:
        self._service = service
        self._front = front

    def has_spare(self) -> bool:
        return has_spare(self._front)

    async def prepared(self, path: str, body: bytes) -> Call:
        """Tokenised where nobody has to wait for that. Raises `InvalidRequest`, `NotFound`."""
        preparer = self._service.preparer
        call = await self._service.prepared_aside(preparer.chat if path == CHAT else preparer.completion, body)
        for one in call.requests:
            one.pool, one.priority, one.slo = BATCH, max(one.priority, BATCH_PRIORITY), NO_SLO
        return call

    async def run(self, kept: Kept) -> Answered:
        began_s = time.monotonic()
        call = await self.prepared(kept.path, kept.body)
        told = await whole_answer(self._service, call, kept.path)
        cached = sum(output.usage.cached_tokens for output in told.outputs if output.usage is not None)
        return Answered(
            status=200,
            body=told.body(),
            usage=Usage(call.prompt_tokens, told.output_tokens, min(cached, call.prompt_tokens)),
            wall_s=time.monotonic() - began_s,
        )

    def check(self, call: Call) -> None:
        """Raises `InvalidRequest` for what could never be let in."""
        for one in call.requests:
            check_possible(self._front, one)


class EngineDiverting:
    """What an engine's edge does with a call that is to be kept."""

    def __init__(self, runs: EngineRuns, background: Background) -> None:
        self._runs = runs
        self._background = background

    async def __call__(self, path: str, body: bytes) -> web.Response:
        """`body` as it came. Raises what is wrong with it now, rather than when nobody is there to hear it."""
        call = await self._runs.prepared(path, body)
        self._runs.check(call)
        return await answer_kept(self._background, Wanted("", path, body, call.model, BACKGROUND))
