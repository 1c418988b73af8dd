"""The workers of a batch: the model in this process, or servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.cli.batch.flags import Asked, api_key
from headway.core.errors import ConfigError
from headway.models import DEFAULT_MODEL, Progress
from headway.offline.worker import Worker


def workers_of(asked: Asked) -> Sequence[Worker]:
    """Raises `ConfigError`."""
    return _servers(asked) if asked.work.url else [_engine(asked)]


def _servers(asked: Asked) -> list[Worker]:
    from headway.offline.remote import ServerConfig, ServerWorker

    work = asked.work
    first, most = (work.concurrency, work.concurrency) if work.concurrency else (8, work.max_concurrency)
    workers: list[Worker] = [
        ServerWorker(
            ServerConfig(
                url=url,
                api_key=api_key(),
                item_timeout_s=work.item_timeout,
                first=min(first, most),
                most=most,
                model=work.model or "",
            )
        )
        for url in work.url
    ]
    if len({worker.id for worker in workers}) < len(workers):
        raise ConfigError("--url names a server twice; each is one worker, whose concurrency is found out.")
    return workers


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
