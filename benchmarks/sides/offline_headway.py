"""Sides `headway…` of the offline benchmark: a batch in this process, as `headway batch run` runs it.

`--no-journal` keeps answers nowhere: what durability costs is the difference. `--instant` answers without an engine,
for inputs of a million lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import offline_job as work
from headway.cli.batch.flags import asked
from headway.cli.batch.workers import workers_of
from headway.core.batch.climb import Climb
from headway.offline import batch
from headway.offline.files import Files
from headway.offline.items import Item, Sketch, sketch
from headway.offline.worker import Answered, Failed, Worker


class Instant:
    """A worker that says the same to everybody, at once."""

    id, batch, models, shared = "instant", 0, (), False
    body = json.dumps({"choices": [{"text": "x" * 200}]}).encode()

    def climb(self) -> Climb:
        return Climb(64, 64)

    def prepare(self, item: Item) -> Sketch:
        return sketch(item)

    async def strain(self) -> float:
        return 0.0

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def run(self, item: Item, cut: asyncio.Event) -> Answered | Failed:  # noqa: ARG002 - the protocol
        return Answered(body=self.body, input_tokens=10, output_tokens=50)


class Nowhere:
    """A journal that keeps nothing."""

    waiting_bytes = 0

    def __init__(self, path: Path, on_failure: Callable[..., None]) -> None: ...
    def append(self, line: bytes) -> None: ...
    def close(self) -> None: ...


def run(source: Path, output: Path, settings: dict[str, Any], *, instant: bool) -> batch.Ended:
    wanted = asked(settings)

    def workers() -> Sequence[Worker]:
        return [Instant()] if instant else workers_of(wanted)

    ended = asyncio.run(batch.Batch(Files(output), wanted.wanted, workers).begin(source))
    if ended.reason or ended.summary.failed:
        raise SystemExit(f"the batch did not end well: {ended.reason} {ended.summary.errors}")
    return ended


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", type=Path, help="instead of the job")
    parser.add_argument("--items", type=int, default=work.ITEMS)
    parser.add_argument("--settings", type=json.loads, default={}, help="of `headway batch run`, as JSON")
    parser.add_argument("--folder", type=Path, help="where outputs are written")
    parser.add_argument("--no-journal", action="store_true")
    parser.add_argument("--instant", action="store_true")
    arguments = parser.parse_args()
    if arguments.no_journal:
        setattr(batch, "Journal", Nowhere)  # noqa: B010 - for good, in this process
    limits = {"max_num_seqs": work.MAX_NUM_SEQS, "max_num_batched_tokens": work.MAX_NUM_BATCHED_TOKENS}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        output = Path(folder) / "out.jsonl"
        if arguments.input is not None:
            ended = run(arguments.input, output, arguments.settings, instant=arguments.instant)
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps({"first_start_s": ended.first_start_s, "peak_bytes": peak_bytes,
                              "wall_s": ended.summary.wall_s, "done": ended.summary.done}))  # fmt: skip
            return
        job = work.make_job(arguments.items, ids=work.ids_of(arguments.settings.get("executor", "openvino")))
        source = Path(folder) / "in.jsonl"
        work.write(job, source)
        ended = run(source, output, {**limits, **arguments.settings}, instant=arguments.instant)
        more = {"cached_tokens": float(ended.summary.cached_tokens)}
        if ended.summary.padding_efficiency_ratio is not None:
            more["padding_ratio"] = 1 - ended.summary.padding_efficiency_ratio
        print(work.told(job, ended.summary.wall_s, ended.summary.output_tokens, **more))


if __name__ == "__main__":
    main()
