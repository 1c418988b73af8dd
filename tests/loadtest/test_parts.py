"""The load tester's parts build on each other in one direction."""

from __future__ import annotations

import ast
from pathlib import Path

import headway.loadtest

ROOT = Path(headway.loadtest.__file__).parent
ORDER = ("client", "side", "runner", "bench")


def test_no_part_imports_what_is_built_on_it() -> None:
    for place, part in enumerate(ORDER):
        later = tuple(f"headway.loadtest.{name}" for name in ORDER[place + 1 :])
        for path in (ROOT / part).rglob("*.py"):
            found = {
                node.module or ""
                for node in ast.walk(ast.parse(path.read_text("utf-8")))
                if isinstance(node, ast.ImportFrom)
            }
            assert not {module for module in found if module.startswith(later)}, path
