"""A reload: all of a file holds from then on, or nothing has changed; what has to wait for a restart is named."""

from __future__ import annotations

import json
import logging
import signal
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.cli.fleet.assemble import Gateway
from headway.cli.fleet.local import ENGINES
from headway.cli.fleet.reload import LIVE, merged
from headway.cli.layers import KEYS, Layers
from headway.core.errors import ConfigError
from headway.core.front.ladder import Level, Mode
from headway.gateway import GatewayConfig
from headway.gateway.tenancy import KeyFile
from tests.cli.running import Server

BEFORE = """
port = 9000
max-waiting = 10
queue-timeout = 5
overlong = "reject"
ladder = ["demote_long=off"]

[[worker]]
url = "http://127.0.0.1:9/a"
id = "a"

[[worker]]
url = "http://127.0.0.1:9/b"
id = "b"

[[tenant]]
name = "*"
max-concurrency = 1
"""
AFTER = """
port = 9001
max-waiting = 20
queue-timeout = 6
slo-ttft = 2
overlong = "trim"
clamp-output-tokens = 99
long-prompt-slots = 3
max-replicas = 7
ladder = ["clamp_output=on"]

[[worker]]
url = "http://127.0.0.1:9/b"
id = "b"
weight = 2.0

[[worker]]
url = "http://127.0.0.1:9/c"
id = "c"

[[tenant]]
name = "*"
max-concurrency = 2
"""


@asynccontextmanager
async def serving(path: Path, **flags: Any) -> AsyncIterator[Gateway]:
    layers = Layers(path=path, flags=flags)
    gateway = Gateway(layers, layers.read(), GatewayConfig())
    level = logging.getLogger().level
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.close()
        logging.getLogger().setLevel(level)


def state(gateway: Gateway) -> tuple[Any, ...]:
    """Everything that a reload may change."""
    front = gateway.front
    return (
        front.admission.limits,
        front.limits,
        front.lanes.limits,
        front.overload.degradation,
        front.overload.replicas.limits,
        dict(front.ladder.modes),
        gateway.tenants.of("somebody"),
        gateway.service.fleet_config,
        {name: (member.spec, id(member)) for name, member in gateway.roster.members.items()},
        gateway.effective,
        len(gateway.ring or ()),
    )


async def test_all_of_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(BEFORE)
    async with serving(path) as gateway:
        kept = gateway.roster.members["b"]
        path.write_text(AFTER)
        told = await gateway.reload()
        assert told["needs_restart"] == ["port"]
        assert set(told["changed"]) == {
            *("max-waiting", "queue-timeout", "slo-ttft", "overlong", "clamp-output-tokens", "long-prompt-slots"),
            *("max-replicas", "ladder", "worker", "tenant"),
        }
        front = gateway.front
        assert front.admission.limits.max_waiting == 20
        assert front.limits.queue_timeout_ns == 6_000_000_000
        assert (front.overload.degradation.overlong, front.overload.degradation.clamp_output_tokens) == ("trim", 99)
        assert {lane.name: lane.slots for lane in front.lanes.limits}["long-prompt"] == 3
        assert front.overload.replicas.limits.most == 7
        assert front.ladder.modes[Level.CLAMP_OUTPUT] is Mode.ON
        assert front.ladder.modes[Level.DEMOTE_LONG] is Mode.AUTO
        assert gateway.service.fleet_config.default_slo.ttft_ns == 2_000_000_000
        assert gateway.tenants.of("somebody").max_concurrency == 2
        assert set(gateway.roster.members) == set(front.fleet.workers) == {"b", "c"}
        assert gateway.roster.members["b"] is not kept
        assert front.fleet.workers["b"].spec.weight == 2.0
        assert await gateway.reload() == {"changed": [], "needs_restart": ["port"]}, "it still differs"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("max-waiting = 'many'", ":2: max-waiting must be an integer"),
        ("max-wating = 3", ":2: unknown key 'max-wating'"),
        ("max-num-seqs = 512", ":2: max_num_seqs is 512"),
        ("ladder = ['none=on']", ":2: ladder: 'none=on' is no LEVEL=MODE"),
        ("min-replicas = 3\nmax-replicas = 2", ":2: max_replicas is 2, fewer than min_replicas"),
        ("a = = b", ": not valid TOML"),
        ("[[tenant]]\nname = 'x'\nweight = 0", ":4: [[tenant]] weight: must be between"),
        ("[[worker]]\nurl = 'http://127.0.0.1:9/a'\nid = 'c'", "[[worker]] id: there is a worker 'c' above already"),
        ("[[worker]]\nurl = 'https://h'\nca-file = 'nowhere.pem'", "nowhere.pem"),
        ("[[worker]]\nurl = 'http://127.0.0.1:9'\nid = 'operators'", "'operators' already, added while serving"),
        ("[[tokenizer]]\nmodel = 'm'\npath = 'nowhere'", "The tokenizer nowhere cannot be used"),
    ],
)
async def test_a_bad_file_changes_nothing(tmp_path: Path, wrong: str, says: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(BEFORE)
    async with serving(path) as gateway:
        member = gateway.service.hooks.member
        assert member is not None
        await gateway.roster.add(member({"url": "http://127.0.0.1:9/o", "id": "operators"}))
        before = state(gateway)
        tables = AFTER[AFTER.index("[[worker]]") :]
        path.write_text(f"\n{wrong}\n{tables if wrong.startswith('[[') else 'max-running = 3' + chr(10) + tables}")
        with pytest.raises(ConfigError) as refused:
            await gateway.reload()
        assert says in refused.value.message
        assert state(gateway) == before


async def test_a_bad_file_of_keys_changes_nothing_either(tmp_path: Path) -> None:
    path, keys = tmp_path / "c.toml", KeyFile(tmp_path / "keys")
    keys.create("alice", time.time())
    path.write_text(f'api-keys = "{keys.path}"\n{BEFORE}')
    async with serving(path) as gateway:
        before = state(gateway)
        path.write_text(f'api-keys = "{keys.path}"\n{AFTER}')
        keys.path.write_text("no key\n")
        with pytest.raises(ConfigError, match="keys:1: not a JSON object"):
            await gateway.reload()
        assert state(gateway) == before
        keys.path.unlink()
        keys.create("bob", time.time())
        keys.create("carol", time.time())
        await gateway.reload()
        assert gateway.ring is not None
        assert len(gateway.ring) == 2
        assert gateway.tenants.of("x").max_concurrency == 2


async def test_a_file_that_comes_back_to_what_holds_needs_no_restart(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(BEFORE)
    async with serving(path) as gateway:
        path.write_text(AFTER)
        await gateway.reload()
        path.write_text(BEFORE)
        assert (await gateway.reload())["needs_restart"] == []
        assert set(gateway.roster.members) == {"a", "b"}


async def test_what_an_operator_did_meanwhile_stays(tmp_path: Path) -> None:
    """A reload does what has changed in the file, and nothing else."""
    path = tmp_path / "c.toml"
    path.write_text(BEFORE)
    async with serving(path) as gateway:
        await gateway.roster.remove("a")
        gateway.driver.set_levels({Level.CLAMP_OUTPUT: Mode.ON})
        path.write_text(BEFORE.replace("max-waiting = 10", "max-waiting = 11"))
        assert (await gateway.reload())["changed"] == ["max-waiting"]
        assert set(gateway.roster.members) == {"b"}
        assert gateway.front.ladder.modes[Level.CLAMP_OUTPUT] is Mode.ON
        path.write_text(BEFORE.replace('"a"', '"z"'))
        await gateway.reload()
        assert set(gateway.roster.members) == {"b", "z"}, "a was gone already"


async def test_flags_stay_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(BEFORE)
    async with serving(path, max_waiting=5, worker=("http://127.0.0.1:9/flag",)) as gateway:
        path.write_text(AFTER)
        assert "max-waiting" not in (await gateway.reload())["changed"]
        assert gateway.front.admission.limits.max_waiting == 5
        assert "127.0.0.1:9" in gateway.roster.members


def test_engines_that_run_here_were_told_at_their_start(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("slo-itl = 0.1\nmax-waiting = 5\n")
    layers = Layers(path=path, flags={"local_workers": 1})
    running = layers.read()
    path.write_text("slo-itl = 0.2\nmax-waiting = 6\n")
    effective, restart = merged(running, layers.read())
    assert restart == ["slo-itl"]
    assert (effective.config.engine.slo_itl, effective.config.engine.max_waiting) == (0.1, 6)


def test_every_setting_that_can_change_is_one() -> None:
    assert set(KEYS) >= LIVE | ENGINES


@pytest.mark.parametrize("front", [("--executor", "simulated"), ("--worker", "http://127.0.0.1:9")])
def test_a_hangup_reads_the_file_again_and_the_log_says_what_came_of_it(tmp_path: Path, front: tuple[str, str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text("slo-itl = 0.5\nmax-num-seqs = 4\n")
    with Server(*front, "--config", str(path)) as server:

        def hang_up(text: str, *says: str) -> None:
            before, deadline = len(server.log), time.monotonic() + 20
            path.write_text(text)
            server.process.send_signal(signal.SIGHUP)
            while not all(one in "".join(server.log[before:]) for one in says):
                assert time.monotonic() < deadline, "".join(server.log)
                time.sleep(0.02)

        restart = "change with a restart only: host\n"
        hang_up("slo-itl = 0.25\nmax-num-seqs = 4\nhost = '::1'\n", "read again; changed: slo-itl\n", restart)
        hang_up("slo-itl = 0.25\nmax-num-seqs = 4\nhost = '::1'\n", "read again; changed: nothing\n", restart)
        hang_up("slo-itl = 0.1\nmax-num-seqs = -1\n", f"nothing was reloaded: {path}:2: max-num-seqs must be between")
        hang_up("slo-itl = 0.1\nmax-num-seqs = 512\n", f"nothing was reloaded: {path}:2: max_num_seqs is 512")
        if "--executor" in front:
            with urllib.request.urlopen(f"{server.url}/admin/config", timeout=10) as answer:
                assert json.load(answer)["slo_itl"] == 0.25
        server.signal()
        assert server.wait() == 0
