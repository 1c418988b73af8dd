"""The design's layers, read from the imports: who may import whom, and what the core may not touch."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "headway"
MAX_LINES = 420

LEAVES = frozenset({"wire", "metrics", "workload", "store"})
DRIVERS = frozenset({"engine", "workers"})
EDGES = frozenset({"gateway", "offline", "simulate"})
CORE_AND_LEAVES = LEAVES | {"core"}

# Modules beside the folders that layers may share: they import nothing of ours.
TOOLS = frozenset({"child_process", "setting"})

# Layer -> what it may import, itself aside. A layer that is not here may not exist.
MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(LEAVES, LEAVES | {"core"}),
    "core": frozenset(),
    "executors": frozenset({"core"}),
    "models": frozenset({"core", "child_process"}),
    **dict.fromkeys(DRIVERS, CORE_AND_LEAVES | {"executors", "models"} | TOOLS),
    **dict.fromkeys(EDGES, CORE_AND_LEAVES | DRIVERS | {"setting"}),
    # The virtual drive is a driver as well: what computes its steps is the simulated executor.
    "simulate": CORE_AND_LEAVES | DRIVERS | {"executors"},
    "loadtest": LEAVES | {"setting"},
    # What a load asks for is workload's, what a kept promise is metrics': of simulated and measured alike.
    "tune": frozenset({"simulate", "loadtest", "core", "workload", "metrics"}),
    # wire: the URL that a person types is read there.
    "doctor": frozenset({"simulate", "metrics", "core", "wire"}),
    "cli": CORE_AND_LEAVES | DRIVERS | EDGES | {"executors", "models", "loadtest", "tune", "doctor"} | TOOLS,
    **dict.fromkeys(TOOLS, frozenset()),
    "": frozenset({"core", "engine", "executors", "models", "cli"}),  # headway/__init__.py and __main__.py
}

# The core decides; it does not do. Time is an argument.
IMPURE = {"asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random"}
IMPURE |= {"secrets", "selectors", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid"}
WORLDLY = {"open", "print", "input"}


def sources(layer: str | None = None) -> list[Path]:
    root = PACKAGE if layer is None else PACKAGE / layer
    return sorted(root.rglob("*.py"))


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if len(parts) > 1:
        return parts[0]
    return path.stem if path.stem in TOOLS else ""


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full module name of every import, also those inside functions."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides which layer it reaches"
            module = node.module or ""
            if module == "headway":  # `from headway import core` reaches a layer, `from headway import Engine` the API
                yield from ((node.lineno, f"headway.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def layers_reached(path: Path) -> Iterator[tuple[int, str]]:
    for line, module in imports(path):
        top, _, rest = module.partition(".")
        if top == "headway":
            yield line, rest.partition(".")[0]


def test_every_folder_is_a_layer_of_the_design() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert folders <= set(MAY_IMPORT), f"not in the table above: {folders - set(MAY_IMPORT)}"


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT), ids=lambda layer: layer or "headway")
def test_imports_follow_the_layers(layer: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: headway.{reached}"
        for path in sources()
        if layer_of(path) == layer
        for line, reached in layers_reached(path)
        if reached != layer and reached not in MAY_IMPORT[layer]
    ]
    assert not wrong, f"{layer or 'headway'} may not import {', '.join(wrong)}"


ROOMS = {"scheduler": {"scheduler"}, "fleet": {"fleet"}, "front": {"front", "fleet", "scheduler"}}
ROOMS |= {"batch": {"batch", "scheduler"}, "": set()}


def test_a_room_of_the_core_knows_only_those_below() -> None:
    wrong = []
    for path in sources("core"):
        parts = path.relative_to(PACKAGE / "core").parts
        room = parts[0] if len(parts) > 1 else ""
        names = [name.split(".") for _, name in imports(path) if name.startswith("headway.core.")]
        entered = {name[2] for name in names if len(name) > 2 and name[2] in ROOMS}
        wrong += [f"core/{'/'.join(parts)} enters {other}" for other in entered - ROOMS[room]]
    assert not wrong


def test_the_core_is_pure() -> None:
    wrong = []
    for path in sources("core"):
        name = path.relative_to(PACKAGE)
        wrong += [
            f"{name}:{line} imports {module}"
            for line, module in imports(path)
            if (top := module.partition(".")[0]) != "headway" and (top not in sys.stdlib_module_names or top in IMPURE)
        ]
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                wrong.append(f"{name}:{node.lineno} is async")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WORLDLY:
                wrong.append(f"{name}:{node.lineno} calls {node.func.id}")
    assert not wrong


def test_siblings_are_not_allowed_to_import_each_other() -> None:
    """Guards the table above: an edit must not quietly let one edge import another."""
    for siblings in ({"executors", "models"}, DRIVERS, EDGES):
        for one in siblings:
            assert not MAY_IMPORT[one] & (siblings - {one})


def test_the_table_has_no_cycle() -> None:
    seen: list[str] = []
    waiting = set(MAY_IMPORT) - LEAVES  # leaves share types, and only types, among themselves
    while waiting:
        free = {layer for layer in waiting if not MAY_IMPORT[layer] & waiting}
        assert free, f"these layers import each other: {sorted(waiting)}"
        seen.extend(free)
        waiting -= free


def test_a_file_fits_in_the_head() -> None:
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in sources()}
    too_long = {name: count for name, count in lines.items() if count > MAX_LINES}
    assert not too_long, f"of more than {MAX_LINES} lines: split them by idea, not by length"


def test_nobody_but_the_command_line_assembles() -> None:
    for path in sources():
        if layer_of(path) not in {"cli", ""}:
            assert "cli" not in dict(layers_reached(path)).values()
