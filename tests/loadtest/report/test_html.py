"""The page is one file that needs nothing else, says everything the terminal says, and runs nobody's markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest

from headway.loadtest.compare import compare
from headway.loadtest.report.html import compare_page, run_page, run_sections, sweep_page
from headway.loadtest.report.page import plotly_script, script_json
from headway.loadtest.result import Environment, Run, Signals, Slo, Target
from tests.loadtest.report.sample_run import Sample, changed, many

EVIL = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)> {{ 7*7 }} \x1b[31m\u202e"


class Page(HTMLParser):
    """Elements with their attributes, the text outside scripts, and the contents of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.style = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(made: Sample) -> Page:
    return Page(run_page(made.run, made.records, rivals=("vllm",)))


def pages(made: Sample) -> list[str]:
    run = made.run
    return [
        run_page(run, made.records, rivals=("vllm",)),
        sweep_page([("one", run), ("two", run)]),
        compare_page(run, run, compare(run, run)),
    ]


def test_elements_are_closed_and_ids_are_unique(made: Sample) -> None:
    for text in pages(made):
        found = Page(text)
        assert found.open == []
        ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        links = [attributes["href"] for attributes in found.named("a")]
        assert links
        assert {f"#{name}" for name in ids} >= set(links)


def test_nothing_is_fetched(made: Sample) -> None:
    for text in pages(made):
        found = Page(text)
        for tag, attributes in found.elements:
            assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
            for name in ("src", "href", "action", "data", "poster", "srcset"):
                assert (attributes.get(name) or "#").startswith("#")
        assert "url(" not in found.style
        assert "@import" not in found.style
        policy = next(a["content"] for a in found.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
        assert policy is not None
        assert policy.startswith("default-src 'none'")
        assert "http" not in policy


def test_the_verdict_is_on_top_with_its_evidence(page: Page, made: Sample) -> None:
    text = " ".join(page.text.split())
    assert text.index(made.run.verdict.name) < text.index("Timeline")
    assert "schedule lag p50" in text


def test_it_says_what_the_terminal_says(page: Page, made: Sample) -> None:
    for section in run_sections(made.run, made.records, ("vllm",)):
        for table in section.tables:
            for row in table.rows:
                for cell in row:
                    assert cell.text in page.text
                    assert cell.below in page.text


def test_what_the_brief_asks_for_is_recorded(page: Page) -> None:
    server = ("qwen3-8b", "bf16", "Quantisation", "H100 SXM", "80.0 GiB", "vllm 0.14.0", "max_num_seqs", "noted: rack")
    for told in (*server, "Input, tokens", "Output, tokens", "Preemptions", "KV use", "Seed", "turned away by a limit"):
        assert told in page.text


def test_figures_have_a_place_a_title_and_a_rule(page: Page, made: Sample) -> None:
    data = json.loads(page.scripts[0])
    places = {a["data-figure"]: a for a in page.named("div") if "data-figure" in a}
    assert set(places) == set(data)
    for section in run_sections(made.run, made.records):
        for figure in section.figures:
            assert figure.title in page.text
            assert figure.caption in page.text
            assert places[figure.id]["role"] == "img"


def test_both_themes_and_a_button(page: Page) -> None:
    assert "prefers-color-scheme:dark" in page.style
    assert ":root[data-theme=dark]" in page.style
    assert [a["id"] for a in page.named("button")] == ["theme"]
    assert not re.search(r'"#[0-9a-f]{6}"', page.scripts[0]), "figures name colours; the theme gives them"


def evil(run: Run) -> Run:
    dirty = msgspec.convert(msgspec.to_builtins(run), Run)
    dirty.environment = Environment(model=EVIL, framework=EVIL, flags={EVIL: EVIL}, noted={EVIL: EVIL})
    dirty.target = Target(url=EVIL, endpoint=EVIL, model=EVIL)
    dirty.load.description = EVIL
    dirty.load.settings = {EVIL: EVIL}
    dirty.summary.errors = {EVIL: 3}
    dirty.summary.by_kind = {EVIL: run.summary.overall, "other": run.summary.overall}
    dirty.verdict.findings = []
    dirty.signals.source = EVIL
    return dirty


def test_nobody_elses_markup_gets_into_the_page(made: Sample) -> None:
    run = evil(made.run)
    records = [replace(record, kind=EVIL, tenant=EVIL, error=EVIL) for record in made.records]
    for text in (
        run_page(run, records),
        sweep_page([(EVIL, run), ("b", run)]),
        compare_page(run, made.run, compare(run, made.run)),
    ):
        found = Page(text)
        assert len(found.scripts) == 3
        assert found.named("img") == []
        assert "alert(1)" in found.text, "shown as it is"
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "49" not in found.text.split("{{")[-1][:12], "no template within a template"
        assert "<" not in found.scripts[0]
        for figure in json.loads(found.scripts[0]).values():
            assert "<script" not in json.dumps(figure)


@pytest.mark.slow
def test_a_hundred_thousand_requests_make_no_large_page(made: Sample) -> None:
    large = many(made, 100_000)
    text = run_page(large.run, large.records)
    assert len(text) - len(plotly_script()) < 1_000_000


def test_a_run_of_which_little_is_known(made: Sample) -> None:
    bare = changed(made.run, environment=Environment(), signals=Signals(), slo=Slo(), interrupted=True)
    found = Page(run_page(bare, []))
    assert "interrupted" in found.text
    assert "None" not in found.text
    assert not re.search(r"\bnan\b", found.text.lower())


def test_json_in_a_script_stays_in_it() -> None:
    value = {"a": "</script><!-- & \u2028\u2029"}
    text = script_json(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value
