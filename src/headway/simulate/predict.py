"""`predict`: for a notebook or a script: a trace, or arrivals, at a fitted server; what each request met, and figures.

prediction = predict("trace.jsonl", load_fit(Path("fit.json")), max_num_seqs=64)
prediction.summary["ttft_s"].percentiles["95"].value
pandas.DataFrame(prediction.table())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.core.errors import ConfigError
from headway.core.scheduler.policies import POLICIES
from headway.metrics import latency
from headway.metrics.figures import Distribution
from headway.metrics.latency import Timings
from headway.metrics.percentiles import distribution
from headway.simulate.demand import EVERYBODY, Clients, requests_of
from headway.simulate.drive import simulate
from headway.simulate.fit.model import StepFit
from headway.simulate.run import Record, Run
from headway.simulate.settings import VirtualFleet, VirtualRequest, VirtualSettings, VirtualWorker
from headway.simulate.timings import timings
from headway.workload.item import Arrival
from headway.workload.traces import Cut, read_trace

Arrivals = str | Path | Iterable[Arrival] | Iterable[VirtualRequest]
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "kv_full")
_SHOWN = ("50", "90", "95", "99")
_COLUMNS = (
    "id", "arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "queue_s", "ttft_s", "tpot_s", "e2e_s",
    "worker", "tenant", "end",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was simulated. Times of requests are from their arrival on; nothing was left out as warm-up."""

    run: Run
    outside: tuple[str, ...] = ()  # where steps left the range in which the fit holds; "": nowhere
    _timings: Timings = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_timings", timings(self.run))

    @property
    def records(self) -> list[Record]:
        """By request, in order of arrival, ns."""
        return self.run.records

    @property
    def summary(self) -> dict[str, Distribution]:
        """`ttft_s`, `itl_s`, `tpot_s`, `e2e_s` and `queue_s` of the requests that ended well, with 95% intervals."""
        seen = self._timings
        started = [r.started_ns - r.arrival_ns for r in self.records if r.first_token_ns]
        samples = {
            "ttft_s": latency.Samples(latency.ttft_s(seen), None, latency.waited_s(seen)),
            "itl_s": latency.token_gaps_in_time(seen),
            "tpot_s": latency.Samples(latency.tpot_s(seen)),
            "e2e_s": latency.Samples(latency.e2e_s(seen), None, latency.waited_s(seen)),
            "queue_s": latency.Samples(np.array(started, np.float64) / 1e9),
        }
        return {name: distribution(*each) for name, each in samples.items()}

    @property
    def output_token_rate(self) -> float:
        """Tokens a second, from the first arrival to the last end."""
        begun_ns = min((record.arrival_ns for record in self.records), default=0)
        took_ns = self.run.ended_ns - begun_ns
        return self.run.output_tokens / (took_ns / 1e9) if took_ns > 0 else 0.0

    def table(self) -> dict[str, npt.NDArray[Any]]:
        """A column for each fact, a row for each request: what `pandas.DataFrame` takes. Unknown is NaN."""
        rows = [_row(record) for record in self.records]
        return {name: np.array([row[name] for row in rows]) for name in _COLUMNS}

    def _repr_html_(self) -> str:
        rows = []
        for name, found in self.summary.items():
            cells = (found.percentiles.get(key) for key in _SHOWN)
            told = "".join(f"<td>{_told(cell.value if cell is not None else None)}</td>" for cell in cells)
            rows.append(f"<tr><th>{name}</th><td>{_told(found.mean)}</td>{told}</tr>")
        head = "".join(f"<th>{title}</th>" for title in ("", "mean", *(f"p{key}" for key in _SHOWN)))
        ends = ", ".join(f"{count:,} {end}" for end, count in self.run.ends.items())
        note = f"Simulated: {len(self.records):,} requests ({ends}), {self.output_token_rate:,.0f} output tokens/s."
        said = "".join(f"<p>{escape(text)}</p>" for text in (note, *self.outside))
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>{said}"


def predict(
    load: Arrivals,
    server: StepFit | VirtualWorker,
    *,
    workers: int = 1,
    clients: Clients = EVERYBODY,
    cut: Cut | None = None,
    **settings: Any,
) -> Prediction:
    """Simulate `load` at `server`, or at our gateway before several of it.

    `load` is a trace file (of which `cut` is taken), arrivals, or requests as `simulate` takes them. `settings` change
    the server's: `max_num_seqs`, `max_num_batched_tokens`, `kv_full`, `policy` (by name), `num_blocks`, `block_size`,
    `prefix_cache`.

    Raises:
        ConfigError: a setting that there is not, or limits that contradict each other.
        WorkloadError: a trace that cannot be read.
        Stuck: requests that nothing will ever start.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}, and must be at least 1", param="workers")
    worker = _changed(server.worker() if isinstance(server, StepFit) else server, settings)
    if isinstance(server, StepFit) and clients is EVERYBODY:
        clients = replace(clients, way_ns=server.request_ns)
    run = simulate(
        _requests(load, clients, cut),
        VirtualSettings(workers=(worker,) * workers, fleet=VirtualFleet() if workers > 1 else None, log_tokens=True),
    )
    return Prediction(run, _outside(run, server) if isinstance(server, StepFit) else ())


def _requests(load: Arrivals, clients: Clients, cut: Cut | None) -> list[VirtualRequest]:
    if isinstance(load, str | Path):
        return requests_of(read_trace(load, cut or Cut()).arrivals, clients)
    given = list(load)
    arrivals = [one for one in given if isinstance(one, Arrival)]
    requests = [one for one in given if isinstance(one, VirtualRequest)]
    return requests or requests_of(arrivals, clients)


def _changed(worker: VirtualWorker, settings: Mapping[str, Any]) -> VirtualWorker:
    known = (*_LIMITS, "policy", "num_blocks", "block_size", "prefix_cache")
    for name in settings:
        if name not in known:
            raise ConfigError(f"there is no setting {name!r}; known are {', '.join(known)}", param=name)
    changes = dict(settings)
    limits = replace(worker.limits, **{name: changes.pop(name) for name in _LIMITS if name in changes})
    if "policy" in changes:
        if changes["policy"] not in POLICIES:
            raise ConfigError(f"policy is {changes['policy']!r}; known are {', '.join(POLICIES)}", param="policy")
        changes["policy"] = POLICIES[changes["policy"]]
    return replace(worker, limits=limits, **changes)


def _outside(run: Run, fit: StepFit) -> tuple[str, ...]:
    beyond = run.reach.beyond(fit.valid.max_prefill_tokens, fit.valid.max_decode_seqs, fit.valid.max_context_tokens)
    return (beyond,) if beyond else ()


def _row(record: Record) -> dict[str, Any]:
    def since_s(at_ns: int) -> float:
        return (at_ns - record.arrival_ns) / 1e9 if at_ns or record.first_token_ns else np.nan

    tpot_ns = record.tpot_ns
    return {
        "id": record.id,
        "arrival_s": record.arrival_ns / 1e9,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "queue_s": since_s(record.started_ns),
        "ttft_s": since_s(record.first_token_ns),
        "tpot_s": np.nan if tpot_ns is None else tpot_ns / 1e9,
        "e2e_s": since_s(record.ended_ns),
        "worker": -1 if record.worker is None else record.worker,
        "tenant": record.tenant,
        "end": record.end,
    }


def _told(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"
