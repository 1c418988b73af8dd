"""`aside`: blocking questions to a server, beside the event loop, that Ctrl-C need not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def aside(ask: Callable[[], T]) -> T:
    """What `ask` returns or raises. It runs in a thread of its own, which is left to itself when nobody waits any more:
    the end of a loop, and of a program, waits for the threads of `asyncio.to_thread`.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type] # of a call that did not fail

    def run() -> None:
        result, failed = None, None
        try:
            result = ask()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(tell, result, failed)

    threading.Thread(target=run, name="headway-aside", daemon=True).start()
    return await answer
