"""Engines started here: real ones that answer, and processes that die in every way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import textwrap

import pytest

from headway import child_process
from headway.workers import lifeline
from headway.workers.local import LocalConfig, LocalWorker
from headway.workers.remote import RemoteConfig
from headway.workers.worker import WorkerFailed
from tests.wire.scripted import until
from tests.workers.bodies import OFTEN, Watched, chat

SIMULATED = LocalConfig(arguments=("--executor", "simulated", "--served-model-name", "m"), first_rest_s=0.05)


async def answered(worker: LocalWorker) -> int:
    answer = worker.stream(chat())
    try:
        async for _ in answer:
            pass
        return answer.told.output_tokens
    finally:
        answer.close()


async def test_real_engines_serve_and_come_back_and_leave():
    workers, watched = [LocalWorker(f"local-{number}", SIMULATED) for number in range(2)], Watched()
    await asyncio.gather(*(worker.start(watched) for worker in workers))
    try:
        assert len({worker.url for worker in workers}) == 2
        assert [await answered(worker) for worker in workers] == [3, 3]
        first = workers[0]
        assert first.models == {"m"}
        assert first.load().running is not None
        pid = first.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: first.starts == 2 and first.pid not in (None, pid), 60)
        assert await answered(workers[1]) == 3, "the other one does not notice"

        async def again() -> bool:
            try:
                return await answered(first) == 3
            except WorkerFailed as failure:
                assert failure.code in ("worker_unreachable", "worker_closed")
                return False

        async with asyncio.timeout(60):
            while not await again():
                await asyncio.sleep(0.1)
    finally:
        pids = [worker.pid for worker in workers]
        await asyncio.wait_for(asyncio.gather(*(worker.close() for worker in workers)), 60)
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_running_answer_is_finished_before_a_worker_leaves():
    worker = LocalWorker("local-0", SIMULATED)
    await worker.start(Watched())
    answer = worker.stream(chat(tokens=100))
    await anext(answer)
    process = worker._process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    worker._stopping = True
    async for _ in answer:
        pass
    assert answer.told.output_tokens == 100
    answer.close()
    await asyncio.wait_for(worker.close(), 30)
    assert process.returncode == 0


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A module with a `main` of the test's own."""

    def write(source: str, **config) -> LocalConfig:
        (tmp_path / "stand_in.py").write_text(textwrap.dedent(source))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        usual = {"arguments": (), "module": "stand_in", "first_rest_s": 0.02, "drain_timeout_s": 0.3}
        return LocalConfig(**{**usual, **config})

    return write


async def test_a_crash_loop_ends_and_says_why(program):
    config = program("""
        import sys
        def main():
            print("no memory for this model", file=sys.stderr)
            sys.exit(1)
    """)
    worker, watched = LocalWorker("local-0", config), Watched()
    await asyncio.wait_for(worker.start(watched), 60)
    assert worker.starts == config.crash_limit
    assert "ended with 1, saying: no memory for this model" in worker.down
    assert (False, worker.down) in watched.checks
    answer = worker.stream(chat())
    with pytest.raises(WorkerFailed, match="no memory for this model") as failed:
        await answer.head()
    assert failed.value.code == "worker_unreachable"
    answer.close()
    await worker.close()


async def test_one_that_was_up_and_stays_down_goes_on_saying_why(program):
    """Not that its port refuses connections, which is all that its health check finds."""
    config = program(
        """
        import sys, time
        def main():
            print("Listening  http://127.0.0.1:9", flush=True)
            time.sleep(0.3)
            print("the device is lost", file=sys.stderr)
            sys.exit(1)
        """,
        crash_limit=2,
    )
    nowhere = RemoteConfig(id="local-0", url="http://127.0.0.1:9", intervals=OFTEN)
    worker, watched = LocalWorker("local-0", config, remote=nowhere), Watched()
    await asyncio.wait_for(worker.start(watched), 30)
    await until(lambda: bool(worker.down), 30)
    seen = len(watched.checks)
    await until(lambda: len(watched.checks) > seen + 3, 30)
    assert "the device is lost" in worker.down
    assert set(watched.checks[seen + 1 :]) == {(False, worker.down)}
    await worker.close()


async def test_what_it_cannot_do_is_not_tried_again(program):
    config = program("""
        import sys
        def main():
            print("headway: --max-num-seqs must be at least 1", file=sys.stderr)
            sys.exit(2)
    """)
    worker = LocalWorker("local-0", config)
    await asyncio.wait_for(worker.start(Watched()), 30)
    assert worker.starts == 1
    assert worker.down.endswith("--max-num-seqs must be at least 1")
    await worker.close()


async def test_one_that_is_never_up_is_ended(program):
    config = program("import time\ndef main():\n    time.sleep(600)\n", start_timeout_s=1.0, crash_limit=1)
    worker = LocalWorker("local-0", config)
    await asyncio.wait_for(worker.start(Watched()), 30)
    assert "killed by SIGKILL, saying: it was not up within 1 s" in worker.down
    await worker.close()


async def test_one_that_does_not_want_to_leave_is_made_to(program, monkeypatch):
    monkeypatch.setattr("headway.workers.local.INSIST_S", 0.3)
    config = program("""
        import signal, time
        def main():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("Listening  http://127.0.0.1:9", flush=True)
            while True:
                time.sleep(1)
    """)
    worker = LocalWorker("local-0", config)
    await asyncio.wait_for(worker.start(Watched()), 30)
    process = worker._process
    await asyncio.wait_for(worker.close(), 30)
    assert process is not None
    assert process.returncode == -signal.SIGKILL


async def test_a_worker_that_is_closed_while_it_starts_leaves_nothing(program):
    worker = LocalWorker("local-0", program("import time\ndef main():\n    time.sleep(600)\n"))
    starting = asyncio.create_task(worker.start(Watched()))
    await until(lambda: worker.pid is not None)
    pid = worker.pid
    await asyncio.wait_for(worker.close(), 30)
    await asyncio.wait_for(starting, 10)
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await worker.close()


def test_a_child_leaves_with_whoever_started_it(tmp_path):
    """Even if that was killed: its end of the pipe closes."""
    (tmp_path / "stand_in.py").write_text(
        "import sys, time\ndef main():\n    print('up', sys.argv, flush=True)\n    time.sleep(600)\n"
    )
    environment = child_process.environment()
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    process = subprocess.Popen(
        child_process.command(lifeline.__name__, "stand_in", "serve", "--x"),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "up ['headway', 'serve', '--x']\n"
    process.stdin.close()
    assert process.wait(20) == -signal.SIGTERM
    process.stdout.close()
