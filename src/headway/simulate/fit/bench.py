"""The result of `headway bench`, as observations: when requests were sent, and when their first and last tokens came.

A load test is seen from the client: it does not know when a request was scheduled. The figures are in `run.json`; the
requests, which a fit needs, in `run.csv` beside it.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np

from headway.core.errors import ConfigError
from headway.metrics import bench_result
from headway.simulate.fit.read import json_of, text_of
from headway.simulate.fit.records import LEAST_FINISHED, Observed, Series


def read_bench(path: Path) -> Observed:
    """`run.json` with its `run.csv`. Raises `ConfigError`."""
    result = json_of(path)
    if result.get("schema_version") != bench_result.VERSION:
        raise ConfigError(
            f"{path}: schema_version is {result.get('schema_version')!r}; a result of `headway bench` "
            f"(version {bench_result.VERSION}) is expected"
        )
    table = path.with_suffix(".csv")
    if not table.is_file():
        raise ConfigError(f"{path}: {table.name} is not beside it. It holds the requests: `headway bench --output`.")
    found = (_row(row, f"{table} line {number}") for number, row in _lines(table))
    rows = [row for row in found if row is not None]
    if len(rows) < LEAST_FINISHED:
        raise ConfigError(f"{table}: {len(rows)} requests finished well; a fit needs at least {LEAST_FINISHED}")
    sent, prompt, output, first, last = np.array(sorted(rows)).T
    zero = sent[0]
    return Observed(
        path.parent.name or path.name,
        sent - zero,
        prompt.astype(np.int64),
        output.astype(np.int64),
        np.full(len(sent), math.nan),
        np.full(len(sent), math.nan),
        first - zero,
        last - zero,
        series=_series(result, float(zero)),
        meta=_meta(result),
    )


def _lines(path: Path) -> list[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(text_of(path).decode("utf-8", "replace").splitlines())
    return [(reader.line_num, row) for row in reader]


def _row(row: dict[str, str], where: str) -> tuple[float, ...] | None:
    """None for a request that did not end well, or whose server did not count its tokens."""
    if row.get("fate") is None:
        raise ConfigError(f"{where}: no field 'fate': this is no table of `headway bench`")
    if row["fate"] != "ok":
        return None
    values = []
    for name in ("sent_s", "input_tokens", "output_tokens", "first_s", "last_s"):
        try:
            value = float(row[name])
        except KeyError:
            raise ConfigError(f"{where}: no field {name!r}") from None
        except ValueError:
            if not row[name]:
                return None
            raise ConfigError(f"{where}: {name} is {row[name]!r}, and must be a number") from None
        if not math.isfinite(value) or value < 0:
            raise ConfigError(f"{where}: {name} is {row[name]}, and must be at least 0")
        values.append(value)
    sent, prompt, output, first, last = values
    if not sent <= first <= last:
        raise ConfigError(f"{where}: sent_s {sent}, first_s {first} and last_s {last} are not in order of time")
    return (sent, prompt, output, first, last) if prompt >= 1 and output >= 1 else None


def _series(result: dict[str, Any], zero: float) -> Series | None:
    signals = result.get("signals") or {}
    columns = [signals.get("times_s") or []]
    columns += [(signals.get("series") or {}).get(name) for name in ("running", "waiting", "kv_used_ratio")]
    if not columns[0] or columns[1] is None or columns[2] is None:
        return None
    kv = columns[3] or [0.0] * len(columns[0])
    at, running, waiting, ratio = (
        np.array([math.nan if value is None else value for value in column], np.float64)
        for column in (*columns[:3], kv)
    )
    whole = np.isfinite(at) & np.isfinite(running) & np.isfinite(waiting)
    return Series(at[whole] - zero, running[whole], waiting[whole], np.nan_to_num(ratio[whole]))


def _meta(result: dict[str, Any]) -> dict[str, Any]:
    """The server's flags, in the words of `settings`."""
    environment = result.get("environment") or {}
    flags = environment.get("flags") or {}
    numbers = {name.replace("-", "_"): value for name, value in flags.items()}
    words = {"true": True, "false": False}
    typed = {
        name: words.get(value.lower(), int(value) if value.isdecimal() else value)
        for name, value in numbers.items()
        if isinstance(value, str)
    }
    framework = str(environment.get("framework") or "")
    version = framework.rsplit(maxsplit=1)[-1] if framework.startswith("vllm") else None
    return {
        "model": environment.get("model") or (result.get("target") or {}).get("model"),
        "vllm_version": version,
        "engine_kwargs": typed,
        "kv_cache": {key: typed.get(key) for key in ("num_gpu_blocks", "block_size")},
    }
