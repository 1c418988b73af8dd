"""Numbers and names as people read them; the terminal and the page say the same.

Three digits count. A ratio is never rounded up to all of it, or down to nothing: "99.99%" has seen a failure.
"""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime

from headway.loadtest.result import Distribution, Interval

TOO_SMALL = "n too small"
UNKNOWN = "–"

PERCENTILES = ("50", "90", "95", "99", "99.9")

FATES = {
    "ok": "ok",
    "limited": "turned away by a limit (429, or 503 with a time)",
    "timeout": "timed out",
    "refused": "refused (4xx)",
    "server_error": "server error",
    "too_long": "too long an answer",
    "connection": "no connection",
    "cancelled": "cancelled",
}

# Latencies in the order in which they are read, with what each one is.
LATENCIES = {
    "ttft": ("TTFT", "scheduled send → first token"),
    "ttft_from_send": ("TTFT from send", "actual send → first token"),
    "itl": ("ITL", "gap between tokens"),
    "icl": ("ICL", "gap between chunks"),
    "tpot": ("TPOT", "(last − first) / (tokens − 1)"),
    "e2e": ("E2E", "scheduled send → end"),
    "e2e_from_send": ("E2E from send", "actual send → end"),
}

COUNTED = {
    "usage_by_chunk": "the server's usage, told with every chunk",
    "usage": "the server's usage, told at the end",
    "tokenizer": "this client's tokenizer: the server told no usage",
    "chunks": "one a chunk: neither usage nor tokenizer, so a chunk of several tokens is one",
}


def significant(value: float, digits: int = 3) -> str:
    """12,345 · 123 · 12.3 · 1.23 · 0.0123; four decimals at most."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = min(4, max(0, digits - 1 - math.floor(math.log10(abs(rounded)))))
    text = f"{value:,.{decimals}f}"
    return text if float(text.replace(",", "")) else "<0.0001"


def scale(seconds: float) -> tuple[float, str]:
    """(factor, unit) in which a time, and those beside it, are told."""
    return (1.0, "s") if abs(seconds) >= 1 else (1e3, "ms")


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    factor, unit = scale(seconds)
    return f"{significant(seconds * factor)} {unit}"


def limit_text(seconds: float) -> str:
    """A limit as it was given: 80 ms, not 80.0."""
    factor, unit = scale(seconds)
    return f"{seconds * factor:g} {unit}"


def moment(iso: str) -> str:
    """A time of day that people can read: 2026-11-30 10:00:00 UTC."""
    try:
        at = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at.tzinfo else iso


def clock(seconds: float) -> str:
    """How long something has run: 0:07, 12:30, 1:02:03."""
    hours, rest = divmod(max(0, int(seconds)), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(ratio: float | None) -> str:
    """99.5%, and 99.97% or ">99.99%" where one decimal would say that it is all; the same for nothing."""
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    if ratio in {0.0, 1.0}:
        return f"{ratio:.0%}"
    for decimals in (1, 2):
        text = f"{ratio:.{decimals}%}"
        if float(text[:-1]) not in {0.0, 100.0}:
            return text
    return "<0.01%" if ratio < 0.5 else ">99.99%"


def size(count_bytes: float | None) -> str:
    if count_bytes is None:
        return UNKNOWN
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count_bytes >= 1024**power:
            return f"{significant(count_bytes / 1024**power)} {unit}"
    return f"{count_bytes:.0f} B"


def per_second(rate: float | None, what: str = "") -> str:
    unit = f" {what}/s" if what else "/s"
    return UNKNOWN if rate is None or not math.isfinite(rate) else f"{significant(rate)}{unit}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def within(interval: Interval, factor: float = 1.0) -> str:
    """Its 95 % confidence interval, "low–high"; "≥ low" where nothing bounds it above; empty when there is none."""
    low, high = (None if end is None else significant(end * factor) for end in (interval.low, interval.high))
    if low is not None and high is not None:
        return f"{low}–{high}"
    return f"≥ {low}" if low is not None else f"≤ {high}" if high is not None else ""


def duration_or_bound(interval: Interval | None) -> str:
    """A time, "≥ x", or that there are too few samples."""
    if interval is None or interval.known is None:
        return TOO_SMALL
    return duration(interval.value) if interval.value is not None else f"≥ {duration(interval.at_least)}"


def typical(distribution: Distribution) -> float:
    """A size by which to choose the unit: the median, else what there is."""
    median = distribution.percentiles.get("50")
    for value in (median.known if median else None, distribution.mean, distribution.max):
        if value is not None:
            return value
    return 0.0


def spread(found: Distribution) -> str:
    """Its median, p99 and maximum in words."""
    told = [f"p{key} {duration_or_bound(found.percentiles.get(key))}" for key in ("50", "99")]
    return ", ".join([*told, f"max {duration(found.max)}"])


def printable(text: str, limit: int = 0) -> str:
    """One line without control characters or direction overrides: a server's words must not steer a terminal."""
    text = "".join(
        " "
        if sign in "\n\r\t"
        else "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(sign) in {"Cc", "Cf", "Cs"}
        else sign
        for sign in text
    )
    return text if not limit or len(text) <= limit else f"{text[: limit - 1]}…"
