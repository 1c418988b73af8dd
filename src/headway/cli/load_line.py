"""A line about the load on the console, every so often while there is any."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from headway.metrics.snapshot import Snapshot

EVERY_S = 10.0

log = logging.getLogger("headway")


def load_line(before: Snapshot, now: Snapshot, seconds: float) -> str:
    """What went on between two snapshots; empty when nothing did."""
    prefill = now.prefill_tokens_total - before.prefill_tokens_total
    decode = now.decode_tokens_total - before.decode_tokens_total
    if not (now.requests or prefill or decode):
        return ""
    rates = f"prefill {prefill / seconds:,.0f} tok/s, decode {decode / seconds:,.0f} tok/s"
    return f"running {now.running}, waiting {now.waiting}, KV {now.kv_usage_ratio:.0%}, {rates}"


async def tell_load(snapshot: Callable[[], Snapshot], *, every_s: float = EVERY_S) -> None:
    """Log `load_line` for ever; cancel it to end it."""
    before, then_s = snapshot(), time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        now, now_s = snapshot(), time.monotonic()
        if line := load_line(before, now, now_s - then_s):
            log.info("%s", line)
        before, then_s = now, now_s
