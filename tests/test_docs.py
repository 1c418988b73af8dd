"""The documentation is true: examples run, links lead somewhere, reference pages match the code.

A fenced block under `<!-- run -->` is executed, one under `<!-- run with a server -->` against a server on the port it
names, and one under `<!-- run: headway.toml -->` is read as a configuration file.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headway.cli.config import MODEL_KEY, SERVE_KEYS
from headway.cli.config_file import read_config
from tests.cli.running import Server

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKED = re.compile(r"<!-- (run[^>]*) -->\n```(\w+)\n(.*?)```", re.DOTALL)
URL = "http://localhost:8000"


def examples(mark: str) -> list[object]:
    found = [
        pytest.param(language, text, id=f"{page.relative_to(ROOT)}-{number}")
        for page in PAGES
        for number, (marked, language, text) in enumerate(MARKED.findall(page.read_text()), start=1)
        if marked == mark
    ]
    assert found, f"no example is marked {mark!r}"
    return list(found)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--executor", "simulated", "--served-model-name", "smollm2-135m") as running:
        yield running


def run(language: str, text: str, folder: Path) -> str:
    if "curl" in text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = {"sh": ["sh", "-eu", "-c", text], "python": [sys.executable, "-c", text]}[language]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("language", "text"), examples("run with a server"))
def test_an_example_that_needs_a_server(server: Server, tmp_path: Path, language: str, text: str) -> None:
    assert URL in text
    said = run(language, text.replace(URL, server.url), tmp_path)
    assert said.strip()
    assert '"error"' not in said


@pytest.mark.model
@pytest.mark.parametrize(("language", "text"), examples("run"))
def test_an_example(tmp_path: Path, language: str, text: str) -> None:
    assert run(language, text, tmp_path).strip()


@pytest.mark.parametrize(("language", "text"), examples("run: headway.toml"))
def test_an_example_of_a_configuration_file(tmp_path: Path, language: str, text: str) -> None:
    assert language == "toml"
    path = tmp_path / "headway.toml"
    path.write_text(text)
    assert read_config(path, (MODEL_KEY, *SERVE_KEYS)) == tomllib.loads(text)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_current() -> None:
    made = generator().pages()
    folder = ROOT / "docs" / "reference"
    assert {path.name for path in folder.iterdir()} == set(made)
    stale = [name for name, content in made.items() if (folder / name).read_text() != content]
    assert stale == [], "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [to for to in targets if not to.startswith("http") and not (page.parent / to).exists()]
    assert missing == []


def test_the_life_of_a_request_names_functions_that_exist() -> None:
    page = (ROOT / "docs" / "concepts" / "life-of-a-request.md").read_text()
    named = re.findall(r"`(\w+/\w+\.py)` · `([\w.]+)`", page)
    assert len(named) == 9, "eight steps, and the loop that turns them"
    for file, name in named:
        scope: ast.AST = ast.parse((ROOT / "src" / "headway" / file).read_text())
        for part in name.split("."):
            inside = {node.name: node for node in ast.iter_child_nodes(scope) if hasattr(node, "name")}
            assert part in inside, f"{file} has no {name}"
            scope = inside[part]


def test_every_dependency_has_a_reason_and_is_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "concepts" / "dependencies.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = [re.split(r"[^\w-]", dependency)[0] for dependency in project["dependencies"]]
    assert [name for name in names if f"| `{name}` |" not in page] == []
    assert len(names) == len(re.findall(r"^\| `[\w-]+` \|", page, re.MULTILINE))
    unused = [name for name in names if not re.search(rf"(import|from) {name.replace('-', '_')}\b", source)]
    assert unused == []
    assert "torch" not in names


def test_pins_are_plain_versions() -> None:
    """No address of anybody's package index, no hash, no file."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == []
    assert not [line for line in lines if re.match(r"(?i)torch|headway", line)]
