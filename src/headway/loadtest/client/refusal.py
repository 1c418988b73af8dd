"""When a refused client may come again, and what kind of end a status is."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from headway.loadtest.record import Fate

# A server that says "at once" and refuses again is not to be flooded; one that says a second or more is believed.
LEAST_WAIT_S, MOST_LEAST_WAIT_S = 0.1, 1.0


def least_wait_s(retries: int) -> float:
    """How long is waited whatever the server says, after so many retries of this request: each time twice as long."""
    return float(min(LEAST_WAIT_S * 2 ** min(retries, 16), MOST_LEAST_WAIT_S))


def retry_after_s(headers: Mapping[bytes, bytes]) -> float:
    """From `retry-after-ms` or `Retry-After` (seconds or a date); -1 where neither says anything usable."""
    ms = _number(headers.get(b"retry-after-ms", b""))
    if ms >= 0:
        return ms / 1e3
    told = headers.get(b"retry-after", b"")
    seconds = _number(told)
    if seconds >= 0 or not told:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(told.decode("latin-1")).timestamp() - time.time())
    except (ValueError, OverflowError):
        return -1.0


def _number(told: bytes) -> float:
    try:
        value = float(told)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) and value >= 0 else -1.0


def fate_of_status(status: int, retry_s: float) -> Fate:
    """Of an answer that is no 2xx."""
    if status == 429 or (status == 503 and retry_s >= 0):
        return Fate.LIMITED
    return Fate.SERVER_ERROR if status >= 500 else Fate.REFUSED
