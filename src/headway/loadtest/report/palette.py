"""How reports' figures name the colours of `metrics.palette`."""

from __future__ import annotations

from headway.metrics.palette import COLOURS, GROUNDS, TEXTS, style

__all__ = ["COLOURS", "GROUNDS", "SERIES", "TEXTS", "paint", "style"]

# For kinds, tenants and runs, which have no colour of their own.
SERIES = ("ttft", "itl", "running", "e2e", "kv", "tokens", "waiting", "client")


def paint(name: str) -> str:
    """How a figure names a colour: the page's script puts the theme's value there, and again when it changes."""
    assert name in COLOURS, name
    return f"{{c:{name}}}"
