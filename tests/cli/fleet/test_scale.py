"""The scale hook: a real command, told how many workers would be right; never in anybody's way."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from headway.cli.fleet.scale import AGAIN_S, Hook, ScaleHook
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.front.replicas import Replicas
from tests.gateway.fake import until


class Scene:
    """A front that wants what a test says, and a hook that writes down what it is told."""

    def __init__(self, folder: Path, program: str = "", timeout_s: float = 20.0) -> None:
        self.front = Front(AdmissionLimits(100, 100), FrontLimits(), remote=True)
        self.told = folder / "told"
        self.now_s = 0.0
        write = f"import os; open({str(self.told)!r}, 'a').write(' '.join(os.environ[f'HEADWAY_{{n}}'] for n in NAMES))"
        names = "NAMES = ('REPLICAS_CURRENT', 'REPLICAS_DESIRED', 'LADDER_LEVEL')"
        program = program or f"{names}; {write}; open({str(self.told)!r}, 'a').write(chr(10))"
        self.hook: Hook | None = Hook(shlex.join([sys.executable, "-S", "-c", program]), timeout_s)
        self.scale = ScaleHook(self.front, lambda: self.hook, clock_s=lambda: self.now_s)

    @property
    def replicas(self) -> Replicas:
        return self.front.overload.replicas

    async def looked(self, up: int, desired: int) -> None:
        self.replicas.up, self.replicas.desired = up, desired
        self.scale.look()
        await self.scale.ended()

    def said(self) -> list[str]:
        return self.told.read_text().splitlines() if self.told.exists() else []


async def test_it_is_told_when_another_number_would_be_right(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.looked(0, 0)
    await scene.looked(2, 2)
    assert scene.said() == []
    await scene.looked(2, 3)
    assert scene.said() == ["2 3 0"]
    await scene.looked(2, 3)
    assert scene.scale.runs == 1, "it was told"
    scene.now_s += AGAIN_S
    await scene.looked(2, 3)
    assert scene.said() == ["2 3 0"] * 2, "nothing came of it"
    await scene.looked(3, 3)
    scene.now_s += AGAIN_S
    await scene.looked(3, 3)
    assert scene.scale.runs == 2, "there are as many as there should be"
    scene.front.ladder.height = 4
    await scene.looked(3, 1)
    assert scene.said()[-1] == "3 1 4"
    scene.hook = None
    await scene.looked(3, 5)
    assert scene.scale.runs == 3


async def test_one_runs_at_a_time_and_it_holds_nobody_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "import time; time.sleep(0.5)")
    scene.replicas.up, scene.replicas.desired = 1, 2
    began_s = time.monotonic()
    scene.scale.look()
    scene.replicas.desired = 3
    scene.scale.look()
    assert time.monotonic() - began_s < 0.2
    assert scene.scale.runs <= 1
    await scene.scale.ended()
    await scene.looked(1, 3)
    assert scene.scale.runs == 2


async def test_one_that_does_not_end_is_ended_with_all_that_it_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pids = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)']); "
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); time.sleep(600)"
    )
    scene = Scene(tmp_path, program, timeout_s=2.0)
    await scene.looked(1, 2)
    assert "did not end within 2 s and was ended" in caplog.text
    for pid in map(int, pids.read_text().split()):
        await until(partial(_ended, pid))


@pytest.mark.parametrize(
    ("command", "says"),
    [("/no/such/command", "cannot be run"), ("'", "cannot be run"), ("false", "ended with 1")],
)
async def test_one_that_fails_is_told_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, command: str, says: str
) -> None:
    scene = Scene(tmp_path)
    scene.hook = Hook(command, 5.0)
    with caplog.at_level(logging.ERROR):
        await scene.looked(1, 2)
    assert says in caplog.text
    scene.now_s += AGAIN_S
    await scene.looked(1, 2)
    assert scene.scale.runs == 2


async def test_closing_ends_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "import time; time.sleep(600)")
    scene.replicas.up, scene.replicas.desired = 1, 2
    scene.scale.look()
    await asyncio.sleep(0.1)
    await asyncio.wait_for(scene.scale.close(), 5)


def _ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
