"""A worker that does what a test says, and inputs and outputs in a line each."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from headway.core.batch.climb import Climb
from headway.core.batch.dispatch import Fault, RetryLimits
from headway.offline.batch import Batch, Ended, Wanted
from headway.offline.files import Files
from headway.offline.items import Item, Sketch, sketch
from headway.offline.job import JobLimits
from headway.offline.worker import Answered, Failed

QUICK = RetryLimits(first_rest_ns=1_000_000, longest_rest_ns=10_000_000, patience_ns=300_000_000)


class FakeWorker:
    """`outcome` decides, by item and try; None is a good answer."""

    def __init__(
        self,
        outcome: Callable[[Item, int], Failed | None] = lambda _item, _tries: None,
        *,
        at_once: int = 8,
        delay_s: float = 0.0,
        worker_id: str = "fake",
        models: tuple[str, ...] = (),
    ) -> None:
        self.id = worker_id
        self.batch = 0
        self.models = models
        self.tries: Counter[str] = Counter()
        self.bodies: dict[str, bytes] = {}
        self.most_at_once = 0
        self.started = self.closed = False
        self._running = 0
        self._outcome = outcome
        self._at_once = at_once
        self._delay_s = delay_s

    shared = False

    async def strain(self) -> float:
        return 0.0

    def climb(self) -> Climb:
        return Climb(self._at_once, self._at_once)

    def prepare(self, item: Item) -> Sketch:
        return sketch(item)

    async def start(self) -> None:
        self.started = True

    async def run(self, item: Item, cut: asyncio.Event) -> Answered | Failed:
        self.tries[item.custom_id] += 1
        self.bodies[item.custom_id] = item.body
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            try:
                async with asyncio.timeout(self._delay_s):
                    await cut.wait()
            except TimeoutError:
                pass
            failed = self._outcome(item, self.tries[item.custom_id])
            return failed or answered(item.custom_id)
        finally:
            self._running -= 1

    async def close(self) -> None:
        self.closed = True


def answered(custom_id: str) -> Answered:
    body = json.dumps({"choices": [{"text": f"answer to {custom_id}"}]}).encode()
    return Answered(body=body, input_tokens=10, output_tokens=5)


def failed(fault: Fault, **more: Any) -> Failed:
    return Failed(fault=fault, code=fault.name.lower(), message=f"It is {fault.value}.", **more)


def openai_line(number: int, **body: Any) -> dict[str, Any]:
    return {
        "custom_id": f"item-{number}",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": f"prompt {number}", "max_tokens": 4, **body},
    }


def write_lines(path, lines) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def wanted(**more: Any) -> Wanted:
    return Wanted(**{"limits": JobLimits(retry=QUICK), **more})


def batch(output, worker, wants: Wanted | None = None) -> Batch:
    return Batch(Files(output), wants or wanted(), lambda: [worker])


async def begin(source, output, worker, wants: Wanted | None = None) -> Ended:
    return await batch(output, worker, wants).begin(source)


def read_lines(path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ids(path) -> list[str]:
    return [line["custom_id"] for line in read_lines(path)]
