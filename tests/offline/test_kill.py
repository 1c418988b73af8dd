"""`headway batch` killed (SIGKILL) at random moments, on a simulated engine: every answer is there in the end, once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from headway.child_process import environment
from tests.offline.fakes import openai_line, read_lines, write_lines

pytestmark = pytest.mark.slow

KILLS = 3
ITEMS = 160
PATIENCE_S = 60.0


def start(*arguments):
    command = [sys.executable, "-m", "headway", "batch", *map(str, arguments), "--quiet"]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def lines():
    return [
        openai_line(number, prompt=[300 + number % 11] * (3 + number % 20), max_tokens=1 + number % 9, seed=number,
                    temperature=0)
        for number in range(ITEMS)
    ]  # fmt: skip


def whole_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def answers(path):
    return {line["custom_id"]: line["response"]["body"]["choices"] for line in read_lines(path)}


@pytest.mark.timeout(300)
def test_killed_at_any_moment_it_goes_on_and_ends_the_same(tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, lines())
    engine = ("--executor", "simulated", "--kv-cache-gib", "0.2", "--max-num-seqs", "16")
    chance = random.Random(11)
    begun = ("run", source, "-o", output, *engine)
    for _ in range(KILLS):
        before = whole_lines(output)
        enough = before + 1 + chance.randrange(2 * (ITEMS - before) // (KILLS + 2))
        manifest = tmp_path / "out.job.json"
        with start(*(("resume", output) if manifest.exists() else begun)) as child:
            give_up = time.monotonic() + PATIENCE_S
            while whole_lines(output) < enough:
                assert child.poll() is None, child.stderr and child.stderr.read().decode()
                assert time.monotonic() < give_up
                time.sleep(0.002)
            time.sleep(chance.uniform(0.0, 0.1))
            assert child.poll() is None, "a kill of what has finished proves nothing"
            child.kill()
        whole = output.read_bytes().rpartition(b"\n")[0].split(b"\n")
        assert before < len(whole) < ITEMS
    with start("resume", output) as last:
        _, complaint = last.communicate(timeout=PATIENCE_S)
        assert last.returncode == 0, complaint.decode()
    assert Counter(line["custom_id"] for line in read_lines(output)) == Counter(f"item-{n}" for n in range(ITEMS))
    undisturbed = tmp_path / "once.jsonl"
    with start("run", source, "-o", undisturbed, *engine) as once:
        assert once.wait(PATIENCE_S) == 0
    assert answers(output) == answers(undisturbed)
