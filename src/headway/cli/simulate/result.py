"""A simulated run, as a load test would have seen it: the same records, judged by the same definitions."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec
import numpy as np

from headway.cli import version
from headway.cli.simulate.demand import Demand
from headway.cli.simulate.service import Service
from headway.core.errors import Refused
from headway.loadtest.bench.options import Options, load_options
from headway.loadtest.bench.tester import Result
from headway.loadtest.record import CountedBy, Fate
from headway.loadtest.record import Record as Seen
from headway.loadtest.result import Environment, Load, Run, Signals, Slo, Target
from headway.loadtest.side.noted import note
from headway.loadtest.summary import client_figures, summarise
from headway.loadtest.table import RecordTable, tabulate
from headway.loadtest.verdict import Tolerances, judge
from headway.simulate import Record
from headway.simulate import Run as Simulated
from headway.workload.item import Item

# Virtual time begins at nothing, and the same run is the same file.
BEGINNING = "1970-01-01T00:00:00+00:00"
MOST_SIGNALS = 3_600
RUN_ID_CHARS = 16


def result_of(simulated: Simulated, demand: Demand, service: Service, options: Options) -> Result:
    """The result, as `headway bench` saves and shows it."""
    records = _seen(simulated, demand.sent, service.fit.request_ns)
    table = tabulate(records)
    load = _load(demand, table, service, simulated, options)
    promise = options.promise
    slo = Slo(ttft_s=promise.slo_ttft, itl_s=promise.slo_itl, e2e_s=promise.slo_e2e)
    summary = summarise(table, load, slo, rival_tools=options.rivals, bursts_s=demand.bursts_s)
    client = client_figures(table, load, summary.window_s, processes=1, cpu_ratio=0.0, loop_lags_s=[0.0])
    verdict = judge(table, summary, client, load, Tolerances(percentile=demand.percentile))
    told = _described(service)
    remarks = [f"Simulated, not measured: {told}.", *outside(simulated, service), *verdict.remarks]
    environment = Environment(
        model=service.fit.model or None,
        device=service.fit.device or None,
        framework=f"headway {version()}" if service.config.engine.policy == "headway" else None,
        flags=dict(service.flags),
    )
    note(environment, options.noted)
    run = Run(
        started_at=BEGINNING,
        elapsed_s=max(simulated.ended_ns / 1e9, summary.window_s[1]),
        target=Target(url="simulation", endpoint="chat", model=service.fit.model or "unknown"),
        load=load,
        slo=slo,
        environment=environment,
        client=client,
        summary=summary,
        verdict=msgspec.structs.replace(verdict, remarks=remarks),
        signals=_signals(simulated),
        simulation=told,
    )
    # The same run has the same id, and another has another.
    run_id = sha256(msgspec.json.encode(run)).hexdigest()[:RUN_ID_CHARS]
    return Result(msgspec.structs.replace(run, run_id=run_id), records)


def _described(service: Service) -> str:
    fit, flags = service.fit, service.flags
    of = " on ".join(part for part in (fit.model, fit.device) if part) or "a server"
    workers = "" if flags["workers"] == "1" else f"{flags['workers']} workers of "
    return f"{workers}{of}, policy {flags['policy']}, steps as fitted to {', '.join(fit.sources)}"


def outside(simulated: Simulated, service: Service) -> list[str]:
    """Where the load left the range in which the fit holds: there its steps are a guess."""
    valid = service.fit.valid
    said = simulated.reach.beyond(valid.max_prefill_tokens, valid.max_decode_seqs, valid.max_context_tokens)
    return [said] if said else []


def _load(demand: Demand, table: RecordTable, service: Service, simulated: Simulated, options: Options) -> Load:
    load = demand.described
    loop = demand.loop
    if loop is not None and loop.at_least and len(table):
        until_s = float(table.timings.scheduled_ns.max()) / 1e9
        load = msgspec.structs.replace(load, duration_s=max(load.duration_s or 0.0, until_s))
    valid = service.fit.valid
    counters, kv = simulated.counters, simulated.kv
    looked_up = sum(one.looked_up_tokens for one in kv)
    settings = {
        **load.settings,
        "simulation": _described(service),
        "the fit holds for": (
            f"steps of up to {valid.max_prefill_tokens:,} prompt tokens, {valid.max_decode_seqs:,} decoding sequences, "
            f"{valid.max_context_tokens:,} tokens of context"
        ),
        "simulated steps": f"{simulated.engine_steps:,}",
        "preemptions": f"{sum(one.preemptions for one in counters):,}",
        "prompt tokens found in the cache": f"{sum(one.hit_tokens for one in kv) / looked_up:.1%}" if looked_up else "",
    }
    if service.notes or demand.notes:
        settings["notes"] = "; ".join((*service.notes, *demand.notes))
    told = load_options(options.server, options.client) | load.options  # those of a run that is made again are its own
    return msgspec.structs.replace(load, settings={name: text for name, text in settings.items() if text}, options=told)


# -- records -----------------------------------------------------------------------------------------------------------


def _seen(simulated: Simulated, items: Sequence[Item], way_ns: int) -> list[Seen]:
    """`way_ns`: what a request spends before it arrives at the service."""
    numbers: Mapping[str, int] = {f"r{number}": number for number in range(len(items))}
    made = []
    for place, record in enumerate(simulated.records):
        number = numbers.get(record.id, place)
        made.append(_one(record, number, items[number], way_ns))
    return sorted(made, key=lambda one: one.index)


def _one(record: Record, number: int, item: Item, way_ns: int) -> Seen:
    sent_ns = max(0, record.arrival_ns - way_ns)
    seen = Seen(
        index=number,
        kind=item.kind,
        tenant=record.tenant,
        asked_input_tokens=item.input_tokens,
        asked_output_tokens=item.output_tokens,
        scheduled_ns=sent_ns,
        sent_ns=sent_ns,
        ended_ns=record.ended_ns,
        fate=_fate(record),
        input_tokens=record.prompt_tokens,
        counted=CountedBy.USAGE,
        retries=max(0, record.asked - 1),
    )
    error = record.error
    if error is not None:
        seen.status, seen.error = error.status, error.message
        if isinstance(error, Refused):
            seen.retry_after_s = error.retry_after_s
    times = record.token_ns
    if times:
        seen.headers_ns = seen.first_ns = times[0]
        seen.last_ns = times[-1]
        gaps = np.diff(np.frombuffer(times, np.int64))
        seen.gaps_ns = array("q", gaps.tobytes())
        seen.gap_tokens = array("H", [1]) * len(gaps)
        seen.first_tokens, seen.chunks = 1, len(times)
    if record.finished:
        seen.status, seen.output_tokens, seen.cached_tokens = 200, record.output_tokens, record.cached_tokens
        seen.finish_reason = record.end
    return seen


def _fate(record: Record) -> Fate:
    if record.finished:
        return Fate.OK
    if record.end == "cancelled":
        return Fate.TIMEOUT
    if isinstance(record.error, Refused) or record.end in {"expired", "diverted"}:
        return Fate.LIMITED
    return Fate.REFUSED if record.end == "refused" else Fate.SERVER_ERROR


def _signals(simulated: Simulated) -> Signals:
    """What a server would have exported, once a second, or as often as makes `MOST_SIGNALS`: who waited and who ran."""
    records = simulated.records
    every_ns = max(1_000_000_000, simulated.ended_ns // MOST_SIGNALS)
    at_ns = np.arange(0, simulated.ended_ns + every_ns, every_ns, dtype=np.int64)
    arrived = np.sort([record.arrival_ns for record in records])
    started = np.sort([record.started_ns for record in records if record.started_ns or record.first_token_ns])
    ended = np.sort([record.ended_ns for record in records])
    unstarted = np.sort([record.ended_ns for record in records if not (record.started_ns or record.first_token_ns)])

    def until(times: np.ndarray) -> np.ndarray:
        return np.searchsorted(times, at_ns, side="right")

    waiting = until(arrived) - until(started) - until(unstarted)
    running = until(arrived) - until(ended) - waiting
    return Signals(
        times_s=(at_ns / 1e9).tolist(),
        series={
            "running": np.maximum(0, running).astype(float).tolist(),
            "waiting": np.maximum(0, waiting).astype(float).tolist(),
        },
        source="simulation",
    )
