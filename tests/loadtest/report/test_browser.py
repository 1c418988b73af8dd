"""Pages in a real browser: nothing is logged, nothing is fetched, nothing is wider than a phone, both themes draw."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.loadtest.compare import compare
from headway.loadtest.report.html import compare_page, run_page, sweep_page
from headway.loadtest.report.palette import COLOURS
from tests.loadtest.report.sample_run import Sample
from tests.loadtest.report.test_html import EVIL, evil

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENS = {"phone": (360, 640), "desktop": (1280, 800)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as started:
        # Containers give no sandbox to root; the pages are our own.
        one = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture(scope="module")
def files(made: Sample, ramped: Sample, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    run = made.run
    long_names = evil(run)
    texts = {
        "run": run_page(run, made.records, rivals=("vllm",)),
        "ramp": run_page(ramped.run, ramped.records),
        "evil": run_page(long_names, made.records),
        "sweep": sweep_page([("8 req/s", run), ("a" * 60, ramped.run)]),
        "compare": compare_page(run, long_names, compare(run, long_names)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


class Seen:
    """A page, and what it complained of or asked the network for."""

    def __init__(self, browser: Any, path: Path, screen: str, theme: str) -> None:
        width, height = SCREENS[screen]
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            has_touch=screen == "phone",
            is_mobile=screen == "phone",
        )
        self.page = self.context.new_page()
        self.trouble: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.trouble.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._asked)
        self.page.goto(path.as_uri())

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.trouble.append(f"request: {request.url}")

    def draw(self, plots: str = ".plot") -> None:
        """Scrolls to the plots, and waits until they are drawn."""
        found = self.page.query_selector_all(plots)
        assert found
        for plot in found:
            plot.evaluate("plot => plot.scrollIntoView({behavior: 'instant'})")
            self.page.wait_for_function("plot => plot.querySelector('.main-svg') !== null", arg=plot)

    def await_colour(self, colour: str) -> None:
        """Of the first line of the first plot, as the browser has it."""
        stroke = "getComputedStyle(document.querySelector('.plot .js-line')).stroke"
        self.page.wait_for_function(f"colour => {stroke} === colour", arg=colour)

    def background(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def rgb(name: str, theme: str) -> str:
    colour = COLOURS[name][theme == "dark"]
    return f"rgb({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))})"


@pytest.mark.parametrize(
    ("name", "screen", "theme"),
    [
        ("run", "phone", "dark"),
        ("run", "desktop", "light"),
        pytest.param(*("ramp", "phone", "light"), marks=pytest.mark.slow),
        pytest.param(*("evil", "phone", "dark"), marks=pytest.mark.slow),
        pytest.param(*("sweep", "phone", "light"), marks=pytest.mark.slow),
        ("sweep", "desktop", "dark"),
        pytest.param(*("compare", "phone", "dark"), marks=pytest.mark.slow),
    ],
)
def test_it_draws_and_fits(browser: Any, files: dict[str, Path], name: str, screen: str, theme: str) -> None:
    seen = Seen(browser, files[name], screen, theme)
    seen.draw()
    width, inner = seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert (width, inner) == (SCREENS[screen][0], SCREENS[screen][0])
    assert seen.background() == rgb("page", theme)
    assert seen.trouble == []
    seen.context.close()


@pytest.mark.slow
def test_the_button_changes_the_page_and_its_plots(browser: Any, files: dict[str, Path]) -> None:
    seen = Seen(browser, files["run"], "desktop", "light")
    seen.draw("#plot-timeline")
    seen.await_colour(rgb("ttft", "light"))
    seen.page.click("#theme")
    assert seen.background() == rgb("page", "dark")
    seen.await_colour(rgb("ttft", "dark"))
    assert seen.page.text_content("#theme") == "Light"
    seen.page.click("#theme")
    assert seen.background() == rgb("page", "light")
    assert seen.trouble == []
    seen.context.close()


@pytest.mark.slow
def test_the_plots_follow_the_system(browser: Any, files: dict[str, Path]) -> None:
    seen = Seen(browser, files["run"], "desktop", "light")
    seen.draw("#plot-timeline")
    seen.page.emulate_media(color_scheme="dark")
    seen.await_colour(rgb("ttft", "dark"))
    seen.context.close()


@pytest.mark.slow
def test_a_zoom_stays_when_the_theme_changes(browser: Any, files: dict[str, Path]) -> None:
    seen = Seen(browser, files["run"], "desktop", "light")
    seen.draw("#plot-timeline")
    box = seen.page.query_selector("#plot-timeline .nsewdrag").bounding_box()
    seen.page.mouse.move(box["x"] + 100, box["y"] + 30)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 300, box["y"] + 30, steps=5)
    seen.page.mouse.up()
    zoomed = "document.getElementById('plot-timeline').layout.xaxis.range"
    seen.page.wait_for_function(f"() => {zoomed}[0] > 1")
    before = seen.page.evaluate(f"[...{zoomed}]")
    seen.page.click("#theme")
    seen.page.wait_for_timeout(200)
    after = seen.page.evaluate("[...document.getElementById('plot-timeline')._fullLayout.xaxis.range]")
    assert after == pytest.approx(before)
    seen.context.close()


@pytest.mark.slow
def test_hovering_tells_all_rows_at_one_time(browser: Any, files: dict[str, Path]) -> None:
    seen = Seen(browser, files["run"], "desktop", "light")
    seen.draw("#plot-timeline")
    box = seen.page.query_selector("#plot-timeline .nsewdrag").bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    seen.page.wait_for_selector("#plot-timeline .hoverlayer .legendtext", state="attached")
    labels = "#plot-timeline .hoverlayer .legendtext"
    told = " ".join(seen.page.eval_on_selector_all(labels, "all => all.map(one => one.textContent)"))
    for name in ("TTFT p50", "TTFT p99", "ITL p50", "ok", "tokens received", "running", "waiting", "KV cache used"):
        assert name in told
    seen.context.close()


def test_markup_in_names_is_shown_and_not_obeyed(browser: Any, files: dict[str, Path]) -> None:
    seen = Seen(browser, files["evil"], "desktop", "light")
    seen.draw("#plot-timeline")
    assert "<script>alert(1)</script>" in seen.page.text_content("main")
    assert EVIL[:9] in seen.page.text_content("h1")
    assert seen.trouble == []
    seen.context.close()


def test_without_scripts_the_tables_are_there(browser: Any, files: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 640})
    page = context.new_page()
    page.goto(files["run"].as_uri())
    assert page.is_visible("noscript .note")
    assert page.is_hidden("#theme")
    assert "TTFT" in page.inner_text("#latency")
    context.close()


@pytest.mark.slow
def test_no_button_sends_anything_away(browser: Any, files: dict[str, Path]) -> None:
    seen = Seen(browser, files["run"], "desktop", "light")
    seen.draw("#plot-timeline")
    names = seen.page.eval_on_selector_all(".modebar-btn", "all => all.map(one => one.dataset.title.toLowerCase())")
    assert names
    assert not [name for name in names if "share" in name or "cloud" in name or "edit" in name]
    seen.context.close()
