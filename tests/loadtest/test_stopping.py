"""Signals to a whole command, as a terminal or a supervisor sends them; and runs whose figures cannot be made."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.cli.bench.run import SLOW_S
from headway.loadtest.bench import tester
from headway.loadtest.bench.files import Files, save_records_of
from headway.loadtest.bench.options import Concurrency, Options, TextOptions, WindowOptions
from headway.loadtest.bench.tester import bench
from headway.loadtest.errors import ResultFailed
from headway.loadtest.report.csv_file import load_records
from headway.loadtest.runner import interrupts
from tests.loadtest.servers import Turn, serving
from tests.loadtest.speaking import speaking

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals to a group")


@asynccontextmanager
async def command(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`headway bench …` in a group of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headway", "bench", *words),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@pytest.mark.parametrize("answered", [0, 1])
async def test_a_server_that_does_not_answer_does_not_hold_up_an_interrupt(answered: int) -> None:
    waiting = asyncio.Event()

    async def script(turn: Turn) -> None:
        if turn.number < answered:
            turn.close()
            return
        waiting.set()
        await asyncio.sleep(60)

    async with serving(script) as server, command("rate", server.url, "--duration", "5") as process:
        if answered == 0:
            await asyncio.wait_for(waiting.wait(), 60)
            await asyncio.sleep(2 * SLOW_S)
            os.killpg(process.pid, signal.SIGINT)
            _, told = await asyncio.wait_for(process.communicate(), 20)
            assert process.returncode == 130
            assert "asking the server" in told.decode()
        else:
            _, told = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_whole_group_loses_no_record(number: signal.Signals, tmp_path: Path) -> None:
    lengths = ("--input-len", "8", "--output-len", "4", "--tokenizer", "none")
    load = ("--rate", "50", "--duration", "60", "--processes", "2", "--output", str(tmp_path / "o"), "--quiet")
    async with speaking() as server, command("rate", server.url, *load, *lengths) as process:
        while len(server.asked) < 60:
            await asyncio.sleep(0.02)
        os.killpg(process.pid, number)
        _, told = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, told.decode()
    records = [line.record for line in load_records(tmp_path / "o" / "run.csv")]
    assert {record.index % 2 for record in records} == {0, 1}
    assert len(records) >= 40


async def test_who_asks_for_the_end_a_third_time_and_means_it_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are the load's: offer no more, wait for nothing. Whoever presses on at once loses nothing by it."""
    monkeypatch.setattr(interrupts, "PATIENCE_S", 0.05)
    told: list[str] = []
    earlier = signal.signal(signal.SIGTERM, lambda *_: told.append("passed on"))
    try:
        with interrupts.keeping() as kept, kept.ending(lambda: told.append("stop")):
            for wait_s, heard in ((0, 1), (0, 2), (0, 2), (0.1, 3), (0, 4)):
                await asyncio.sleep(wait_s)
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.01)
                assert len(told) == heard
    finally:
        signal.signal(signal.SIGTERM, earlier)
    assert told == ["stop", "stop", "passed on", "passed on"]


async def test_figures_that_cannot_be_made_cost_no_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise IndexError("out of range")

    monkeypatch.setattr(tester, "summarise", fails)
    wanted = Options(
        window=WindowOptions(requests=5, warmup=0.0, cooldown=0.0),
        text=TextOptions(input_len="8", output_len="4", tokenizer="none"),
    )
    async with speaking() as server:
        with pytest.raises(ResultFailed, match="out of range") as caught:
            await bench(server.url, Concurrency(), wanted)
    save_records_of(caught.value, Files(csv=tmp_path / "run.csv"))
    assert len(list(load_records(tmp_path / "run.csv"))) == 5
