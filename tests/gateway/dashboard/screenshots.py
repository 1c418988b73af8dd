"""Takes the pictures of the dashboard that the docs show, of servers that run and have something to do.

python -m tests.gateway.dashboard.screenshots docs/images ENGINE_URL GATEWAY_URL
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.gateway.dashboard.browsing import browsing, shown


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    of: str
    theme: str
    screen: str
    height: int
    section: str = ""  # at the top of the picture; left out, the head is
    scale: float = 1.0


PICTURES = (
    Picture("dashboard-desktop-light", "gateway", "light", "desktop", 1200),
    Picture("dashboard-desktop-dark", "engine", "dark", "desktop", 1000),
    Picture("dashboard-phone-light", "engine", "light", "phone", 1000, scale=1.5),
    Picture("dashboard-phone-dark", "gateway", "dark", "phone", 1000, "workers", 1.5),
    Picture("dashboard-playground-light", "engine", "light", "desktop", 700, "playground"),
)


async def take(urls: dict[str, str], folder: Path) -> None:
    async with browsing() as browser:
        for picture in PICTURES:
            url = urls[picture.of]
            async with shown(browser, url, picture.screen, picture.theme, scale=picture.scale) as seen:
                await seen.ready()
                top = 0
                if picture.section:
                    top = await seen.page.evaluate(
                        "id => Math.max(0, document.getElementById(id).offsetTop - 6)", picture.section
                    )
                if picture.section == "playground":
                    await seen.page.click("#send")
                    await seen.page.wait_for_function(
                        "() => document.getElementById('play-keys').textContent.includes('prefill ')"
                    )
                await seen.page.wait_for_timeout(1200)
                width = seen.page.viewport_size["width"]
                clip = {"x": 0, "y": top, "width": width, "height": picture.height}
                await seen.page.screenshot(path=folder / f"{picture.name}.png", full_page=True, clip=clip)


if __name__ == "__main__":
    asyncio.run(take({"engine": sys.argv[2], "gateway": sys.argv[3]}, Path(sys.argv[1])))
