"""The page: markup, style and scripts put into one answer, and the policy that forbids it everything else.

Its scripts are named by their digests, so nothing that comes in with data can run; it may ask this server alone.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headway.metrics import palette

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("words.js", "charts.js", "panels.js", "tables.js", "playground.js", "main.js")


@dataclass(frozen=True, slots=True)
class Page:
    text: bytes
    packed: bytes  # gzip
    etag: str
    policy: str  # its Content-Security-Policy


@cache
def page() -> Page:
    style = palette.style() + _read("page.css")
    script = '"use strict";\n' + "\n".join(map(_read, SCRIPTS))
    text = _read("page.html").replace("/*style*/", style).replace("/*script*/", script).encode()
    policy = (
        f"default-src 'none'; script-src {_named(script)}; style-src {_named(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(text, gzip.compress(text, mtime=0), f'"{hashlib.sha256(text).hexdigest()[:32]}"', policy)


def _named(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
