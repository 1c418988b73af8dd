"""Sweeps and searches: every point once, whatever breaks them off, and the server as each point wants it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway.loadtest.bench import tester
from headway.loadtest.bench.grid import Axis, axes, points, usual_axis
from headway.loadtest.bench.options import (
    ClientOptions,
    Concurrency,
    Mixed,
    Options,
    Profile,
    PromiseOptions,
    Ramp,
    Rate,
    ServerOptions,
    TextOptions,
    WindowOptions,
)
from headway.loadtest.bench.search import Found, Wanted, find_stable
from headway.loadtest.bench.server import check_command, command
from headway.loadtest.bench.several import Audience
from headway.loadtest.bench.sweep import Grid, Swept, sweep
from headway.loadtest.errors import InvalidPlan, LoadTestError, ResultFailed
from headway.loadtest.report.csv_file import load_records
from headway.loadtest.report.json_file import load_run
from headway.loadtest.result import Load
from headway.loadtest.stable import Search
from tests.loadtest.servers import Turn, error, serving, whole
from tests.loadtest.speaking import speaking

pytestmark = pytest.mark.slow

QUICK = Options(
    client=ClientOptions(processes=0, scrape_interval=0, drain=5.0),
    text=TextOptions(input_len="10", output_len="2"),
    window=WindowOptions(duration=1.0, requests=50, warmup=0.0, cooldown=0.0),
)
GRID = Grid(Concurrency(), (Axis("concurrency", ("1", "2", "3")),))


class Watched:
    """What was measured, waited for and warned of. Stands in for a person at the terminal, who may give up."""

    def __init__(self, *, give_up_at: int | None = None) -> None:
        self.seen: list[str] = []
        self.waits: list[str] = []
        self.warnings: list[str] = []
        self._give_up_at = give_up_at
        self.audience = Audience(self._watch, self._wait, self.warnings.append)

    @contextlib.contextmanager
    def _wait(self, what: str) -> Iterator[None]:
        self.waits.append(what)
        yield None

    @contextlib.contextmanager
    def _watch(self, what: str, load: Load) -> Iterator[None]:
        if len(self.seen) == self._give_up_at:
            raise KeyboardInterrupt
        self.seen.append(what)
        yield None


# -- grids -------------------------------------------------------------------------------------------------------------


def test_every_combination_is_a_point_once() -> None:
    loads = axes(["concurrency=1,2", "input-len=10;5:20;normal:9,2", "concurrency=4"], "--vary")
    server = axes(["max_num_seqs=8,16"], "--setting")
    made = points(Concurrency(), QUICK, loads, server)
    assert len({point.label for point in made}) == len({point.file for point in made}) == len(made) == 3 * 3 * 2
    assert {(point.profile.concurrency, point.options.text.input_len) for point in made} == {  # type: ignore[union-attr]
        (slots, length) for slots in (1, 2, 4) for length in ("10", "5:20", "normal:9,2")
    }
    changes = sum(one.server != other.server for one, other in pairwise(made))
    assert changes == 1, "a setting of the server costs the most, so it changes the least"


@pytest.mark.parametrize("name", ["request-rate", "rate", "request_rate"])
def test_a_setting_has_all_the_names_of_its_flag(name: str) -> None:
    [point] = points(Rate(), QUICK, axes([f"{name}=7"], "--vary"), [])
    assert point.profile == Rate(request_rate=7.0)


@pytest.mark.parametrize(
    ("profile", "text", "named"),
    [
        (Concurrency(), "concurrency", "NAME=VALUE"),
        (Concurrency(), "concurrency=", "NAME=VALUE"),
        (Concurrency(), "concurrency=1,,2", "NAME=VALUE"),
        (Concurrency(), "concurrency=1,1", "twice"),
        (Concurrency(), "concurrency=0", "between 1"),
        (Concurrency(), "concurrency=few", "'few'"),
        (Concurrency(), "burstiness=1", "has concurrency"),
        (Rate(), "constant=maybe", "'maybe'"),
        (Concurrency(), "api-key=one,two", "--vary api-key"),
        (Concurrency(), "header=A=1;A=2", "--vary header"),
        (Concurrency(), "tenant_key=a=1;a=2", "--vary tenant_key"),
        (Concurrency(), "extra-body={};{}1", "--vary extra-body"),
        (Concurrency(), "concurrency=" + ",".join(map(str, range(1, 1200))), "1,000"),
    ],
)
def test_a_bad_axis_is_named(profile: Profile, text: str, named: str) -> None:
    with pytest.raises(InvalidPlan) as caught:
        points(profile, QUICK, axes([text], "--vary"), [])
    assert named in str(caught.value)


def test_some_options_of_the_server_can_be_varied() -> None:
    made = points(Concurrency(), QUICK, axes(["stream=true,false", "n=1,2"], "--vary"), [])
    assert [(point.options.server.stream, point.options.server.n) for point in made] == [
        (True, 1), (True, 2), (False, 1), (False, 2),
    ]  # fmt: skip


def test_without_an_axis_load_is_varied() -> None:
    assert usual_axis(Concurrency()).name == "concurrency"
    assert usual_axis(Rate()).name == usual_axis(Mixed()).name == "request-rate"
    with pytest.raises(InvalidPlan, match="--vary"):
        usual_axis(Ramp())


# -- going on ----------------------------------------------------------------------------------------------------------


async def swept(url: str, folder: Path, watch: Watched, grid: Grid = GRID, options: Options = QUICK) -> Swept:
    return await sweep(url, grid, options, folder=folder, seen_by=watch.audience)


async def test_a_sweep_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    async with speaking() as server:
        with pytest.raises(KeyboardInterrupt):
            await swept(server.url, tmp_path, Watched(give_up_at=2))
        again = Watched()
        found = await swept(server.url, tmp_path, again)
        assert again.seen == ["3 of 3: concurrency=3"]
        assert found.resumed == 2
        assert [label for label, _ in found.runs] == ["concurrency=1", "concurrency=2", "concurrency=3"]
        assert [run.load.concurrency for _, run in found.runs] == [1, 2, 3]
        once_more = Watched()
        assert (await swept(server.url, tmp_path, once_more)).resumed == 3
        assert once_more.seen == []


@pytest.mark.parametrize("content", ["", "{", '{"schema_version": 2}'])
async def test_a_point_that_cannot_be_read_is_measured_again(tmp_path: Path, content: str) -> None:
    async with speaking() as server:
        await swept(server.url, tmp_path, Watched())
        [damaged] = tmp_path.glob("002-*.json")  # noqa: ASYNC240 - nothing else runs
        damaged.write_text(content)
        again = Watched()
        found = await swept(server.url, tmp_path, again)
    assert again.seen == ["2 of 3: concurrency=2"]
    [warning] = again.warnings
    assert str(damaged) in warning
    assert "concurrency=2 is measured again" in warning
    assert (len(found.runs), found.resumed) == (3, 2)
    assert load_run(damaged).load.concurrency == 2


async def test_figures_that_cannot_be_made_cost_no_record_of_a_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise IndexError("out of range")

    async with speaking() as server:
        monkeypatch.setattr(tester, "summarise", fails)
        for name, broken_off in (
            ("sweep", swept(server.url, tmp_path / "sweep", Watched())),
            ("search", searched(server.url, tmp_path / "search", Watched())),
        ):
            with pytest.raises(ResultFailed, match="out of range"):
                await broken_off
            [kept] = (tmp_path / name).glob("*.csv")
            assert len(load_records(kept)) > 0


async def test_a_folder_is_of_one_sweep(tmp_path: Path) -> None:
    async with speaking() as server:
        await swept(server.url, tmp_path, Watched())
        for grid, options, named in (
            (replace(GRID, loads=(Axis("concurrency", ("1",)),)), QUICK, "vary"),
            (GRID, replace(QUICK, text=replace(QUICK.text, input_len="11")), "input_len was 10 and is 11"),
        ):
            with pytest.raises(InvalidPlan) as caught:
                await swept(server.url, tmp_path, Watched(), grid, options)
            assert named in str(caught.value)


async def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InvalidPlan, match="other results"):
        await swept("localhost:1", tmp_path, Watched())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]  # noqa: ASYNC240


async def test_no_key_is_in_the_folder(tmp_path: Path) -> None:
    keyed = replace(QUICK, server=ServerOptions(api_key="a-key-of-mine", header=("X-Api-Key=another-key",)))
    async with speaking() as server:
        await swept(server.url.replace("//", "//me:my-password@"), tmp_path, Watched(), options=keyed)
    for path in tmp_path.iterdir():  # noqa: ASYNC240 - nothing else runs
        assert not [key for key in ("a-key-of-mine", "another-key", "my-password") if key in path.read_text()]


async def test_points_have_the_same_lengths_and_other_texts(tmp_path: Path) -> None:
    grid = Grid(Rate(constant=True), (Axis("request-rate", ("50", "51")),))
    async with speaking() as server:
        await swept(server.url, tmp_path, Watched(), grid, replace(QUICK, window=replace(QUICK.window, seed=1)))
        sent = [asked.body for asked in server.asked if b'"max_tokens":2' in asked.body]
    assert len(sent) == len(set(sent))


# -- the server of a point ---------------------------------------------------------------------------------------------


async def test_settings_change_while_it_serves_and_are_put_back(tmp_path: Path) -> None:
    config = {"max_num_seqs": 64, "policy": "headway"}
    seen: list[dict[str, Any]] = []

    async def script(turn: Turn) -> None:
        if turn.asked.path == "/admin/config":
            turn.write(whole(json.dumps(config).encode()))
        elif turn.asked.path == "/admin/reconfigure":
            seen.append(turn.asked.json)
            if turn.asked.json.get("max_num_seqs") == 0:
                turn.write(whole(error("max_num_seqs must be at least 1."), status=400))
                return
            config.update(turn.asked.json)
            turn.write(whole(json.dumps(config).encode()))
        elif turn.asked.path == "/v1/models":
            turn.write(whole(json.dumps({"data": [{"id": "m"}]}).encode()))
        elif turn.asked.method == "GET" or turn.asked.path == "/tokenize":
            turn.write(whole(b"{}", status=404))
        else:
            usage = {"prompt_tokens": 5, "completion_tokens": 1}
            answer = {"choices": [{"message": {"content": "w"}, "finish_reason": "stop"}], "usage": usage}
            turn.write(whole(json.dumps(answer).encode()))

    plain = replace(QUICK, server=ServerOptions(stream=False))
    async with serving(script, pages=True) as server:
        grid = Grid(Concurrency(concurrency=1), (), (Axis("max-num-seqs", ("8", "16")),))
        found = await swept(server.url, tmp_path / "good", Watched(), grid, plain)
        assert seen == [{"max_num_seqs": 8}, {"max_num_seqs": 16}, {"max_num_seqs": 64}]
        assert [run.environment.flags["max_num_seqs"] for _, run in found.runs] == ["8", "16"]
        bad = replace(grid, server=(Axis("max_num_seqs", ("0",)),))
        with pytest.raises(LoadTestError, match="at least 1"):
            await swept(server.url, tmp_path / "bad", Watched(), bad, plain)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_a_command_starts_and_ends_a_server_for_each_setting(tmp_path: Path) -> None:
    port = free_port()
    template = f"{shlex.quote(sys.executable)} -m tests.loadtest.speaking {port} {{gap}}"
    grid = Grid(Concurrency(), (Axis("concurrency", ("1", "2")),), (Axis("gap", ("1", "5")),), template)
    found = await swept(f"http://127.0.0.1:{port}", tmp_path, Watched(), grid)
    assert found.failed == ""
    assert [label for label, _ in found.runs] == [f"gap={gap}, concurrency={n}" for gap in (1, 5) for n in (1, 2)]
    e2e = [run.summary.overall.distributions["e2e"].mean or 0.0 for _, run in found.runs]
    assert min(e2e[2:]) >= 0.01, "two tokens at 5 ms each"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_command_that_fails_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    port = free_port()
    template = f"{shlex.quote(sys.executable)} -m tests.loadtest.speaking {port} {{gap}}"
    grid = Grid(Concurrency(concurrency=1), (), (Axis("gap", ("1", "none")),), template)
    found = await swept(f"http://127.0.0.1:{port}", tmp_path, Watched(), grid)
    assert [label for label, _ in found.runs] == ["gap=1"]
    assert "ended with status 1" in found.failed
    assert "could not convert" in (tmp_path / "server.log").read_text()


async def test_somebody_elses_server_is_not_taken_for_the_commands(tmp_path: Path) -> None:
    async with speaking() as server:
        grid = Grid(Concurrency(), (), (Axis("gap", ("1",)),), "true {gap}")
        with pytest.raises(InvalidPlan, match="answers already"):
            await swept(server.url, tmp_path, Watched(), grid)


@pytest.mark.parametrize(
    ("template", "named"), [("serve", "{gap}"), ("serve {gap} {other}", "{other}"), ("serve '{gap}", "quotation")]
)
def test_a_command_has_a_place_for_each_setting(template: str, named: str) -> None:
    with pytest.raises(InvalidPlan) as caught:
        check_command(template, ["gap"])
    assert named in str(caught.value)


def test_a_value_stays_one_word() -> None:
    assert command("serve --x {x} --y={x}", {"x": "a b; rm"}) == ["serve", "--x", "a b; rm", "--y=a b; rm"]


# -- the search --------------------------------------------------------------------------------------------------------

PROMISED = replace(QUICK, promise=PromiseOptions(slo_e2e=0.2), window=WindowOptions(warmup=0.1, cooldown=0.0))
SEARCH = Wanted(Search(start=4, window_s=1.0, sustain=1.0, repeats=1, whole=True, highest=8), Concurrency())


async def searched(url: str, folder: Path, watch: Watched, options: Options = PROMISED) -> Found:
    return await find_stable(url, SEARCH, options, folder=folder, seen_by=watch.audience)


async def test_a_search_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    async with speaking(gap_s=0.02) as server:
        with pytest.raises(KeyboardInterrupt):
            await searched(server.url, tmp_path, Watched(give_up_at=1))
        again = Watched()
        found = await searched(server.url, tmp_path, again)
        assert again.seen[0].startswith("probe 2:")
        assert found.stable is not None
        assert len(found.probes) == 1 + len(again.seen)
        assert (await searched(server.url, tmp_path, Watched())).stable == found.stable


@pytest.mark.parametrize("ending", ["json", "run.json"])
async def test_a_probe_that_cannot_be_read_is_made_again(tmp_path: Path, ending: str) -> None:
    async with speaking(gap_s=0.02) as server:
        before = await searched(server.url, tmp_path, Watched())
        last = len(before.probes)  # without which there is no answer
        (tmp_path / f"probe-{last:03}.{ending}").write_text("{")
        again = Watched()
        found = await searched(server.url, tmp_path, again)
    assert again.waits == ["asking the server…"]
    [warning] = again.warnings
    assert f"probe-{last:03}.{ending}" in warning
    assert again.seen[0].startswith(f"probe {last}:")
    assert found.stable is not None
    assert before.stable is not None
    assert len(found.probes) == len(before.probes)


async def test_a_search_needs_a_promise(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlan, match="--slo-ttft"):
        await searched("localhost:1", tmp_path, Watched(), QUICK)
