"""`headway top`: what a server does now, in a terminal, from its metrics."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from headway.cli.key import key_of_environment
from headway.core.errors import ConfigError

if TYPE_CHECKING:
    from headway.cli.top.page import Source

app = App(name="top")

Url = Annotated[str, Parameter(help="Where the server is, such as http://localhost:8000.")]
Once = Annotated[bool, Parameter(negative="", show_default=False, help="Print one frame, over one interval, and end.")]
Interval = Annotated[float, Parameter(help="Seconds between two looks.")]
ApiKey = Annotated[
    str | None,
    Parameter(
        help="Sent as a bearer token.", show_default=lambda _: "HEADWAY_API_KEY or OPENAI_API_KEY, if one is set"
    ),
]
Insecure = Annotated[bool, Parameter(negative="", show_default=False, help="Take any certificate.")]


@app.default
def top(
    url: Url,
    /,
    *,
    once: Once = False,
    interval: Interval = 1.0,
    api_key: ApiKey = None,
    insecure: Insecure = False,
) -> None:
    """Watch a server that exports metrics: headway, vLLM, SGLang, llama.cpp or TGI. q quits."""
    import ssl

    from headway.cli.top.page import Source
    from headway.wire.asker import Asker, Login

    if not 0.1 <= interval <= 60:
        raise ConfigError(f"--interval is {interval:g}; it must be between 0.1 and 60 seconds.", param="interval")
    key = api_key or key_of_environment(url) or ""
    tls = ssl._create_unverified_context() if insecure else None
    asker = Asker(url, Login(token=key), timeout_s=5.0, advice="Give --api-key.", tls=tls)
    source, title = Source(asker), f"headway top  {asker.url}"
    if once:
        _print(source, title, interval)
    else:
        _watch(source, title, interval)


def _print(source: Source, title: str, interval_s: float) -> None:
    from rich.console import Console

    from headway.cli.top.frame import Window
    from headway.cli.top.view import view

    window = Window()
    window.add(source.page())
    time.sleep(interval_s)
    Console(highlight=False).print(view(window.add(source.page()), title))


def _watch(source: Source, title: str, interval_s: float) -> None:
    """Until q is pressed. A server that is gone for a while is asked again; the last frame stays."""
    from rich.live import Live

    from headway.cli.top.frame import Window
    from headway.cli.top.view import view
    from headway.wire.asker import Unreachable

    window = Window()
    frame = window.add(source.page())  # one that cannot be reached at all is an error
    shown = Live(view(frame, title), screen=sys.stdout.isatty(), auto_refresh=False)
    with _keys() as quits, contextlib.suppress(KeyboardInterrupt), shown as live:
        while not quits(interval_s):
            note = ""
            try:
                frame = window.add(source.page())
            except Unreachable as error:
                note = error.message
            live.update(view(frame, title, note), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[_Quits]:
    """Wait, and say whether q was pressed meanwhile. Without a terminal nobody presses anything."""
    if not sys.stdin.isatty():
        yield _Quits(None)
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield _Quits(number)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


class _Quits:
    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal

    def __call__(self, wait_s: float) -> bool:
        if self._terminal is None:
            time.sleep(wait_s)
            return False
        import select

        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self._terminal], [], [], left_s)
            if ready and os.read(self._terminal, 64).lower().startswith((b"q", b"\x03", b"\x04")):
                return True
        return False
