"""The dashboard in a real browser: it complains of nothing, asks nobody else, fits, needs no mouse, and streams."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headway.core.front.front import FrontLimits
from headway.core.lanes import LaneLimits
from headway.executors.simulated_text import SimulatedTokenizer
from headway.gateway.tenancy import KeyFile, KeyRing
from headway.metrics.palette import COLOURS
from tests.gateway.dashboard.browsing import Seen, browsing, shown
from tests.gateway.driven import Scripted, driving
from tests.gateway.fake import Client, serving
from tests.gateway.fleet.gateway import CHAT, HELLO, gateway, member, over
from tests.gateway.fleet.upstream import upstreams

pytestmark = pytest.mark.asyncio(loop_scope="module")
EVIL = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


async def background(seen: Seen) -> str:
    return str(await seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def rgb(name: str, theme: str) -> str:
    colour = COLOURS[name][theme == "dark"]
    return f"rgb({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))})"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    async with browsing() as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Client]:
    words = SimulatedTokenizer().encode(" good day to all who look at this page")
    async with driving(lambda: Scripted(words)) as backend, serving(backend) as client:
        for _ in range(3):
            await client.post(CHAT, {"messages": HELLO["messages"], "max_tokens": 8})
        yield client


async def test_an_engines_page_on_every_screen(browser: Any, engine: Client) -> None:
    for screen, theme in (("phone", "dark"), ("desktop", "light"), ("phone", "light"), ("desktop", "dark")):
        async with shown(browser, engine.url, screen, theme) as seen:
            await seen.ready()
            await seen.page.wait_for_timeout(300)
            width, inner = await seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width == inner, "nothing is wider than the screen"
            assert await background(seen) == rgb("page", theme)
            assert await seen.page.evaluate("window.shifted") < 0.02
            told = await seen.page.inner_text("main")
            assert "This is one engine and not a gateway" in told
            await seen.page.wait_for_function("() => document.querySelector('[data-figure=ok]').dataset.value >= 3")
            assert seen.trouble == []


async def test_every_plot_says_what_it_shows(browser: Any, engine: Client) -> None:
    async with shown(browser, engine.url) as seen:
        await seen.ready()
        labels = await seen.page.eval_on_selector_all(
            "[data-chart] canvas", "all => all.map(one => one.getAttribute('aria-label'))"
        )
        assert len(labels) == 11
        told = " ".join(labels)
        for words in ("inside 0", "running 0", "in KV 0", "all 0", "prefill", "p99", "of all blocks"):
            assert words in told
        # Something other than ground and grid is drawn.
        drawn = """canvas => new Set(new Uint32Array(canvas.getContext("2d")
            .getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"""
        assert await seen.page.eval_on_selector('[data-chart="steps"] canvas', drawn) > 20
        unnamed = await seen.page.eval_on_selector_all(
            "button, input, select, textarea, canvas, section",
            """all => all.filter(one => !one.getAttribute("aria-label") && !one.textContent.trim()
                && !one.labels?.length).map(one => one.id)""",
        )
        assert unnamed == []


async def test_by_keys_alone(browser: Any, engine: Client) -> None:
    async with shown(browser, engine.url) as seen:
        await seen.ready()
        keyboard, focus = seen.page.keyboard, "document.activeElement.id || document.activeElement.parentElement.id"
        await keyboard.press("Tab")
        await keyboard.press("Enter")  # the first link leads past the plots
        await keyboard.press("Tab")
        assert await seen.page.evaluate(focus) == "prompt"
        await keyboard.press("Control+Enter")
        await seen.page.wait_for_function("() => document.getElementById('output').textContent.includes('page')")
        seen_ids = []
        await seen.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        await seen.page.focus(".skip")
        for _ in range(30):
            await keyboard.press("Tab")
            seen_ids.append(await seen.page.evaluate(focus))
        for one in ("window", "theme", "prompt", "model", "max-tokens", "send", "order"):
            assert one in seen_ids
        # A plot is read with the arrow keys.
        await seen.page.focus('[data-chart="requests"] canvas')
        await keyboard.press("ArrowLeft")
        assert "s ago" in await seen.page.get_attribute('[data-chart="requests"] canvas', "aria-label")
        assert seen.trouble == []


async def test_the_playground_streams_and_draws_where_the_time_went(browser: Any, engine: Client) -> None:
    async with shown(browser, engine.url, "phone", "dark") as seen:
        await seen.ready()
        await seen.page.fill("#max-tokens", "12")
        await seen.page.click("#send")
        await seen.page.wait_for_function("() => !document.getElementById('send').disabled")
        await seen.page.wait_for_function("() => document.getElementById('play-keys').textContent.includes('prefill')")
        label = await seen.page.get_attribute("#waterfall", "aria-label")
        for part in ("tokenise", "queue", "prefill", "decode"):
            assert part in label
        assert "TTFT here" in await seen.page.inner_text("#play-keys")
        assert (await seen.page.inner_text("#output")).strip()
        await seen.page.fill("#max-tokens", "100000")  # beyond what the model takes
        await seen.page.evaluate("document.getElementById('max-tokens').max = ''")
        await seen.page.click("#send")
        await seen.page.wait_for_selector("#output .bad")
        assert "256" in await seen.page.inner_text("#output"), "the server's own words"
        assert [one for one in seen.trouble if "400" not in one] == []


async def test_the_theme_is_the_systems_until_it_is_chosen(browser: Any, engine: Client) -> None:
    async with shown(browser, engine.url) as seen:
        await seen.ready()
        assert await background(seen) == rgb("page", "light")
        await seen.page.emulate_media(color_scheme="dark")
        assert await background(seen) == rgb("page", "dark")
        await seen.page.click("#theme")
        assert await background(seen) == rgb("page", "light")
        await seen.page.reload()
        assert await background(seen) == rgb("page", "light")
        assert await seen.page.evaluate("Object.keys(localStorage)") == ["headway-theme"]
        assert seen.trouble == []


async def test_a_gateway_asks_for_a_key_and_keeps_it_nowhere(browser: Any, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    alice = file.create("alice", time.time())[1]
    async with (
        upstreams() as (one,),
        over([one], ring=KeyRing(file.path)) as fleet,
    ):
        await fleet.post(CHAT, HELLO, Authorization=f"Bearer {alice}", **{"x-request-id": "alices"})
        context = await browser.new_context(extra_http_headers={"X-Forwarded-For": "10.0.0.1"})
        page = await context.new_page()
        seen = Seen(context, page, fleet.url)
        await page.goto(fleet.url)
        await page.wait_for_selector("#key-form", state="visible")
        assert "asks for an API key" in await page.inner_text("#state")
        seen.watch()
        await page.fill("#key", alice)
        await page.press("#key", "Enter")
        await seen.ready()
        assert "alices" in await page.inner_text("#slow-rows")
        assert "alice" in await page.inner_text("#tenant-rows")
        assert "Workers are shown to an operator" in await page.inner_text("#worker-rows")
        await page.click("#send")  # with the same key
        await page.wait_for_function("() => document.getElementById('output').textContent.includes('good day')")
        kept = await page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )
        assert alice not in kept
        assert seen.trouble == []
        await context.close()


async def test_names_that_are_markup_are_shown_and_not_obeyed(browser: Any) -> None:
    """A worker's, a lane's and a client's own id come from outside."""
    lanes = FrontLimits(lanes=(LaneLimits(EVIL),))
    async with upstreams() as (one,), gateway(member(EVIL, one.url), front_limits=lanes) as fleet:
        await fleet.post(CHAT, HELLO)
        for screen in ("phone", "desktop"):
            async with shown(browser, fleet.url, screen) as seen:
                await seen.ready()
                for place in ("#worker-rows", "#slow-rows", "[data-chart=lanes] .keys"):
                    await seen.page.wait_for_function(
                        "([place, name]) => document.querySelector(place).textContent.includes(name)",
                        arg=[place, EVIL],
                    )
                assert await seen.page.query_selector("main img, main script") is None
                width, inner = await seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                assert width == inner
                assert seen.trouble == []


async def test_a_server_that_is_gone_is_said_to_be(browser: Any, engine: Client) -> None:
    async with shown(browser, engine.url) as seen:
        await seen.ready()
        await seen.context.set_offline(True)
        await seen.page.wait_for_function("() => document.getElementById('state').textContent.startsWith('No answer')")
        await seen.context.set_offline(False)
        await seen.ready()
        assert [one for one in seen.trouble if "ERR_INTERNET_DISCONNECTED" not in one] == []


async def test_without_scripts_it_says_where_the_numbers_are(browser: Any, engine: Client) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(engine.url)
    assert "/metrics" in await page.inner_text("noscript")
    await context.close()
