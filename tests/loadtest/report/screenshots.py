"""Takes the pictures of reports that the docs show, of the made-up run. Needs playwright and a Chromium.

python -m tests.loadtest.report.screenshots docs/images
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, FloatRect, sync_playwright

from headway.loadtest.probe import Probe, probe_of
from headway.loadtest.report.html import run_page, stable_page
from headway.loadtest.stable import NextProbe, Search, next_step
from tests.loadtest.report.sample_run import Sample, sample


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    page: str
    theme: str
    width: int
    height: int
    section: str = "verdict"  # at the top of the picture; the verdict's has the head above it
    scale: float = 1.0


PICTURES = (
    Picture("report-desktop-light", "run", "light", 1120, 1000),
    Picture("report-desktop-dark", "run", "dark", 1120, 1000, "latency"),
    Picture("report-phone-light", "run", "light", 360, 760, scale=1.5),
    Picture("report-phone-dark", "run", "dark", 360, 760, "timeline", scale=1.5),
    Picture("stable-desktop-light", "stable", "light", 1120, 1000),
)


def stable() -> str:
    search = Search(start=8.0, window_s=90.0, tolerance=0.05, sustain=2)
    runs: list[Sample] = []
    probes: list[Probe] = []
    while isinstance(step := next_step(search, probes), NextProbe):
        runs.append(sample(rate=step.load, duration_s=step.window_s + 15, seed=len(runs), faults=False))
        probes.append(probe_of(runs[-1].run, step.load))
    return stable_page(step, runs[0].run)


def take(browser: Browser, picture: Picture, page_path: Path, to: Path) -> None:
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme="dark" if picture.theme == "dark" else "light",
        device_scale_factor=picture.scale,
        is_mobile=picture.width < 600,
        has_touch=picture.width < 600,
    )
    page = context.new_page()
    page.goto(page_path.as_uri())
    for plot in page.query_selector_all(".plot"):
        plot.evaluate("plot => plot.scrollIntoView({behavior: 'instant'})")
        page.wait_for_function("plot => plot.querySelector('.main-svg') !== null", arg=plot)
    top = (
        0 if picture.section == "verdict" else page.evaluate(f"document.getElementById('{picture.section}').offsetTop")
    )
    clip: FloatRect = {"x": 0, "y": top, "width": picture.width, "height": picture.height}
    page.screenshot(path=to / f"{picture.name}.png", full_page=True, clip=clip)
    context.close()


def main(folder: Path) -> None:
    made = sample()
    texts = {"run": run_page(made.run, made.records, rivals=("vllm",)), "stable": stable()}
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        for name, text in texts.items():
            (Path(scratch) / f"{name}.html").write_text(text, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for picture in PICTURES:
            take(browser, picture, Path(scratch) / f"{picture.page}.html", folder)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
