"""The checklist in words, as JSON, and as one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from headway.doctor.checklist import Item

SCHEMA_VERSION = 1
_SIGNS = {"yes": "yes", "no": "NO", "cannot tell": "?"}
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem; border-bottom: 1px solid #8886; }
.yes { color: #18794e; } .no { color: #cd2b31; font-weight: 600; } .cannot { color: #946800; }
@media (prefers-color-scheme: dark) { .yes { color: #4cc38a; } .no { color: #ff6369; } .cannot { color: #f1a10d; } }
td small { opacity: .75; }
"""


def text(items: Sequence[Item], where: str) -> str:
    lines = [f"{where}: {in_short(items)}"]
    for item in items:
        lines.append(f"{item.number:2}. {_SIGNS[item.verdict]:3}  {item.question}")
        lines.append(f"         {item.evidence}")
        if item.fix:
            lines.append(f"         do: {item.fix}")
    return "\n".join(lines)


def in_short(items: Sequence[Item]) -> str:
    counts = {verdict: sum(item.verdict == verdict for item in items) for verdict in ("yes", "no", "cannot tell")}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def as_json(items: Sequence[Item], where: str) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, "target": where, "items": [asdict(item) for item in items]}


def page(items: Sequence[Item], where: str) -> str:
    """HTML. What comes from outside is escaped."""
    rows = "\n".join(
        f'<tr><td>{item.number}</td><td class="{item.verdict.partition(" ")[0]}">{item.verdict}</td>'
        f"<td><strong>{escape(item.question)}</strong><br>{escape(item.evidence)}"
        + (f"<br><small>To do: {escape(item.fix)}</small>" if item.fix else "")
        + "</td></tr>"
        for item in items
    )
    title = escape(f"Checklist of {where}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{escape(in_short(items))}</p>"
        f"<table><thead><tr><th>#</th><th>answer</th><th>question and evidence</th></tr></thead><tbody>\n{rows}\n"
        "</tbody></table></body></html>\n"
    )
