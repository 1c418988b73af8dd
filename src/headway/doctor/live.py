"""`observe`: a live server, scraped over a window. What it cannot tell is said, and nothing is asked of its model.

On the way the round trip is measured with a request that the server does no work for; the least of them counts, since
a busy server answers it late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headway.doctor.facts import Client, Facts, Promise, Settings
from headway.doctor.scrape import Recorder, Scrape, read_scrape
from headway.metrics.worker_signals import read_load
from headway.wire.asker import Asker, Unreachable

_JSON_PLACES = ("/load", "/v1/loads", "/slots")
_FROM_LOAD = {
    "running": "running",
    "waiting": "waiting",
    "kv_used_ratio": "kv_ratio",
    "kv_capacity_tokens": "kv_capacity_tokens",
}
_TOTALS_FROM_LOAD = {
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "generation_tokens",
    "steps_total": "steps",
    "preemptions_total": "preemptions",
}


def observe(
    asker: Asker,
    window_s: float,
    interval_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    told: Callable[[float], None] = lambda _: None,
) -> Facts:
    """`told` hears how many seconds of the window have passed. Raises `Unreachable`, if at the first try, and
    `Unauthorised`.
    """
    recorder, trips = Recorder(), list[float]()
    place = _find(asker)
    zero = clock()
    due = zero
    while True:
        now = clock()
        recorder.add(_scrape(asker, place), now - zero)
        trip = _round_trip(asker)
        if trip is not None:
            trips.append(trip)
        told(now - zero)
        if now - zero >= window_s:
            break
        due = max(due + interval_s, clock())
        sleep(max(0.0, min(due, zero + window_s) - clock()))
    facts = recorder.facts()
    if not place:
        facts = replace(facts, source="unknown", missing=_nothing(asker))
    settings, promise = _settings(asker, facts.settings)
    network = Client(network_s=min(trips) if trips else None, network_probes=len(trips))
    return replace(facts, client=network, settings=settings, promise=promise)


def _find(asker: Asker) -> str:
    """Where it tells of its load; empty where it does not."""
    if read_scrape(asker.get("/metrics").text).kind:
        return "/metrics"
    for path in _JSON_PLACES:
        if read_load(asker.try_get(path).json) is not None:
            return path
    return ""


def _nothing(asker: Asker) -> tuple[str, ...]:
    page = asker.try_get("/metrics")
    if page.status != 200:
        why = f"/metrics answers {page.status} (vLLM shows it always, SGLang with --enable-metrics)"
    elif not page.body.strip():
        why = "/metrics is empty"
    else:
        why = "/metrics has no name that is known here"
    return (
        (
            f"{why}, and neither /load nor /v1/loads nor /slots tells of its load: measure it from outside with "
            "`headway bench` and give the result with --bench"
        ),
    )


def _scrape(asker: Asker, place: str) -> Scrape | None:
    if not place:
        return None
    try:
        answer = asker.try_get(place)
    except Unreachable:
        return None
    if answer.status != 200:
        return None
    if place == "/metrics":
        scrape = read_scrape(answer.text)
        return scrape if scrape.kind else None
    sample = read_load(answer.json)
    if sample is None:
        return None
    scrape = Scrape(kind=sample.source)
    shown = scrape.at("")
    shown.gauges |= {_FROM_LOAD[name]: value for name, value in sample.values.items() if name in _FROM_LOAD}
    shown.totals |= {
        _TOTALS_FROM_LOAD[name]: value for name, value in sample.values.items() if name in _TOTALS_FROM_LOAD
    }
    return scrape


def _round_trip(asker: Asker) -> float | None:
    try:
        return asker.try_get("/health").took_s
    except Unreachable:
        return None


def _settings(asker: Asker, known: Settings) -> tuple[Settings, Promise]:
    """What it says of its limits and promises beside its metrics; each only where it says so."""
    config, info, card = asker.json_of("/admin/config"), asker.json_of("/get_server_info"), _card(asker)
    promise = Promise()
    ttft_s, itl_s = _number(config.get("slo_ttft")), _number(config.get("slo_itl"))
    if ttft_s or itl_s:
        promise = Promise(ttft_s or promise.ttft_s, itl_s or promise.itl_s, promise.e2e_s, said=bool(itl_s))
    return (
        replace(
            known,
            max_num_seqs=known.max_num_seqs or _number(config.get("max_num_seqs", info.get("max_running_requests"))),
            max_num_batched_tokens=known.max_num_batched_tokens
            or _number(config.get("max_num_batched_tokens", info.get("chunked_prefill_size"))),
            max_model_len=_number(card.get("max_model_len", config.get("max_model_len"))),
            kv_tokens=known.kv_tokens or _number(info.get("max_total_num_tokens")),
            kv_full=config.get("kv_full"),
            policy=config.get("policy"),
            slo_ttft_s=ttft_s,
            slo_itl_s=itl_s,
        ),
        promise,
    )


def _card(asker: Asker) -> dict[str, Any]:
    listed = asker.json_of("/v1/models").get("data")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
