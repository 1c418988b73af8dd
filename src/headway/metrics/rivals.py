"""The same requests by other tools' definitions, under their own names: so that numbers can be laid side by side.

Facts read from their public documentation and sources in November 2026 (AIPerf 0.13 and its main branch, GuideLLM's
main branch, vLLM's `vllm bench serve`); nothing here is taken from them. All three count from the *actual* send, so a
client that sends late looks fast, and all three count only requests that ended well.

| figure | aiperf | guidellm | vllm |
|---|---|---|---|
| TTFT | send → first chunk with content | send → first token | send → first chunk of any kind |
| second token | TTST: gap to the second chunk | – | – |
| ITL | a mean per request: (E2E − TTFT) / (n − 1) | same, weighted by n − 1 | every gap between chunks, raw |
| ICL | every gap between chunks | – | (called ITL) |
| TPOT | – | with the first token: (last − send) / n, weighted by n | (E2E − TTFT) / (n − 1), a mean per request |
| E2E | to the last chunk with content | to the end of the stream | to the last chunk |
| n = 1 | no ITL | ITL of weight 0 | no TPOT (but 0 for its goodput) |
| percentile | linear, as numpy | the lowest value that reaches the share | linear, as numpy |
| duration | first send → last token | its measuring window | first send → last token |

What a record cannot say, and what is done: a chunk without content is not in it, so vLLM's TTFT is to the first
visible chunk, and vLLM's ITL lacks the (near-zero) gaps around the chunks that carry a role or a finish reason only.
AIPerf and vLLM count output tokens with a tokenizer of their own when the server tells nothing; here the record's
count stands for all. Where a request asks for several choices, times by token are of each choice by itself; reasoning
that was counted and never shown is in none of them. GuideLLM includes requests that only overlap its window; here all
three get the requests that are due in ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from headway.metrics import latency
from headway.metrics.latency import S_PER_NS, Floats, Timings, elapsed_s

Figures = dict[str, float | None]


def by_definition_of(tool: str, t: Timings) -> Figures:
    """The figures of `tool` ("aiperf", "guidellm" or "vllm") over requests that are due in the window. None: undefined.

    Raises `ValueError` for another tool.
    """
    if tool not in RIVALS:
        raise ValueError(f"There are no definitions of {tool!r}; there are those of {', '.join(RIVALS)}.")
    return RIVALS[tool](t.select(t.ok & (t.first_ns >= 0)))


def _aiperf(t: Timings) -> Figures:
    duration_s = _busy_s(t)
    itl_s = latency.tpot_s(t)
    first_gap = np.cumsum(t.gap_counts) - t.gap_counts
    second_s = t.gaps_ns[first_gap[t.gap_counts > 0]] * S_PER_NS
    return {
        **_spread("Time to First Token (ms)", latency.ttft_from_send_s(t) * 1e3),
        **_spread("Time to Second Token (ms)", second_s * 1e3),
        **_spread("Request Latency (ms)", elapsed_s(t.sent_ns, t.last_ns) * 1e3),
        **_spread("Inter Token Latency (ms)", itl_s * 1e3),
        **_spread("Inter Chunk Latency (ms)", latency.chunk_gaps_s(t) * 1e3),
        **_spread("Output Token Throughput Per User (tokens/sec/user)", 1 / itl_s[itl_s > 0]),
        "Output Token Throughput (tokens/sec)": _per(t.output_tokens, duration_s),
        "Request Throughput (requests/sec)": _per(np.ones(len(t)), duration_s),
        "Request Count (requests)": float(len(t)),
    }


def _guidellm(t: Timings) -> Figures:
    tokens = np.maximum(t.output_tokens - t.hidden_tokens, 0)
    tpot_ms = elapsed_s(t.sent_ns, t.last_ns) * 1e3 / np.maximum(tokens / t.choices, 1)
    itl_ms = np.nan_to_num(latency.tpot_s(t)) * 1e3
    window_s = (t.ended_ns.max() - t.sent_ns.min()) * S_PER_NS if len(t) else 0.0
    streaming_s = (t.last_ns.max() - t.first_ns.min()) * S_PER_NS if len(t) else 0.0
    return {
        **_weighted("request_latency", latency.e2e_from_send_s(t), np.ones(len(t))),
        **_weighted("time_to_first_token_ms", latency.ttft_from_send_s(t) * 1e3, np.ones(len(t))),
        **_weighted("inter_token_latency_ms", itl_ms, np.maximum(tokens - t.choices, 0)),
        **_weighted("time_per_output_token_ms", tpot_ms, tokens),
        "requests_per_second mean": _per(np.ones(len(t)), window_s),
        "output_tokens_per_second mean": _per(np.maximum(t.output_tokens, 0), streaming_s),
    }


def _vllm(t: Timings) -> Figures:
    duration_s = _busy_s(t)
    figures: Figures = {
        "Successful requests": float(len(t)),
        "Benchmark duration (s)": duration_s if len(t) else None,
        "Request throughput (req/s)": _per(np.ones(len(t)), duration_s),
        "Output token throughput (tok/s)": _per(np.maximum(t.output_tokens, 0), duration_s),
        "Total token throughput (tok/s)": _per(
            np.maximum(t.output_tokens, 0) + np.maximum(t.input_tokens, 0), duration_s
        ),
    }
    series = {
        "TTFT": latency.ttft_from_send_s(t),
        "TPOT": latency.tpot_s(t),
        "ITL": latency.chunk_gaps_s(t),
        "E2EL": elapsed_s(t.sent_ns, t.last_ns),
    }
    for name, seconds in series.items():
        there = seconds[~np.isnan(seconds)] * 1e3
        figures[f"Mean {name} (ms)"] = float(there.mean()) if len(there) else None
        figures[f"Median {name} (ms)"] = float(np.percentile(there, 50)) if len(there) else None
        figures[f"P99 {name} (ms)"] = float(np.percentile(there, 99)) if len(there) else None
    return figures


RIVALS: Mapping[str, Callable[[Timings], Figures]] = {"aiperf": _aiperf, "guidellm": _guidellm, "vllm": _vllm}


def _busy_s(t: Timings) -> float:
    return float(t.last_ns.max() - t.sent_ns.min()) * S_PER_NS if len(t) else 0.0


def _per(amounts: npt.NDArray[np.number], seconds: float) -> float | None:
    return float(amounts.sum() / seconds) if seconds > 0 else None


def _spread(name: str, values: Floats) -> Figures:
    values = values[~np.isnan(values)]
    if not len(values):
        return {f"{name} {what}": None for what in ("avg", "p50", "p90", "p99")}
    return {
        f"{name} avg": float(values.mean()),
        **{f"{name} p{q}": float(np.percentile(values, q)) for q in (50, 90, 99)},
    }


def _weighted(name: str, values: Floats, weights: npt.NDArray[np.number]) -> Figures:
    """A percentile is the lowest value at or below which at least that share of the weight lies."""
    values, weights = values[weights > 0], weights[weights > 0]
    if not len(values):
        return {f"{name} {what}": None for what in ("mean", "median", "p95", "p99")}
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weights[order]) / weights.sum()
    ranked = values[order]
    figures: Figures = {f"{name} mean": float(np.average(values, weights=weights))}
    for what, share in (("median", 0.5), ("p95", 0.95), ("p99", 0.99)):
        # Rounding may leave the last cumulated share a hair below 1.
        figures[f"{name} {what}"] = float(ranked[min(int(np.searchsorted(upto, share)), len(ranked) - 1)])
    return figures
