"""`insist`: what was computed is not thrown away because the disk is full at the moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from headway.store import AsyncStore, Conflict, NotFound, Store, StoreError

T = TypeVar("T")

log = logging.getLogger("headway.background")

RETRY_S = 2.0


async def insist(store: AsyncStore, do: Callable[[Store], T]) -> T | None:
    """`do` on the store, again and again until it is done. None when it is nobody's business any more.

    Whoever waits here holds a slot, so that nothing more is begun than can be kept.
    """
    said = False
    while True:
        try:
            return await store.run(do)
        except (Conflict, NotFound):  # cancelled, or deleted
            return None
        except StoreError as error:
            if not said:
                log.error("work that was done cannot be kept yet, and is tried again: %s", error.message)
                said = True
            await asyncio.sleep(RETRY_S)
