"""Every colour of a page, by what it stands for: (on light, on dark). Figures and style sheets use the names alone.

Reports and the dashboard share them. Each thing keeps its colour in all figures. Tests hold texts to a contrast of 4.5
and lines to 3 against the panel, and the parts of a call to colours that colour-blind readers can tell apart.
"""

from __future__ import annotations

COLOURS: dict[str, tuple[str, str]] = {
    "page": ("#f3f5f8", "#0f1419"),
    "panel": ("#ffffff", "#171d24"),
    "ink": ("#18202b", "#e7ecf2"),
    "muted": ("#556273", "#a0adbb"),
    "rule": ("#d8dee6", "#2d3742"),
    "grid": ("#e8ecf1", "#28313b"),
    "shade": ("#eceff3", "#1f262f"),
    "link": ("#1f5fbf", "#6ea8ff"),
    # verdicts and limits
    "good": ("#1a7f37", "#4ac26b"),
    "warn": ("#8f5f00", "#e3b341"),
    "bad": ("#bf2626", "#ff8078"),
    # latencies
    "ttft": ("#1f5fbf", "#6ea8ff"),
    "itl": ("#b4530a", "#f0944d"),
    "e2e": ("#6b3fa0", "#b794f4"),
    # the server, and the client
    "running": ("#0f766e", "#3fc7ba"),
    "waiting": ("#8f5f00", "#e3b341"),
    "kv": ("#a3286a", "#ef8fc4"),
    "memory": ("#56657a", "#9fb0c3"),
    "preemptions": ("#bf2626", "#ff8078"),
    "tokens": ("#3d6b1f", "#8ccf5f"),
    "client": ("#56657a", "#9fb0c3"),
    # how requests ended
    "ok": ("#4f86b5", "#5b8db8"),
    "limited": ("#8f5f00", "#e3b341"),
    "timeout": ("#b4530a", "#f0944d"),
    "refused": ("#6b3fa0", "#b794f4"),
    "server_error": ("#bf2626", "#ff8078"),
    "too_long": ("#a3286a", "#ef8fc4"),
    "connection": ("#8c1d40", "#ff9db0"),
    "cancelled": ("#6b7785", "#8b98a8"),
    # where a call's time goes
    "network": ("#77828f", "#8b95a1"),
    "gateway": ("#8a44b4", "#b765d0"),
    "tokenise": ("#3b98d9", "#b5e0ff"),
    "queue": ("#cc8400", "#f2c530"),
    "prefill": ("#0b3f8c", "#4a7dff"),
    "decode": ("#a8230b", "#f0703f"),
    "worker": ("#2f9e52", "#3fd9a0"),
}
TEXTS = ("ink", "muted", "link", "good", "warn", "bad")
GROUNDS = ("page", "panel", "rule", "grid", "shade")
# Where a call's time goes, from its arrival on. A remote worker's part cannot be split.
PARTS = ("network", "gateway", "tokenise", "queue", "prefill", "decode", "worker")


def style() -> str:
    """The custom properties: light, dark where the reader's system asks for it, and what the button chose."""
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in COLOURS.items()) for side in (0, 1))
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
    )
