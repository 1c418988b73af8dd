"""`inspect`: what a live server tells for the checklist; and what a load test's result does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headway.core.errors import ConfigError
from headway.doctor.checklist import Known, LoadTest
from headway.doctor.facts import positive
from headway.doctor.recorder import Recorder
from headway.doctor.scrape import read_scrape
from headway.simulate.fit.read import json_of
from headway.wire.asker import Asker

_NAME = re.compile(r"^([A-Za-z_:][\w:]*)", re.MULTILINE)
_LANE = re.compile(r'headway_lane_waiting\{lane="([^"]+)"\}')


def inspect(asker: Asker) -> Known:
    """Raises `Unreachable` and `Unauthorised`."""
    text = asker.get("/metrics").text
    scrape = read_scrape(text)
    recorder = Recorder()
    recorder.add(scrape, 0.0)
    settings = recorder.facts().settings
    signals: set[str] = set()
    for shown in scrape.places.values():
        signals |= {*shown.gauges, *shown.totals, *(f"h:{name}" for name in shown.histograms)}
    config = asker.json_of("/admin/config")
    card = first_object(asker.json_of("/v1/models").get("data"))
    info = asker.json_of("/get_server_info")
    workers = asker.json_of("/admin/workers").get("data")
    exports = frozenset(_NAME.findall(text))
    gateway = "headway_worker_up" in exports or "headway_replicas" in exports if scrape.kind == "headway" else None
    return Known(
        asker.url,
        scrape.kind,
        live=True,
        signals=frozenset(signals),
        exports=exports,
        config={name.replace("_", "-"): value for name, value in config.items()},
        lanes=tuple(_LANE.findall(text)),
        pools=frozenset(str(one.get("pool")) for one in workers if isinstance(one, dict))
        if isinstance(workers, list)
        else frozenset(),
        gateway=gateway,
        workers=tuple(str(one["url"]) for one in workers if isinstance(one, dict) and one.get("url"))
        if isinstance(workers, list)
        else (),
        limits_output=None if not config else False,
        max_model_len=positive(card.get("max_model_len")) or positive(info.get("context_length")),
        max_num_seqs=settings.max_num_seqs or positive(info.get("max_running_requests")),
        kv_tokens=settings.kv_tokens or positive(info.get("max_total_num_tokens")) or _kv_of_load(asker),
    )


def _kv_of_load(asker: Asker) -> float | None:
    """Headway tells its blocks in /load, and their size only with its settings' logs: 32 tokens, but for GPUs."""
    load = asker.json_of("/load")
    blocks = positive(load.get("kv_blocks_total"))
    return blocks * 32 if blocks is not None else None


def read_test(path: Path) -> LoadTest:
    """`run.json` of `headway bench`, or its folder. Raises `ConfigError`."""
    path = path / "run.json" if path.is_dir() else path
    result = json_of(path)
    load, summary = result.get("load"), result.get("summary")
    if not isinstance(load, dict) or not isinstance(summary, dict):
        raise ConfigError(f"{path}: no result of `headway bench`")
    told = (summary.get("overall") or {}).get("distributions") or {}
    having = {name for name in ("ttft", "itl", "e2e") if _p99(told.get(name)) is not None}
    verdict = result.get("verdict")
    verdict = verdict if isinstance(verdict, dict) else {}
    evidence = first_object(verdict.get("findings")).get("evidence")
    return LoadTest(
        "open" if load.get("loop") == "open" else "closed",
        str(load.get("description") or load.get("profile") or "a load"),
        frozenset(having),
        str(verdict.get("name", "")),
        evidence if isinstance(evidence, str) else "",
        positive((summary.get("overall") or {}).get("request_rate")),
    )


def _p99(distribution: Any) -> float | None:
    percentiles = distribution.get("percentiles") if isinstance(distribution, dict) else None
    told = percentiles.get("99") if isinstance(percentiles, dict) else None
    return positive(told.get("value")) if isinstance(told, dict) else None


def first_object(value: Any) -> dict[str, Any]:
    """Of a list out of JSON; nothing where it is none, or holds something else."""
    first = value[0] if isinstance(value, list) and value else None
    return first if isinstance(first, dict) else {}
