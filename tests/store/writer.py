"""A process to be killed: it works through rounds of jobs, files and a batch, and says each thing after it was done.

Run as `python writer.py DIRECTORY LOG`. Every line of LOG is written by one call and stays when the process is killed.
What is to be done next follows from what is in the store, as in a server that restarts; the log is never read here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headway.store import BatchState, ItemResult, ItemState, NewItem, NotFound, Store

ROUNDS = 40
JOBS = 60  # of each round
FILES = 3
LINES = 200
TENANT = "t"
NOW_S = 1_750_000_000.0


def answer(name: str) -> bytes:
    return f"answer to {name} ".encode() * 50


def content(name: str) -> bytes:
    return f"content of {name} ".encode() * 2000


def output() -> bytes:
    return b"".join(b"%d\n" % line for line in range(1, LINES + 1))


class Writer:
    def __init__(self, directory: Path, log: Path) -> None:
        self.store = Store.open(directory, holder="the writer", now_s=NOW_S)
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, *words: object) -> None:
        os.write(self.log, (" ".join(map(str, words)) + "\n").encode())

    def run(self) -> None:
        self.say("started")
        for number in range(ROUNDS):
            self.round(f"b{number}", number * JOBS)
        self.say("all", "done")

    def round(self, batch: str, first_job: int) -> None:
        if self.state(batch) is BatchState.COMPLETED:
            return
        if self.state(batch) is BatchState.VALIDATING:
            lines = (NewItem(line, f"id-{line}", b"hash") for line in range(1, LINES + 1))
            self.store.items.add(batch, lines, per_transaction=50)
            self.store.batches.move(batch, BatchState.IN_PROGRESS, NOW_S)
        created = len(self.store.jobs.list(TENANT, limit=10_000).items)
        for job in range(max(first_job, created), first_job + JOBS):
            self.create(f"job_{job}")
            self.work_on_a_job()
            self.finish_items(batch)
        while self.work_on_a_job() or self.finish_items(batch):
            pass
        for number in range(FILES):
            self.receive(f"{batch}-{number}")
        self.end(batch)

    def state(self, batch: str) -> BatchState:
        try:
            return self.store.batches.find(batch).state
        except NotFound:
            made = self.store.batches.create(batch, TENANT, input_file_id="f", endpoint="/v1/completions", now_s=NOW_S)
            return made.state

    def create(self, name: str) -> None:
        self.store.jobs.create(
            name, TENANT, b"x" * 3000, kind="background", endpoint="/v1/completions", now_s=NOW_S, max_tries=99
        )
        self.say("created", name)

    def work_on_a_job(self) -> bool:
        claim = self.store.jobs.claim_next("the writer", NOW_S, lease_s=3600)
        if claim is None:
            return False
        self.store.jobs.progress(claim, NOW_S, lease_s=3600, tokens=1)
        self.store.jobs.complete(claim, answer(claim.job.id), NOW_S)
        self.say("finished", claim.job.id)
        return True

    def finish_items(self, batch: str) -> bool:
        missing = self.store.items.page(batch, limit=7, state=ItemState.PENDING)
        if not missing:
            return False
        results = [ItemResult(line=item.line, state=ItemState.COMPLETED, output_tokens=item.line) for item in missing]
        self.store.items.record(batch, results, NOW_S)
        self.say("recorded", *(f"{batch}/{item.line}" for item in missing))
        return True

    def receive(self, name: str) -> None:
        if name in {file.id for file in self.store.files.list(TENANT).items}:
            return
        with self.store.contents.receive(name) as incoming:
            incoming.write(content(name))
            self.store.files.add(incoming.finish(), name, TENANT, filename=name, purpose="user_data", now_s=NOW_S)
        self.say("stored", name)

    def end(self, batch: str) -> None:
        name = f"{batch}-out"
        if self.store.batches.find(batch).state is BatchState.IN_PROGRESS:
            spooled = self.store.contents.spool / batch
            spooled.write_bytes(b"".join(b"%d\n" % item.line for item in self.store.items.each(batch)))
            self.store.files.add(
                self.store.contents.measure(spooled), name, TENANT, filename="o", purpose="batch_output", now_s=NOW_S
            )
            self.store.batches.move(batch, BatchState.FINALIZING, NOW_S)
        self.store.batches.move(batch, BatchState.COMPLETED, NOW_S, output_file_id=name)
        self.say("ended", batch)


if __name__ == "__main__":
    Writer(Path(sys.argv[1]), Path(sys.argv[2])).run()
