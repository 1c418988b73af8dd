"""`Source`: where the dashboard's numbers come from, of an engine or of a fleet. And a request as it is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

from aiohttp import web

from headway.gateway.dashboard.reading import NS_PER_S, Reading
from headway.gateway.observe import Part
from headway.gateway.viewer import Viewer

Order = Literal["ttft", "total"]
SLOWEST = 8  # requests that are told


class Source(Protocol):
    """Everything is read on the event loop, from what is kept anyway."""

    kind: str  # "engine" or "gateway"

    def read(self) -> Reading: ...
    def viewer(self, request: web.Request) -> Viewer:
        """Raises `Unauthenticated` where a key is needed."""

    def about(self) -> dict[str, Any]:
        """Name, limits and promises, as they are now."""

    def absent(self) -> Mapping[str, str]:
        """Panel -> why there is nothing in it. Nothing is ever shown as 0 because nobody knows it."""

    def now(self, viewer: Viewer) -> dict[str, Any]:
        """What has no history: workers, tenants, levels, steps; each for who may see it."""

    def slow(self, viewer: Viewer, seconds: int, order: Order) -> list[dict[str, Any]] | None:
        """Of the requests that ended within so many seconds the slowest, worst first; None who may not see any."""

    def story(self, viewer: Viewer, request_id: str) -> dict[str, Any] | None:
        """One request, if it is remembered and the viewer's to see."""


def told_parts(parts: Iterable[Part], arrival_ns: int) -> list[list[Any]]:
    """(name, when it began, how long it took), in seconds from the arrival."""
    return [
        [part.name, (part.begin_ns - arrival_ns) / NS_PER_S, (part.end_ns - part.begin_ns) / NS_PER_S]
        for part in parts
        if part.end_ns >= part.begin_ns
    ]


def promises_told(ttft_ns: int, itl_ns: int) -> dict[str, float | None]:
    return {"ttft": ttft_ns / NS_PER_S if ttft_ns else None, "itl": itl_ns / NS_PER_S if itl_ns else None}
