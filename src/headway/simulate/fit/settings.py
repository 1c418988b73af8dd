"""The settings of a server that was only observed: those it printed, those that follow from what it did, and guesses.

Every one is marked: `given`, `inferred`, `assumed`. What cannot be told from counts is tried out (`candidates`): the
setting whose simulation fits best is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from headway.simulate.fit.model import Server
from headway.simulate.fit.records import Observed
from headway.simulate.fit.terms import Floats

_FULL_PROMPT_SINCE = (0, 19)  # vLLM's scheduler_reserve_full_isl
_AHEAD_SINCE = (0, 14)  # vLLM plans ahead unless told otherwise
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)


def server_of(observed: Observed, given: Mapping[str, Any]) -> Server:
    """What is known of the server. `given` are fields of `Server` that somebody said, and go before all else."""
    known: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for name, value in {**_printed(observed.meta), **given}.items():
        if value is not None:
            fields[name], known[name] = value, "given"
    if "max_num_seqs" not in fields:
        seqs = _slots(observed)
        fields["max_num_seqs"], known["max_num_seqs"] = (seqs, "inferred") if seqs else (256, "assumed")
    if "num_blocks" not in fields:
        tokens = _capacity_tokens(observed)
        if tokens:
            fields["num_blocks"] = max(1, round(tokens / fields.get("block_size", 16)))
            known["num_blocks"] = "inferred"
    for name in ("policy", "block_size", "prefix_cache", "num_blocks"):
        known.setdefault(name, "assumed")
    fields.setdefault("plans_ahead", observed.stamped)  # so are most that stamp, and so budgets are tried
    return Server(**fields, known=known)


def candidates(server: Server, *, stamped: bool) -> list[tuple[str, tuple[Any, ...]]]:
    """What has to be tried out, in order: a field of `Server`, and the values it may have."""
    tried: list[tuple[str, tuple[Any, ...]]] = []
    if "max_num_batched_tokens" not in server.known:
        tried.append(("max_num_batched_tokens", tuple(b for b in BUDGETS if b >= server.max_num_seqs)))
    if "plans_ahead" not in server.known:
        tried.append(("plans_ahead", (True, False) if stamped else (False,)))
    if "whole_prompt_kv" not in server.known:
        tried.append(("whole_prompt_kv", (True, False) if server.num_blocks else (True,)))
    return tried


def with_setting(server: Server, name: str, value: Any, how: str) -> Server:
    """The same server with one setting changed."""
    return msgspec.structs.replace(server, **{name: value}, known={**server.known, name: how})


def _printed(meta: Mapping[str, Any]) -> dict[str, Any]:
    """In vLLM's own words, of which any may be absent."""
    flags = _part(meta, "engine_kwargs")
    cache = {**_part(meta, "resolved_config", "cache_config"), **_part(meta, "kv_cache")}
    plan = _part(meta, "resolved_config", "scheduler_config")
    version = _version(meta.get("vllm_version"))
    blocks = _count(cache.get("num_gpu_blocks"))
    found = {
        "max_num_seqs": _count(plan.get("max_num_seqs")) or _count(flags.get("max_num_seqs")),
        "max_num_batched_tokens": _count(plan.get("max_num_batched_tokens"))
        or _count(flags.get("max_num_batched_tokens")),
        "block_size": _count(cache.get("block_size")),
        "num_blocks": blocks - 1 if blocks else None,  # one block is the null block
        "prefix_cache": cache.get("enable_prefix_caching", flags.get("enable_prefix_caching")),
        "plans_ahead": plan.get("async_scheduling"),
        "whole_prompt_kv": plan.get("scheduler_reserve_full_isl"),
    }
    if version is not None:
        if found["whole_prompt_kv"] is None:
            found["whole_prompt_kv"] = version >= _FULL_PROMPT_SINCE
        if found["plans_ahead"] is None and version >= _AHEAD_SINCE:
            found["plans_ahead"] = True
    return {name: value for name, value in found.items() if value is not None}


def _part(meta: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = meta.get(name)
        if not isinstance(value, Mapping):
            return {}
        meta = value
    return meta


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _version(text: object) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)", text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2])) if found else None


def _slots(observed: Observed) -> int | None:
    """`max_num_seqs`: as many as ever ran, if it stayed there while others waited; None: it was never reached."""
    series = observed.series
    if series is None or not len(series.at_s):
        return None
    most = int(series.running.max())
    held = (series.running >= most - 1) & (series.waiting > 0)
    # KV that is full stops others as well, at whatever number that is.
    return most if most > 1 and int(held.sum()) >= 5 and float(series.kv_ratio.max()) < 0.98 else None


def _capacity_tokens(observed: Observed) -> float | None:
    """Tokens of a full KV cache, from how full it was while nothing of what had started was thrown out."""
    series = observed.series
    if series is None or not observed.stamped:
        return None
    found = []
    for at, running, ratio in zip(series.at_s, series.running, series.kv_ratio, strict=True):
        resident = resident_tokens(observed, float(at))
        if ratio >= 0.05 and resident is not None and resident[0] == int(running):
            found.append(resident[1] / ratio)
    return float(np.median(found)) if len(found) >= 2 else None


def resident_tokens(observed: Observed, at_s: float) -> tuple[int, float] | None:
    """How many requests had started and not ended, and their tokens so far; None when nothing had."""
    here = (observed.scheduled_s <= at_s) & ~(observed.last_s <= at_s)
    if not np.any(here):
        return None
    share = _progress(observed, at_s)[here]
    tokens = observed.prompt_tokens[here] + share * observed.output_tokens[here]
    return int(here.sum()), float(tokens.sum() + here.sum() * 8)  # half a block of 16 stands empty in each


def _progress(observed: Observed, at_s: float) -> Floats:
    """Which share of its output each has, if tokens come evenly; of those that have not ended, at the usual pace."""
    usual = np.nanmedian((observed.last_s - observed.first_s) / np.maximum(1, observed.output_tokens - 1))
    ends = np.where(np.isfinite(observed.last_s), observed.last_s, observed.first_s + usual * observed.output_tokens)
    share = (at_s - observed.first_s) / np.maximum(1e-9, ends - observed.first_s)
    return np.clip(np.nan_to_num(share, nan=0.0), 0.0, 1.0)
