"""The probing load: a few seconds at each of some concurrencies, and a fit from what the server showed of itself."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headway.loadtest.bench.options import PromiseOptions
from headway.loadtest.bench.profiles import Offered
from headway.loadtest.bench.tester import Result, Tester
from headway.loadtest.errors import InvalidPlan, Rejected
from headway.loadtest.record import Record
from headway.loadtest.result import Environment, Load
from headway.loadtest.runner.plan import ClosedLoad
from headway.simulate.fit import Observed, StepFit, fit, read_step_log
from headway.simulate.fit.step_log import LEAST_STEPS
from headway.tune.workload import Outside
from headway.workload.item import Item

STAGES = (1, 4, 16, 48)  # requests at a time
MOST_ITEMS = 4000  # of a stage
LEAST_REQUESTS = 20
_TAIL_BYTES = 1 << 26
OWN_BLOCK_TOKENS = 32  # of our own engine, whose log says it where there is one


def stages(offered: Offered, seconds: float) -> list[Offered]:
    """Closed loops over the load's own requests: as fast as the server is, and never an overload."""
    items: list[Item] = []
    for item, _ in zip(offered.items(), range(MOST_ITEMS), strict=False):
        items.append(item)
    if not items:
        raise InvalidPlan("This load has no request at all: use a longer --duration or a higher rate.")
    whole = items * math.ceil(MOST_ITEMS / len(items))
    found = []
    for number, concurrency in enumerate(STAGES):
        mine = whole[number * 97 % len(items) :]  # not the same few first ones in each
        lasts_s = seconds / len(STAGES)
        described = Load(
            profile="concurrency",
            loop="closed",
            description=f"probing, {concurrency} at a time",
            concurrency=concurrency,
            duration_s=lasts_s,
        )
        found.append(
            Offered(ClosedLoad(mine, concurrency, duration_s=lasts_s), described, items=_Items(mine), percentile=50.0)
        )
    return found


@dataclass(frozen=True, slots=True)
class _Items:
    items: Sequence[Item]

    def __call__(self) -> Any:
        return iter(self.items)


def prober(tester: Tester, drain_s: float) -> Tester:
    """The same tester, promising nothing: paced steps would show less."""
    client = replace(tester.options.client, drain=drain_s)
    options = replace(tester.options, promise=PromiseOptions(), client=client)
    return replace(tester, options=options, template=replace(tester.template, slo_ttft_s=None, slo_itl_s=None))


@dataclass(frozen=True, slots=True)
class LogMark:
    """Where a step log ended before the probing load."""

    path: Path
    offset: int

    @classmethod
    def of(cls, path: str | None) -> LogMark | None:
        """None where the server writes none, or none that can be read from here."""
        if not path or not Path(path).is_file():
            return None
        return cls(Path(path), Path(path).stat().st_size)

    def steps_since(self) -> bytes | None:
        """The log's header and what came after the mark; None where that is too little."""
        with self.path.open("rb") as file:
            before = file.read(self.offset)
            since = file.read(_TAIL_BYTES)
        header = _last_header(since) or _last_header(before)  # it is buffered: a young server writes it late
        if header is None:
            return None
        lines = since.split(b"\n")[:-1]  # the last may be half written
        steps = [line for line in lines if line.startswith(b'{"kind":"step"') and line.endswith(b"}")]
        return b"\n".join([header, *steps, b""]) if len(steps) >= LEAST_STEPS else None

    def served_s(self) -> list[float]:
        """Of each request that has ended since: arrival to first token, at the server. In order of arrival."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            lines = file.read(_TAIL_BYTES).split(b"\n")
        found: list[tuple[int, float]] = []
        for line in lines:
            if line.startswith(b'{"kind":"request"') and line.endswith(b"}"):
                told = msgspec.json.decode(line)
                found.append((told["arrival_ns"], told["queue_s"] + told["prefill_s"]))
        return [seconds for _, seconds in sorted(found)]


def _last_header(content: bytes) -> bytes | None:
    at = content.rfind(b'{"kind":"header"')
    line, ended, _ = content[at:].partition(b"\n") if at >= 0 else (b"", b"", b"")
    return line if ended else None


@dataclass(frozen=True, slots=True)
class Probed:
    """A fit, and what requests meet outside of the engine."""

    fit: StepFit
    outside: Outside
    source: str  # in words


def fit_of(results: Sequence[Result], mark: LogMark | None, given: Mapping[str, Any]) -> Probed:
    """From the step log where there is one, else from when tokens came. `given`: fields of `fit.Server`.

    Raises `Rejected` where too little came, `ConfigError` for what cannot be fitted.
    """
    records = [record for result in results for record in result.records if _told(record)]
    more, jitter_ns = _more_input(records), _jitter_ns(results[0])
    if mark is not None and (content := mark.steps_since()) is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step log"
            path.write_bytes(content)
            found = fit(logs=[read_step_log(path)], given=given)
        outside_ns = _outside_ns(results[0], mark)
        return Probed(
            found, Outside(outside_ns, more, jitter_ns), f"{found.valid.steps:,} steps of the server's step log"
        )
    if len(records) < LEAST_REQUESTS:
        errors = next((record.error for result in results for record in result.records if record.error), "")
        raise Rejected(
            f"The probing load brought {len(records)} finished requests, and a fit needs {LEAST_REQUESTS}"
            + (f" ({errors})" if errors else "")
            + ". Give it longer with --probe, or shorter requests."
        )
    found = fit(observed=[_observed(result) for result in results if _enough(result)], given=given)
    return Probed(found, Outside(found.request_ns, more, jitter_ns), f"{len(records):,} requests as a client saw them")


def _told(record: Record) -> bool:
    return record.ok and record.first_ns >= 0 and record.output_tokens > 0


def _enough(result: Result) -> bool:
    return sum(map(_told, result.records)) >= 2


def _more_input(records: Sequence[Record]) -> int:
    """Tokens that the server counts beyond those asked for: a chat template's."""
    known = [record.input_tokens - record.asked_input_tokens for record in records if record.input_tokens > 0]
    return max(0, round(float(np.median(known)))) if known else 0


def _jitter_ns(first: Result) -> int:
    """By how much a request's worst gaps exceed its usual ones where nobody else is served: the way to the client, and
    whatever else runs on the machines. At the median, as p99 over p50.
    """
    gaps = [np.asarray(record.gaps_ns, np.float64) for record in first.records if _told(record)]
    spread = [float(np.percentile(each, 99) - np.percentile(each, 50)) for each in gaps if len(each) > 1]
    return round(float(np.median(spread))) if spread else 0


def _outside_ns(first: Result, mark: LogMark) -> int:
    """TTFT at the client beyond the server's own, with one request at a time, at the median."""
    outside = [(record.first_ns - record.sent_ns) / 1e9 for record in first.records if _told(record)]
    inside = mark.served_s()[: len(first.records)]
    if not outside or not inside:
        return 0
    return max(0, round((float(np.median(outside)) - float(np.median(inside))) * 1e9))


def _observed(result: Result) -> Observed:
    """A stage as `headway fit` reads a load test, straight from its records."""
    records = sorted(filter(_told, result.records), key=lambda record: record.sent_ns)
    columns = np.array(
        [
            (
                record.sent_ns,
                record.input_tokens if record.input_tokens > 0 else record.asked_input_tokens,
                record.output_tokens,
                record.first_ns,
                max(record.last_ns, record.first_ns),
            )
            for record in records
        ],
        np.float64,
    ).T
    sent, prompt, output, first, last = columns
    zero = float(sent[0])
    nothing = np.full(len(records), math.nan)
    return Observed(
        result.run.load.description,
        (sent - zero) / 1e9,
        prompt.astype(np.int64),
        output.astype(np.int64),
        nothing,
        nothing,
        (first - zero) / 1e9,
        (last - zero) / 1e9,
        meta={"model": result.run.target.model},
    )


def server_facts(config: Mapping[str, Any], environment: Environment, kind: str) -> dict[str, Any]:
    """Fields of `fit.Server` that the server told. `environment`: what the load tester read of it."""
    flags = {name.replace("-", "_"): value for name, value in environment.flags.items()}
    told = {**flags, **config}
    blocks = _number(told.get("num_gpu_blocks"))
    facts: dict[str, Any] = {
        "policy": "headway" if kind == "headway" else "vllm",
        "max_num_seqs": _number(told.get("max_num_seqs") or told.get("max_running_requests")),
        "max_num_batched_tokens": _number(told.get("max_num_batched_tokens") or told.get("chunked_prefill_size")),
        "block_size": _number(told.get("block_size")),
        "num_blocks": blocks - 1 if blocks and kind == "vllm" else None,  # one block is the null block
    }
    if kind == "headway":
        facts |= {"policy": config.get("policy", "headway"), "num_blocks": _number(flags.get("kv_blocks_total"))}
        facts |= {"prefix_cache": config.get("prefix_cache_scope") != "off", "plans_ahead": False}
        facts |= {"block_size": facts["block_size"] or OWN_BLOCK_TOKENS, "whole_prompt_kv": True}
        if config.get("policy") == "vllm":
            facts["whole_prompt_kv"] = False
    return {name: value for name, value in facts.items() if value is not None}


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
