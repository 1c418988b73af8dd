"""`traffic_of`: a rate and lengths, a trace, or what a load test sent, as a plan takes it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from headway.cli.bench.flags import taken
from headway.cli.plan.flags import INPUT_LEN, OUTPUT_LEN, TrafficOptions
from headway.loadtest.bench.options import TextOptions, Trace
from headway.loadtest.bench.texts import asked, shares_of
from headway.loadtest.errors import InvalidPlan
from headway.simulate.fit import read_bench
from headway.simulate.plan import Recorded, Steady, Traffic
from headway.workload.item import Arrival, Item
from headway.workload.mix import parse_shares
from headway.workload.tokens import Calibration, Counted, Measure, TokenizerFile
from headway.workload.traces import Cut, read_trace


def traffic_of(settings: dict[str, Any]) -> Traffic:
    """Raises `InvalidPlan`, `WorkloadError` and `ConfigError` for what is no traffic."""
    options, text, cut = taken(TrafficOptions, settings), taken(TextOptions, settings), taken(Trace, settings)
    said = [name for name in ("request_rate", "trace", "bench") if getattr(options, name) is not None]
    if len(said) != 1:
        which = "Nothing says" if not said else f"{' and '.join(map(_flag, said))} both say"
        raise InvalidPlan(f"{which} what will be asked: give one of --request-rate, --trace and --bench.")
    if options.request_rate is not None:
        _check_unused(cut, Trace(), "is about a trace", {"file", "start"})
        return _steady(options, options.request_rate, text)
    _check_unused(text, TextOptions(), "is about made up requests; a recorded day has its own", {"tokenizer"})
    _check_unused(options, TrafficOptions(), "is about made up requests", {"trace", "bench"})
    if options.trace is not None:
        limits = Cut(
            time_scale=cut.time_scale,
            max_input_tokens=cut.max_input_len,
            max_output_tokens=cut.max_output_len,
            over=cut.over,
        )
        read = read_trace(Path(options.trace).expanduser(), limits, sort=cut.sort)
        return Recorded(read.name, read.arrivals)
    _check_unused(cut, Trace(), "is about a trace", {"file", "start"})
    assert options.bench is not None
    return _of_bench(Path(options.bench).expanduser())


def _steady(options: TrafficOptions, rate: float, text: TextOptions) -> Steady:
    if options.share and (text.input_len or text.output_len):
        raise InvalidPlan(
            "The lengths of a mix are in its shares: --share NAME=WEIGHT/INPUT/OUTPUT or lengths, not both."
        )
    shares = parse_shares(options.share) if options.share else shares_of(text, INPUT_LEN, OUTPUT_LEN)
    return Steady(rate, asked(text, _measure(text), shares, None).source, options.burstiness)


def _measure(text: TextOptions) -> Measure:
    """How long given prompts are."""
    if text.tokenizer in {None, "none"}:
        return Calibration()
    if text.tokenizer == "server":
        raise InvalidPlan("--tokenizer server: a plan has no server to ask. Give a tokenizer.json, or none.")
    path = Path(str(text.tokenizer)).expanduser()
    return Counted(TokenizerFile(path / "tokenizer.json" if path.is_dir() else path))


def _of_bench(path: Path) -> Recorded:
    observed = read_bench(path / "run.json" if path.is_dir() else path)
    columns = (observed.arrival_s, observed.prompt_tokens, observed.output_tokens)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    arrivals = [Arrival(round(at_s * 1e9), Item(int(prompt), int(output))) for at_s, prompt, output in rows]
    return Recorded(f"the load of {observed.name}", arrivals)


def _check_unused(given: object, usual: object, why: str, but: set[str]) -> None:
    for field in fields(usual):  # type: ignore[arg-type]  # they are dataclasses
        if field.name not in but and getattr(given, field.name) != getattr(usual, field.name):
            raise InvalidPlan(f"{_flag(field.name)} {why}.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
