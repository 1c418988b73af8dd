"""A decision log holds all that the core was told: fed to it again, it decides the same."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from typing import Any

import pytest

from headway import Engine, SamplingParams
from headway.core.errors import ConfigError, HeadwayError
from headway.core.request import Request, Slo
from headway.simulate.replay import replay

MS = 1_000_000


async def busy_hour(log: str, **settings: object) -> None:
    """Everything that can happen: promises, priorities, shared prefixes, refusals, departures, a crash, new limits."""
    rng = random.Random(3)
    base: dict[str, Any] = {
        "executor": "simulated",
        "decision_log": log,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_waiting": 6,
        "kv_cache_gib": 0.02,
        "queue_timeout": 0.6,
        "slo_itl": 0.05,
        "long_prompt_tokens": 100,
        "long_output_tokens": 40,
    }
    async with Engine(**{**base, **settings}) as engine:

        async def one(i: int) -> None:
            await asyncio.sleep(rng.random() * 1.5)
            prompt = [300 + k % 7 for k in range(rng.choice([5, 40, 150]))] + [300 + i]
            request = Request(
                f"r{i}",
                prompt,
                rng.choice([3, 20, 60]),
                params=SamplingParams(temperature=0.0, ignore_eos=i % 2 == 0),
                priority=rng.choice([0, 0, 1]),
                slo=Slo(rng.choice([0, 300 * MS]), 50 * MS, rng.choice([0, 0, 900 * MS])),
            )
            try:
                engine.check_door()
                stream = engine.submit(request)
                leave = rng.choice([2, 1000, 1000])
                async for _ in stream:
                    leave -= 1
                    if not leave:
                        break
                stream.close()
            except HeadwayError:
                pass

        tasks = [asyncio.create_task(one(i)) for i in range(60)]
        await asyncio.sleep(0.5)
        engine.reconfigure(max_num_seqs=3, long_output_slots=1)
        await asyncio.sleep(0.3)
        if engine.executor_pid is not None:
            os.kill(engine.executor_pid, signal.SIGSEGV)
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("settings", [{}, {"kv_full": "wait"}, {"policy": "vllm"}], ids=["preempt", "wait", "vllm"])
async def test_a_replayed_log_decides_the_same(tmp_path, settings):
    log = tmp_path / "decisions.jsonl"
    await busy_hour(str(log), **settings)
    result = replay(log)
    assert result.difference is None
    assert result.decisions > 50
    kinds = {line.get("decision") for line in map(json.loads, log.read_text().splitlines())}
    assert {"submit", "refuse", "start", "end", "settle"} <= kinds


async def test_a_core_that_decides_otherwise_is_found_out(tmp_path):
    """A log whose limits are edited must not replay: else the comparison compares nothing."""
    log = tmp_path / "decisions.jsonl"
    await busy_hour(str(log))
    lines = log.read_text().splitlines()
    header = json.loads(lines[0])
    header["config"]["max_num_seqs"] = 1
    log.write_text("\n".join([json.dumps(header), *lines[1:]]))
    assert replay(log).difference is not None


@pytest.mark.parametrize("text", ["", "not json", '{"kind": "header", "log": "step", "version": 1}'])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a decision log"):
        replay(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        replay(tmp_path / "none.jsonl")


async def test_a_log_cut_short_does_not_spoil_the_run_after_it(tmp_path):
    log = tmp_path / "decisions.jsonl"
    await busy_hour(str(log))
    log.write_bytes(log.read_bytes()[:-25])
    await busy_hour(str(log))
    assert replay(log).difference is None
