"""The workers of a batch: the model in this process or servers, here or in the actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from headway.cli.batch.flags import Asked
from headway.cli.key import key_of_environment
from headway.core.batch.promises import Promises
from headway.core.errors import ConfigError
from headway.models import DEFAULT_MODEL, Progress
from headway.offline.worker import Worker
from headway.wire.http_address import http_address


def workers_of(asked: Asked) -> Sequence[Worker]:
    """Raises `ConfigError`."""
    urls = [http_address(url).url for url in asked.work.url]
    if len(set(urls)) < len(urls):
        raise ConfigError("--url names a server twice; each is one worker, whose concurrency is found out.")
    if asked.work.on == "ray":
        return _on_ray(asked, urls)
    return [_server(asked, url, key_of_environment(url) or "") for url in urls] if urls else [_engine(asked)]


def _on_ray(asked: Asked, urls: Sequence[str]) -> Sequence[Worker]:
    from headway.offline.on_ray import RayWorker, connect, places

    work = asked.work
    connect(work.ray_address)
    if urls:
        return [
            RayWorker(place, partial(_server, asked, place.name, key_of_environment(place.name) or ""))
            for place in places(None, 0.0, names=urls)
        ]
    return [
        RayWorker(place, partial(_quiet_engine, asked, max(1, int(place.cpus))))
        for place in places(work.ray_workers, work.ray_gpus)
    ]


def _server(asked: Asked, url: str, key: str) -> Worker:
    from headway.offline.remote import ServerConfig, ServerWorker

    work = asked.work
    first, most = (work.concurrency, work.concurrency) if work.concurrency else (8, work.max_concurrency)
    return ServerWorker(
        ServerConfig(
            url=url,
            api_key=key,
            item_timeout_s=work.item_timeout,
            first=min(first, most),
            most=most,
            model=work.model or "",
            promises=Promises(ttft_s=work.protect_ttft, itl_s=work.protect_itl),
        )
    )


def _quiet_engine(asked: Asked, cpus: int) -> Worker:
    """In an actor, where nobody looks. It computes on its share of the node, unless --threads says otherwise."""
    from headway.cli.batch.answering import prepare_of
    from headway.engine import Engine
    from headway.offline.local import EngineWorker

    model = asked.work.model or DEFAULT_MODEL
    config = asked.engine if asked.engine.threads else replace(asked.engine, threads=cpus)
    return EngineWorker(lambda: Engine(model, config), prepare_of, names=[model])


def _engine(asked: Asked) -> Worker:
    from headway.cli.batch.answering import prepare_of
    from headway.cli.progress import shown_progress
    from headway.engine import Engine
    from headway.offline.local import EngineWorker

    model = asked.work.model or DEFAULT_MODEL
    report: Callable[[Progress], None] | None = None

    def engine_of() -> Engine:
        return Engine(model, asked.engine, report=lambda progress: report(progress) if report is not None else None)

    class ShownWorker(EngineWorker):
        """A model that is fetched or converted says how far it is, and a signal ends it there and then."""

        async def start(self) -> None:
            nonlocal report
            with shown_progress("starting") as report:
                await super().start()
            report = None

    return ShownWorker(engine_of, prepare_of, names=[model])
