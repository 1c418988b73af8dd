"""A real Chromium for the dashboard, and what a page in it complained of, asked for, or moved."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENS = {"phone": (390, 844), "desktop": (1440, 1000)}

# How far things moved that nobody touched (https://web.dev/articles/cls), of all frames together.
SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifted += one.value;
}).observe({ type: "layout-shift", buffered: true });
"""


@asynccontextmanager
async def browsing() -> AsyncIterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    async with playwright.async_playwright() as started:
        # Containers give no sandbox to root; the pages are our own.
        browser = await started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


class Seen:
    """A page on a screen, in a theme."""

    def __init__(self, context: Any, page: Any, url: str) -> None:
        self.context = context
        self.page = page
        self.url = url
        self.trouble: list[str] = []

    def watch(self) -> None:
        self.page.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.trouble.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.trouble.append(f"request: {request.url}")

    async def figures(self, name: str) -> dict[str, str]:
        """What the page shows of a figure, as numbers for a machine."""
        data: dict[str, str] = await self.page.eval_on_selector(
            f'[data-figure="{name}"]', "one => Object.assign({}, one.dataset)"
        )
        return data

    async def ready(self) -> None:
        """The first answer is shown."""
        await self.page.wait_for_function("() => document.getElementById('state').textContent === 'Taking requests'")


@asynccontextmanager
async def shown(
    browser: Any, url: str, screen: str = "desktop", theme: str = "light", *, scale: float = 1.0
) -> AsyncIterator[Seen]:
    width, height = SCREENS[screen]
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        is_mobile=screen == "phone",
        has_touch=screen == "phone",
        device_scale_factor=scale,
    )
    try:
        seen = Seen(context, await context.new_page(), url)
        seen.watch()
        await seen.page.add_init_script(SHIFTS)
        await seen.page.goto(url)
        yield seen
    finally:
        await context.close()
