"""The documentation is true: examples run, links lead somewhere, reference pages match the code.

A fenced block under `<!-- run -->` is executed, one under `<!-- run with a server -->` against a server on the port it
names, and one under `<!-- run: headway.toml -->` is read as a configuration file. A block under `<!-- prints -->` is
what the one before it prints, to the letter. `, slow` behind a mark leaves it to `make test-slow`.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from headway.cli.config import MODEL_KEY, SERVE_KEYS
from headway.cli.config_file import read_config
from headway.core.decisions import Kind
from headway.engine.journal import VERSION
from tests.cli.running import Server
from tests.simulate.test_replay import busy_hour

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("README*.md")), ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKED = re.compile(r"<!-- (run[^>,]*)(, slow)? -->\n```(\w+)\n(.*?)```", re.DOTALL)
PRINTS = re.compile(r"```\w+\n(?P<code>[^`]*)```\n\n<!-- prints -->\n```text\n(?P<said>.*?)```", re.DOTALL)
URL = "http://localhost:8000"


def examples(mark: str) -> list[object]:
    found = [
        pytest.param(language, text, id=f"{page.relative_to(ROOT)}-{number}", marks=[pytest.mark.slow] * bool(slow))
        for page in PAGES
        for number, (marked, slow, language, text) in enumerate(MARKED.findall(page.read_text()), start=1)
        if marked == mark
    ]
    assert found, f"no example is marked {mark!r}"
    return list(found)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a real server that somebody started for this, as `.ci/run` does, or of a simulated one."""
    if given := os.environ.get("HEADWAY_EXAMPLES_URL"):
        yield given
        return
    with Server("--executor", "simulated", "--served-model-name", "smollm2-135m") as server:
        yield server.url


def run(language: str, text: str, folder: Path) -> str:
    if "curl" in text and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = {"sh": ["sh", "-eu", "-c", text], "python": [sys.executable, "-c", text]}[language]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300, check=False
    )
    # A measurement on a machine with other work may say of itself that it was disturbed: no fault of the example.
    fine = {0, 3, 5} if "headway bench" in text else {0}
    assert done.returncode in fine, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("language", "text"), examples("run with a server"))
def test_an_example_that_needs_a_server(url: str, tmp_path: Path, language: str, text: str) -> None:
    assert URL in text
    said = run(language, text.replace(URL, url), tmp_path)
    assert said.strip() or "HEADWAY_EXAMPLES_URL" not in os.environ  # a simulated answer may end before it begins
    assert '"error"' not in said


def simulated(text: str) -> str:
    """The same example without a model's weights: loading them takes seconds each time."""
    text = text.replace('Engine("smollm2-135m"', 'Engine("smollm2-135m", executor="simulated"')
    return re.sub(r"headway (generate|batch run)", r"headway \1 --executor simulated", text)


SAID = {found["code"]: found["said"] for page in PAGES for found in PRINTS.finditer(page.read_text())}


@pytest.mark.model
@pytest.mark.parametrize(("language", "text"), examples("run"))
def test_an_example(tmp_path: Path, language: str, text: str) -> None:
    said = run(language, simulated(text), tmp_path)
    assert said.strip()
    assert said == SAID.get(text, said)


def test_whatever_is_said_to_print_is_run() -> None:
    assert sum(page.read_text().count("<!-- prints -->") for page in PAGES) == len(SAID)
    assert set(SAID) <= {
        text for page in PAGES for mark, _, _, text in MARKED.findall(page.read_text()) if mark == "run"
    }


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
    assert {path.name for path in folder.iterdir()} == {*made, "logs.md"}, "the logs are a test of their own"
    stale = [name for name, content in made.items() if (folder / name).read_text() != content]
    assert stale == [], "run `make docs`"


@functools.cache
def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text())
    local = [(page.parent / to if to else page, anchor) for to, anchor in links if not to.startswith("http")]
    missing = [str(path) for path, _ in local if not path.exists()]
    missing += [
        f"{path}#{anchor}" for path, anchor in local if path.is_file() and anchor and anchor not in anchors(path)
    ]
    assert missing == []


def functions_named(page: Path) -> list[tuple[str, str]]:
    """(file, dotted name) of every `file.py` · `name` on the page, each known to exist."""
    found = re.findall(r"`((?:\w+/)+\w+\.py)`\s+·\s+`([\w.]+)`", page.read_text())
    for file, name in found:
        scope: ast.AST = ast.parse((ROOT / "src" / "headway" / file).read_text())
        for part in name.split("."):
            inside = {node.name: node for node in ast.iter_child_nodes(scope) if hasattr(node, "name")}
            constants = {
                target.id: node
                for node in ast.iter_child_nodes(scope)
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            assert part in inside | constants, f"{file} has no {name}"
            scope = (inside | constants)[part]
    return found


CONCEPTS = sorted((ROOT / "docs" / "concepts").glob("*.md"))


@pytest.mark.parametrize("page", CONCEPTS, ids=lambda page: page.name)
def test_concepts_name_functions_that_exist(page: Path) -> None:
    named = functions_named(page)
    if page.name == "life-of-a-request.md":
        assert len(named) == 9, "eight steps, and the loop that turns them"
    assert named or page.name == "dependencies.md", "an idea is somewhere in the code"


EXPORTED = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.MULTILINE))


def test_the_chinese_readme_has_the_same_guides_and_examples() -> None:
    own, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md"))
    (uses,) = re.findall(r"## Use it\n(.*?)\n## ", own, re.DOTALL)
    pages = re.findall(r"^\|.*\]\(([^)]*)\) \|$", uses, re.MULTILINE)
    assert len(pages) > 10
    assert [page for page in pages if f"]({page}) |" not in chinese] == []
    assert MARKED.findall(chinese) == MARKED.findall(own)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_that_are_named_are_exported(page: Path) -> None:
    named = re.findall(r"\bheadway_\w+", page.read_text())
    known = (name.removesuffix("_bucket") for name in named if not name.endswith("_"))  # headway_worker_…, of several
    assert {name for name in known if name not in EXPORTED} == set()


@pytest.mark.parametrize("page", [*CONCEPTS, ROOT / "docs" / "index.md"], ids=lambda page: page.name)
def test_flags_that_concepts_name_are_flags(page: Path) -> None:
    flags = set(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs" / "reference" / "cli.md").read_text()))
    assert set(re.findall(r"--[a-z][a-z-]+", page.read_text())) - flags == set()


# -- the logs ------------------------------------------------------------------------------------------------------


LOGS = (ROOT / "docs" / "reference" / "logs.md").read_text()


def table_under(heading: str) -> dict[str, str]:
    """The tables of a section of the logs' page: the first cell of each row, without backticks, and the rest of it."""
    section = LOGS.split(f"### {heading}\n")[1].split("\n#")[0]
    return dict(re.findall(r"^\| `(\w+)` \|(.*)$", section, re.MULTILINE))


def fields_in(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


async def test_the_logs_are_as_the_page_says(tmp_path: Path) -> None:
    steps, decisions = tmp_path / "steps.jsonl", tmp_path / "decisions.jsonl"
    await busy_hour(str(decisions), step_log=str(steps))
    kinds: set[str] = set()
    for line in map(json.loads, steps.read_text().splitlines()):
        assert list(line) == list(table_under(f"`{line['kind']}`"))
        kinds.add(line["kind"])
    assert kinds == {"header", "step", "request"}

    page = table_under("Decisions")
    common = ["decision", "now_ns", "request", "why"]
    numbers = {kind: fields_in(page[kind].split("|")[2]) for kind in get_args(Kind)}
    assert set(page) == {*common, *numbers}
    stimuli = {name: fields_in(rest.split("|")[0]) for name, rest in table_under("Stimuli").items()}
    header, *lines = map(json.loads, decisions.read_text().splitlines())
    assert list(header) == list(table_under("`header`"))
    assert header["version"] == VERSION
    assert f"version {VERSION} of both" in LOGS
    for line in lines:
        if "decision" in line:
            assert list(line)[:4] == common
            kind, given = line["decision"], set(line) - set(common)
            assert given == numbers[kind] or (kind, given) == ("end", set())
        else:
            assert set(line) == {"stimulus", "now_ns", *stimuli[line["stimulus"]]}


def test_every_stimulus_is_on_the_page() -> None:
    engine = ROOT / "src" / "headway" / "engine"
    source = (engine / "driver.py").read_text() + (engine / "journal.py").read_text()
    assert set(re.findall(r'stimulus\("(\w+)"', source)) == set(table_under("Stimuli"))


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
