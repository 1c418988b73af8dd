"""A writer is killed (SIGKILL) at random moments, twenty times: nothing finished is lost, or finished twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from headway.child_process import environment
from headway.store import BatchState, ItemState, JobState, NotFound, Store, WrongVersion
from tests.store import writer

KILLS = 20
STEPS = 150  # a kill comes after up to so many things were done since the start
PATIENCE_S = 60.0


def start(directory, log):
    return subprocess.Popen(
        [sys.executable, writer.__file__, str(directory), str(log)], env=environment(), stderr=subprocess.PIPE
    )


def said(log):
    return log.read_text().splitlines() if log.exists() else []


def kill_while_starting(directory, log, chance):
    with start(directory, log) as child:
        time.sleep(chance.uniform(0.0, 0.3))
        child.kill()


def kill_while_working(directory, log, chance):
    enough = len(said(log)) + 1 + chance.randrange(STEPS)
    with start(directory, log) as child:
        assert child.stderr is not None
        give_up_s = time.monotonic() + PATIENCE_S
        while len(said(log)) < enough:
            assert child.poll() is None, child.stderr.read().decode() or "it finished before it could be killed"
            assert time.monotonic() < give_up_s
        time.sleep(chance.uniform(0.0, 0.003))
        assert child.poll() is None, "a kill of what has finished proves nothing"
        child.kill()


def look(directory, log):
    """What was said to be done is there, once and whole, whatever the moment of the kill."""
    done: dict[str, list[str]] = {verb: [] for verb in ("created", "finished", "recorded", "stored", "ended")}
    for line in said(log):
        verb, *names = line.split()
        done.setdefault(verb, []).extend(names)
    for verb, names in done.items():
        assert verb == "all" or max(Counter(names).values(), default=0) <= 1, f"{verb} twice"
    try:
        store = Store.read(directory)
    except (NotFound, WrongVersion):  # killed before its tables were there
        assert said(log) == []
        return
    with store:
        look_at_jobs(store, done)
        look_at_batches(store, done)
        stored = {file.id for file in store.files.list(writer.TENANT).items}
        assert set(done["stored"]) <= stored
        for name in stored:
            expected = writer.output() if name.endswith("-out") else writer.content(name)
            assert b"".join(store.files.read(name, writer.TENANT)) == expected
        store.check()


def look_at_jobs(store, done):
    states = {job.id: job.state for job in store.jobs.list(writer.TENANT, limit=10_000, order="asc").items}
    assert list(states) == [f"job_{number}" for number in range(len(states))], "in order, none missing or doubled"
    assert set(done["created"]) <= set(states)
    assert all(states[name] is JobState.COMPLETED for name in done["finished"])
    for name, state in states.items():
        assert store.jobs.response(name) == (writer.answer(name) if state is JobState.COMPLETED else None)
        assert len(store.jobs.request(name)) == 3000


def look_at_batches(store, done):
    batches = store.batches.list(writer.TENANT, limit=1000).items
    ended = set()
    for batch in batches:
        lines = [item.line for item in store.items.each(batch.id, state=ItemState.COMPLETED)]
        assert (batch.completed, batch.output_tokens) == (len(lines), sum(lines)), "counts and items go together"
        assert batch.missing == sum(1 for _ in store.items.missing(batch.id))
        ended |= {f"{batch.id}/{line}" for line in lines}
    assert set(done["recorded"]) <= ended
    assert set(done["ended"]) <= {batch.id for batch in batches if batch.state is BatchState.COMPLETED}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_finished_is_lost_or_doubled(directory, tmp_path):
    log = tmp_path / "log"
    chance = random.Random(20)
    for number in range(KILLS):
        kill = kill_while_starting if number % 5 == 0 else kill_while_working
        kill(directory, log, chance)
        look(directory, log)
    with start(directory, log) as last:  # what is left to do is done, and all is as if nothing had happened
        _, complaint = last.communicate(timeout=PATIENCE_S * 5)
        assert last.returncode == 0, complaint.decode()
    look(directory, log)
    assert said(log)[-1] == "all done"
    with Store.read(directory) as store:
        jobs = store.jobs.list(writer.TENANT, limit=10_000).items
        assert len(jobs) == writer.ROUNDS * writer.JOBS
        assert all(job.state is JobState.COMPLETED for job in jobs)
        batches = store.batches.list(writer.TENANT, limit=1000, order="asc").items
        assert [batch.id for batch in batches] == [f"b{number}" for number in range(writer.ROUNDS)]
        for batch in batches:
            assert (batch.state, batch.total, batch.completed) == (BatchState.COMPLETED, writer.LINES, writer.LINES)
        files = {file.id for file in store.files.list(writer.TENANT).items}
        assert len(files) == writer.ROUNDS * (writer.FILES + 1)
        assert {path.name for path in (Path(directory) / "files").iterdir()} == files
        for folder in ("incoming", "spool"):
            assert list((Path(directory) / folder).iterdir()) == []
