"""`observe`: a live server, scraped over a window. What it cannot tell is said, and nothing is asked of its model.

On the way the round trip is measured with a request that the server does no work for; the least of them counts, since
a busy server answers it late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from headway.doctor.facts import Client, Facts, Promise, Settings, positive
from headway.doctor.recorder import Recorder
from headway.doctor.scrape import Scrape, read_scrape
from headway.metrics.worker_signals import read_load
from headway.wire.asker import Asker, Unreachable

# One that does not answer the last look is asked so often again, an interval apart: it may have been busy, or be gone.
ASKED_AGAIN = 2
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
    said = _said(asker)
    zero = clock()
    due, again = zero, 0
    while True:
        scrape = _scrape(asker, place)
        now = clock()  # an answer that took long tells of when it came
        recorder.add(scrape, now - zero)
        answers = scrape is not None or not place
        trip = _round_trip(asker) if answers else None
        if trip is not None:
            trips.append(trip)
        told(min(now - zero, window_s))
        if now - zero >= window_s:
            if answers or again == ASKED_AGAIN:
                break
            again += 1
        due = max(due + interval_s, clock())
        sleep(max(0.0, (due if again else min(due, zero + window_s)) - clock()))
    facts = recorder.facts()
    if not place:
        facts = replace(facts, source="unknown", missing=_nothing(asker))
    settings, promise = _settings(said, facts)
    network = Client(network_s=min(trips) if trips else None, network_probes=len(trips))
    return replace(facts, client=network, settings=settings, promise=promise, worker_urls=said.workers)


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


class _Said(NamedTuple):
    """What it says of itself, before it is watched: later it may not answer any more."""

    config: Mapping[str, Any]
    info: Mapping[str, Any]
    card: Mapping[str, Any]
    workers: tuple[str, ...]  # a gateway's, by their URLs


def _said(asker: Asker) -> _Said:
    return _Said(asker.json_of("/admin/config"), asker.json_of("/get_server_info"), _card(asker), _workers(asker))


def _settings(said: _Said, facts: Facts) -> tuple[Settings, Promise]:
    """What it says of its limits and promises beside its metrics; each only where it says so."""
    config, info, card, known = said.config, said.info, said.card, facts.settings
    ttft_s, itl_s = positive(config.get("slo_ttft")), positive(config.get("slo_itl"))
    return (
        replace(
            known,
            max_num_seqs=known.max_num_seqs or positive(config.get("max_num_seqs", info.get("max_running_requests"))),
            max_num_batched_tokens=known.max_num_batched_tokens
            or positive(config.get("max_num_batched_tokens", info.get("chunked_prefill_size"))),
            max_model_len=positive(card.get("max_model_len", config.get("max_model_len"))),
            kv_tokens=known.kv_tokens or positive(info.get("max_total_num_tokens")),
            kv_full=config.get("kv_full"),
            policy=config.get("policy"),
            slo_ttft_s=known.slo_ttft_s or ttft_s,
            slo_itl_s=known.slo_itl_s or itl_s,
            told=config,
        ),
        Promise.of(ttft_s, itl_s, usual=facts.promise),
    )


def _workers(asker: Asker) -> tuple[str, ...]:
    listed = asker.json_of("/admin/workers").get("data")
    each = listed if isinstance(listed, list) else []
    return tuple(str(one["url"]) for one in each if isinstance(one, dict) and one.get("url"))


def _card(asker: Asker) -> dict[str, Any]:
    listed = asker.json_of("/v1/models").get("data")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, dict) else {}
