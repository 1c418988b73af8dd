"""The documentation as a site: the menu has every page, links are carried over, the strict build has nothing to say."""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = hooks()


def menu(entry: object) -> list[str]:
    """The pages of a part of the menu."""
    if isinstance(entry, dict):
        entry = list(entry.values())
    return [page for one in entry for page in menu(one)] if isinstance(entry, list) else [str(entry)]


def test_the_menu_has_every_page_once() -> None:
    settings = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())  # functions of its extensions
    pages = menu(yaml.safe_load(settings)["nav"])
    assert sorted(page for page in pages if not page.startswith(HOOKS.SOURCE)) == sorted(
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")
    )
    assert [page for page in pages if page.startswith(HOOKS.SOURCE) and page not in HOOKS.outside()] == []


def test_the_index_leads_to_every_page() -> None:
    linked = set(HOOKS.targets((DOCS / "index.md").read_text(), "docs/index.md"))
    pages = {path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")} - {"docs/index.md"}
    assert sorted(pages - linked) == []


@pytest.mark.parametrize(
    ("text", "uri", "expected"),
    [
        ("[a](../guide/kv.md#x)", "concepts/kv.md", "[a](../guide/kv.md#x)"),
        ("[a](../../benchmarks/README.md#goodput)", "guide/fit.md", "[a](../source/benchmarks/README.md#goodput)"),
        ("[a](../../deploy/prometheus)", "guide/monitoring.md", "[a](../source/deploy/prometheus/index.md)"),
        ("[a](../docs/guide/tune.md)", "source/benchmarks/README.md", "[a](../../guide/tune.md)"),
        ("[![p](docs/images/a.png)](docs/index.md)", "source/README.md", "[![p](../images/a.png)](../index.md)"),
        ("[a](#here) [b](https://example.org/x)", "index.md", "[a](#here) [b](https://example.org/x)"),
        ("`[a](../../x.md)`\n```\n[a](../../x.md)\n```", "guide/kv.md", "`[a](../../x.md)`\n```\n[a](../../x.md)\n```"),
    ],
)
def test_links_lead_to_the_same_place_on_the_site(text: str, uri: str, expected: str) -> None:
    assert HOOKS.rewritten(text, uri) == expected


def test_what_lies_outside_is_there_under_the_path_it_has() -> None:
    for uri, made_of in HOOKS.outside().items():
        path = HOOKS.repository_path(uri)
        if isinstance(made_of, str):
            folder = posixpath.dirname(path)
            assert sorted(re.findall(r"\]\((.*)\)", made_of)) == sorted(
                one.name for one in (ROOT / folder).iterdir() if one.is_file()
            )
        else:
            assert made_of == ROOT / path


def built(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder), *arguments]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_the_strict_build_has_nothing_to_say(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="headway[docs] is not installed")
    done = built(tmp_path / "site")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    lifecycle = (tmp_path / "site" / "reference" / "lifecycle.html").read_text()
    assert re.search(r'<pre class="mermaid"><code>stateDiagram', lifecycle), "a diagram; without a network its text"
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="https?:[^"]*', page.read_text())
        assert loaded == [], "a page loads nothing from elsewhere"


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["[a](no-such-page.md)", "[a](guide/kv.md#no-such-anchor)", "![a](images/none.png)"])
def test_the_strict_build_finds_what_leads_nowhere(tmp_path: Path, broken: str) -> None:
    pytest.importorskip("material", reason="headway[docs] is not installed")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    (tmp_path / "docs" / "guide").mkdir(parents=True)
    (tmp_path / "docs" / "guide" / "kv.md").write_text("# KV\n")
    (tmp_path / "docs" / "index.md").write_text(f"# A\n\n{broken}\n")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(tmp_path / "docs"),
        site_dir=str(tmp_path / "site"),
        strict=True,
        hooks=[],
    )
    config.nav = None
    with pytest.raises(Abort):
        build(config)
