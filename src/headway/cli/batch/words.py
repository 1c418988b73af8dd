"""What a batch came to, in words: the same on the terminal and in the report."""

from __future__ import annotations

from collections.abc import Iterator

from headway.cli.batch.progress import duration
from headway.offline.summary import Summary

KEYS = ("50", "90", "95", "99")
NAMES = {
    "queue_s": "queue, s",
    "prefill_s": "prefill, s",
    "decode_s": "decode, s",
    "wall_s": "in all, s",
    "input_tokens": "input tokens",
    "cached_tokens": "of them cached",
    "output_tokens": "output tokens",
}


def facts_of(summary: Summary) -> Iterator[tuple[str, str]]:
    of = f" of {summary.items:,}" if summary.items is not None else ""
    yield "answered", f"{summary.done:,}{of}"
    if summary.failed:
        yield "failed", f"{summary.failed:,}: " + ", ".join(f"{n:,} {name}" for name, n in summary.errors.items())
    if summary.missing:
        yield "missing", f"{summary.missing:,}"
    if summary.retried:
        yield "tried again", f"{summary.retried:,}"
    if summary.cut:
        yield "cut off", f"{summary.cut:,}"
    yield "time", duration(summary.wall_s) if summary.wall_s >= 60 else f"{summary.wall_s:.1f} s"
    yield "tokens", f"{summary.input_tokens:,} in ({summary.cached_tokens:,} cached), {summary.output_tokens:,} out"
    if summary.tokens_per_s is not None:
        yield (
            "throughput",
            f"{summary.tokens_per_s:,.0f} tokens/s, {summary.output_tokens_per_s or 0:,.0f} of them output",
        )
    if summary.padding_efficiency_ratio is not None:
        yield "padding", f"{1 - summary.padding_efficiency_ratio:.1%} of what was computed"
    if summary.cost is not None:
        yield "cost", f"{summary.cost:,.4f}"


def percentiles_of(summary: Summary) -> Iterator[list[str]]:
    """A row for each quantity: its name, the percentiles `KEYS`, and the most. Where there are too few, a dash."""
    for name, found in summary.distributions.items():
        if found.samples:
            digits = ",.0f" if name.endswith("tokens") else ",.3g"
            values = [found.percentiles[key].value for key in KEYS] + [found.max]
            yield [NAMES[name], *("–" if value is None else format(value, digits) for value in values)]
