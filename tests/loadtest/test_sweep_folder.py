"""Where a sweep is kept: checked before it is made, told, and in nobody's way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from headway.loadtest.bench import sweep as sweep_module
from headway.loadtest.bench.grid import Axis, axes, points
from headway.loadtest.bench.options import Concurrency, Options, PromiseOptions, Rate, ServerOptions, TextOptions
from headway.loadtest.bench.search import Wanted, find_stable
from headway.loadtest.bench.several import Audience, Folder
from headway.loadtest.bench.sweep import Grid, Swept, sweep
from headway.loadtest.errors import InvalidPlan, LoadTestError, Unreachable
from headway.loadtest.result import Load
from headway.loadtest.stable import Search
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


KEY = "Zk3qd93jfPQ20dk1"


@pytest.mark.parametrize(
    ("place", "kind"),
    [("url", "sweep"), ("body", "sweep"), ("command", "sweep"), ("url", "stable"), ("body", "stable")],
)
async def test_a_key_is_in_no_manifest_and_a_change_of_it_is_seen(tmp_path: Path, place: str, kind: str) -> None:
    """Under names that tell nothing: Azure's `code`, a gateway's own field."""

    async def asked(key: str) -> str:
        url = f"http://127.0.0.1:1/?code={key}" if place == "url" else "http://127.0.0.1:1"
        server = ServerOptions(
            extra_body=json.dumps({"session": key}) if place == "body" else None,
            header=(f"x-session={key}",) if place == "command" else (),
        )
        wanted = Options(server=server, promise=PromiseOptions(slo_ttft=1.0))
        audience = Audience(nobody, nobody, lambda _: None)
        command = f"serve --session {key} {{a}}" if place == "command" else None
        axis = (Axis("a", ("1",)),) if command else ()
        grid = Grid(Concurrency(), (Axis("concurrency", ("1",)),), axis, server_command=command)
        search = Wanted(Search(start=1.0), Rate())
        made = (
            find_stable(url, search, wanted, folder=tmp_path / "o", seen_by=audience)
            if kind == "stable"
            else sweep(url, grid, wanted, folder=tmp_path / "o", seen_by=audience)
        )
        with pytest.raises(LoadTestError) as caught:
            await made
        assert key not in str(caught.value)
        return str(caught.value)

    def leave(_: Folder) -> None:
        """Keep what it wrote."""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Folder, "leave", leave)
        patched.setattr(sweep_module, "started", unreachable)
        first = await asked(KEY)
        manifest = (tmp_path / "o" / f"{kind}.manifest.json").read_text()
        assert KEY not in manifest
        assert "***" in manifest
        assert await asked(KEY) == first, "the same goes on"
        changed = await asked(KEY[::-1])
    assert "is another, or a key in it" in changed
    assert KEY not in changed


def unreachable(*_: object) -> object:
    raise Unreachable("nobody there")


def test_a_mistyped_flag_of_the_load_is_told_with_the_nearest() -> None:
    with pytest.raises(InvalidPlan, match=r"Did you mean concurrency\?"):
        points(Concurrency(), Options(), [Axis("concurency", ("1",))], [])
