"""Where a sweep is kept: checked before it is made, told, and in nobody's way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from headway.loadtest.bench.grid import Axis, axes, points
from headway.loadtest.bench.options import Concurrency, Options, TextOptions
from headway.loadtest.bench.several import Audience, Folder
from headway.loadtest.bench.sweep import Grid, Swept, sweep
from headway.loadtest.errors import InvalidPlan, LoadTestError
from headway.loadtest.result import Load
from tests.loadtest.servers import Turn, serving, whole
from tests.loadtest.speaking import speaking


@contextlib.contextmanager
def nobody(*_: str | Load) -> Iterator[None]:
    yield None


async def config(turn: Turn) -> None:
    """A server that knows its settings, and can do nothing else."""
    page = {"max_num_seqs": 64, "policy": "headway"} if turn.asked.path == "/admin/config" else {}
    turn.write(whole(json.dumps(page).encode(), status=200 if page else 404))


def swept(url: str, setting: str, told: list[str]) -> Awaitable[Swept]:
    grid = Grid(Concurrency(), (), tuple(axes([setting], "--setting")))
    return sweep(url, grid, Options(), folder=None, seen_by=Audience(nobody, nobody, told.append, told.append))


async def test_a_mistyped_setting_is_told_before_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Folder(Path("headway-sweep"), "sweep", {"profile": "rate", "burstiness": "1.0"})
    async with serving(config, pages=True) as server:
        with pytest.raises(InvalidPlan) as caught:
            await swept(server.url, "max_num_seqz=1,2", [])
    assert str(caught.value) == "--setting max_num_seqz: the server has no such setting. Did you mean max_num_seqs?"
    assert [path.name for path in tmp_path.iterdir()] == ["headway-sweep"]  # noqa: ASYNC240 - nothing else runs


async def test_no_folder_is_left_when_nothing_could_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Folder(Path("headway-sweep"), "sweep", {"profile": "rate"})
    told: list[str] = []
    async with serving(config, pages=True) as server:
        with pytest.raises(LoadTestError):
            await swept(server.url, "max-num-seqs=1,2", told)
    assert told == []
    assert [path.name for path in tmp_path.iterdir()] == ["headway-sweep"]  # noqa: ASYNC240 - nothing else runs


async def test_the_folder_is_told_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Folder(Path("headway-sweep"), "sweep", {"profile": "rate"})
    told: list[str] = []
    folders: list[Path] = []

    @contextlib.contextmanager
    def watch(*_: str | Load) -> Iterator[None]:
        assert told == ["2 points, each kept in headway-sweep-2 (--output names another folder)"]
        if told:
            raise KeyboardInterrupt
        yield None

    grid = Grid(Concurrency(), (Axis("concurrency", ("1", "2")),))
    options = Options(text=TextOptions(input_len="10", output_len="2"))
    audience = Audience(watch, nobody, told.append, told.append)
    async with speaking() as server:
        with pytest.raises(KeyboardInterrupt):
            await sweep(server.url, grid, options, folder=None, seen_by=audience, on_folder=folders.append)
    assert folders == [Path("headway-sweep-2")]


def test_each_sweep_finds_its_own_folder_again(tmp_path: Path) -> None:
    base = tmp_path / "headway-sweep"
    asked = [{"url": "a", "vary": str(number)} for number in range(3)]
    first = [Folder.usual(base, "sweep", one).path.name for one in asked]
    assert first == ["headway-sweep", "headway-sweep-2", "headway-sweep-3"]
    assert [Folder.usual(base, "sweep", one).path.name for one in asked] == first
    (tmp_path / "results").write_text("no folder")
    assert Folder.usual(tmp_path / "results", "sweep", asked[0]).path.name == "results-2"


def test_a_folder_of_another_profile_says_that_and_not_what_follows_from_it(tmp_path: Path) -> None:
    Folder(tmp_path, "sweep", {"profile": "rate", "burstiness": "1.0", "url": "a"})
    with pytest.raises(InvalidPlan) as caught:
        Folder(tmp_path, "sweep", {"profile": "concurrency", "think": "0", "url": "b"})
    assert ": profile was rate and is concurrency; url was a and is b. " in str(caught.value)
    assert "burstiness" not in str(caught.value)


def test_a_mistyped_flag_of_the_load_is_told_with_the_nearest() -> None:
    with pytest.raises(InvalidPlan, match=r"Did you mean concurrency\?"):
        points(Concurrency(), Options(), [Axis("concurency", ("1",))], [])
