"""A gateway's decision log: its front decides the same again, and what came to it can be simulated."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.core.errors import ConfigError
from headway.core.front.ladder import Level, Mode
from headway.core.request import PREFIX_TOKENS
from headway.gateway.tenancy import KeyFile
from headway.simulate import simulate
from headway.simulate.replay import replay
from headway.simulate.replay_fleet import ReplayLog, read_log
from tests.cli.running import Server
from tests.simulate import worlds

ROOT = Path(__file__).parents[2]
SECRET = "the harvest of the year 1867"
SIMULATED = ("--executor", "simulated", "--served-model-name", "mine", "--max-num-seqs", "4")
CONFIG = """
[[worker]]
url = "{worker}"
id = "first"
[[tenant]]
name = "busy"
weight = 2.0
max-concurrency = 6
[[tenant]]
name = "small"
tokens-per-minute = 2000
max-output-tokens = 60
"""


class Hour:
    """What some clients do to a gateway, with tenants, limits, a full queue, long prompts and departures."""

    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self.rng = random.Random(5)
        self.clients = {
            tenant: openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for tenant, key in keys.items()
        }
        self.ends: list[str] = []

    async def lived(self) -> None:
        await asyncio.gather(*(self.call(number) for number in range(40)))
        for client in self.clients.values():
            await client.close()

    async def call(self, number: int) -> None:
        rng = self.rng
        leaves = number % 7 == 0  # after its first token
        await asyncio.sleep(number / 20 if leaves else rng.random() * 4)
        body: dict[str, Any] = {
            "model": "mine",
            "messages": [
                {"role": "system", "content": SECRET * rng.choice([1, 30])},
                {"role": "user", "content": f"{number} " + "word " * rng.choice([1, 40])},
            ],
            "max_tokens": 90 if leaves else rng.choice([5, 40, 90]),
            "stream": leaves or rng.random() < 0.7,
        }
        if leaves:
            body["extra_body"] = {"ignore_eos": True}
        client = self.clients["busy" if leaves else rng.choice(["busy", "busy", "busy", "small"])]
        try:
            self.ends.append(await self.told(await client.chat.completions.create(**body), leaves=leaves))
        except openai.APIStatusError as error:
            self.ends.append(str(error.status_code))

    @staticmethod
    async def told(answer: Any, *, leaves: bool) -> str:
        if isinstance(answer, openai.AsyncStream):
            async for _ in answer:
                if leaves:
                    await answer.close()
                    return "left"
        return "whole"


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A log, and how its calls ended."""
    folder = tmp_path_factory.mktemp("day")
    keys = KeyFile(folder / "keys")
    presented = {tenant: keys.create(tenant, time.time())[1] for tenant in ("busy", "small")}
    path, config = folder / "decisions.jsonl", folder / "c.toml"
    with Server(*SIMULATED) as worker:
        config.write_text(f'api-keys = "{keys.path}"\n' + CONFIG.format(worker=worker.url))
        flags = ("--decision-log", str(path), "--max-waiting", "3", "--max-running", "5", "--queue-timeout", "2")
        with Server("--config", str(config), *flags) as gateway:
            hour = Hour(gateway.url, presented)
            asyncio.run(hour.lived())
            gateway.signal()
            gateway.wait()
    text = path.read_text()
    assert SECRET not in text
    assert not any(key in text for key in presented.values())
    return path, hour.ends


def kinds(path: Path) -> set[str]:
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    return {line.get("stimulus") or line.get("decision") or "" for line in lines}


def test_a_front_that_is_told_the_same_decides_the_same(logged):
    path, ends = logged
    assert {"whole", "left", "429"} <= set(ends)
    told = {"add_worker", "observe", "treat", "submit", "plan", "began", "settle", "cancel", "adapt", "drain"}
    assert told | {"dispatch", "refuse"} <= kinds(path)
    result = replay(path)
    assert result.difference is None
    assert result.decisions > 50


def test_under_another_setting_it_decides_otherwise(logged, tmp_path):
    header, *rest = logged[0].read_text().splitlines()
    changed = json.loads(header)
    changed["admission"]["max_waiting"] = 1
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join([json.dumps(changed), *rest]))
    assert replay(other).difference is not None


def test_what_ended_there_and_still_waits_here_is_a_difference(logged, tmp_path):
    """As where another setting starts nobody: that one of them has ended is then told of one that waits."""
    lines = logged[0].read_text().splitlines()
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(line for line in lines if json.loads(line).get("stimulus") != "plan"))
    assert replay(other).difference is not None


def test_what_came_is_read_as_it_came(logged):
    path, ends = logged
    log = read_log(path)
    assert len(log.requests) == len(ends)
    assert [one.arrival_ns for one in log.requests] == sorted(one.arrival_ns for one in log.requests)
    assert {one.tenant for one in log.requests} <= {"busy", "small"}
    assert ends.count("whole") <= len(log.requests) - log.guessed
    assert {one.max_tokens for one in log.requests} <= {5, 40, 90} or log.unread
    left = [one for one in log.requests if one.cancel_ns is not None]
    assert 0 < len(left) <= ends.count("left")  # whoever was slow to leave has been answered
    assert all(one.cancel_ns > one.arrival_ns for one in left)  # type: ignore[operator]
    assert (log.admission.max_waiting, log.admission.max_running) == (3, 5)
    assert log.tenants["busy"].weight == 2.0
    assert [spec.id for spec in log.specs] == ["first"]
    long = [one for one in log.requests if one.prefix]
    assert long
    assert all(len(one.prefix) * PREFIX_TOKENS <= len(one.prompt) for one in long)  # type: ignore[arg-type]


def simulated(log: ReplayLog, **changes: Any) -> dict[str, int]:
    run = simulate(log.requests, log.settings((worlds.worker(num_blocks=2_000),), **changes))
    assert len(run.records) == len(log.requests)
    return run.ends


def test_the_load_runs_on_virtual_workers_under_the_same_and_other_settings(logged):
    log = read_log(logged[0])
    ends = simulated(log)
    assert ends["stop"] + ends.get("length", 0) >= len(log.requests) // 3
    free = simulated(log, admission=None, tenants={})
    assert "refused" not in free


LINES = [
    {"stimulus": "levels", "now_ns": 5, "modes": {"clamp_output": "off"}},
    {"stimulus": "treat", "now_ns": 10, "request": "a", "again": False, "tenant": "t", "prompt_tokens": 200,
     "max_tokens": None, "priority": None, "batch": False, "optional": False},
    {"stimulus": "treat", "now_ns": 10, "request": "a", "again": True, "tenant": "t", "prompt_tokens": 100,
     "max_tokens": 9, "priority": None, "batch": False, "optional": False},
    {"stimulus": "submit", "now_ns": 11, "requests": [{"request": "a#1", "prompt_tokens": 100, "max_tokens": 70,
     "priority": 0, "tenant": "t", "model": "m", "pool": "online", "prefix": [-5], "streams": True,
     "slo": {"ttft_ns": 1, "itl_ns": 2, "ttft_limit_ns": 0}}]},
    {"stimulus": "settle", "now_ns": 90, "request": "a#1", "end": "finished", "failed": False,
     "usage": {"prompt_tokens": 100, "output_tokens": 33, "cached_tokens": 0}},
    {"stimulus": "treat", "now_ns": 95, "request": "kept", "again": False, "tenant": "t", "prompt_tokens": 7,
     "max_tokens": 5, "priority": None, "batch": True, "optional": False},
    {"stimulus": "divert", "now_ns": 96, "request": "kept"},
    {"stimulus": "door", "now_ns": 105, "tenant": "t"},
]  # fmt: skip


def written(tmp_path: Path, *lines: object, **header: object) -> Path:
    limits = {"queue_timeout_ns": 0, "age_bound_ns": 0, "lanes": [{"name": "all"}], "replicas": {}}
    told = {
        "kind": "header", "log": "decision", "version": 1, "body": "gateway", "shadow": False,
        "admission": {"max_model_len": 1_000, "kv_capacity_tokens": 1_000}, "limits": limits, "degradation": {},
        "default_limits": {"lanes": []}, "tenants": {}, **header,
    }  # fmt: skip
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in (told, *lines)))
    return path


def test_a_call_is_what_its_client_asked_for_and_the_unknown_are_like_the_known(tmp_path):
    log = read_log(written(tmp_path, *LINES))
    asked, unread = log.requests
    assert (asked.id, asked.arrival_ns, len(asked.prompt), asked.max_tokens) == ("a#1", 5, 200, 70)  # type: ignore[arg-type]
    assert (asked.output_tokens, asked.model, asked.slo.ttft_ns, asked.prefix) == (33, "m", 1, (-5,))
    assert (unread.arrival_ns, len(unread.prompt), unread.output_tokens) == (100, 200, 33)  # type: ignore[arg-type]
    assert (log.guessed, log.unread) == (1, 1)
    assert log.levels == {Level.CLAMP_OUTPUT: Mode.OFF}


@pytest.mark.parametrize("header", [{"body": "engine"}, {"log": "step"}, {"version": 99}])
def test_another_file_is_no_such_log(tmp_path, header):
    with pytest.raises(ConfigError, match="log"):
        read_log(written(tmp_path, **header))


def test_a_torn_last_line_costs_that_line(tmp_path):
    path = written(tmp_path, *LINES)
    path.write_text(path.read_text()[:-10])
    assert len(read_log(path).requests) == 1


def test_the_page_about_logs_names_every_stimulus_and_its_fields(logged):
    page = (ROOT / "docs" / "reference" / "logs.md").read_text()
    section = page.split("### Stimuli of a gateway\n")[1]
    fields = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE))
    source = "".join((ROOT / "src/headway/gateway/fleet" / name).read_text() for name in ("driver.py", "stimuli.py"))
    assert set(re.findall(r'_told\(\s*"(\w+)"', source)) == set(fields)
    for line in map(json.loads, filter(None, logged[0].read_text().splitlines())):
        if "stimulus" in line:
            assert set(line) - {"stimulus", "now_ns"} <= set(re.findall(r"`(\w+)`", fields[line["stimulus"]]))
