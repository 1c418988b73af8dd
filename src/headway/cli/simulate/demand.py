"""What comes: a profile's load, or what came to a real service, as a simulation is told it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from headway.core.errors import ConfigError
from headway.core.request import Slo
from headway.engine.assembly import ns
from headway.loadtest.bench.options import Concurrency, Options, Profile, name_of
from headway.loadtest.bench.profiles import Offered, Terms, offer
from headway.loadtest.bench.texts import LOOKED_AT
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.result import Load
from headway.loadtest.runner.plan import ClosedLoad, OpenLoad, read
from headway.simulate.closed import ClosedLoop
from headway.simulate.demand import Clients, requests_of
from headway.simulate.replay_fleet import read_log
from headway.simulate.settings import VirtualRequest
from headway.workload.item import Arrival, Item
from headway.workload.tokens import Calibration, Counted, Measure, TokenizerFile

RETRIES = 1_000  # of a client that comes again whenever it is told to
# What a gateway's log says the same of is like this for the report.
REPLAY = "replay"


@dataclass(slots=True)
class Demand:
    """`loop` None: all requests are known beforehand, and `items` are theirs, by number."""

    requests: list[VirtualRequest]
    items: Sequence[Item]
    loop: ClosedLoop | None
    described: Load
    percentile: float
    bursts_s: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sent(self) -> Sequence[Item]:
        """Of a closed loop, those that came to be sent."""
        return self.loop.sent if self.loop is not None else self.items


def clients_of(options: Options, ttft_limit_s: float, **others: Any) -> Clients:
    promise = options.promise
    slo = Slo(ns(promise.slo_ttft or 0.0), ns(promise.slo_itl or 0.0), ns(ttft_limit_s))
    retries = RETRIES if options.client.respect_retry_after else 0
    return Clients(slo=slo, timeout_ns=ns(options.client.timeout), retries=retries, **others)


def offered(profile: Profile, options: Options, max_model_len: int | None) -> Offered:
    """The load. Raises InvalidPlan and WorkloadError, also for a request that is longer than the model takes."""
    terms = Terms(options.window, options.text, _measure(options), max_model_len)
    found = offer(profile, terms)
    if max_model_len is not None:
        _check_lengths(profile, found, max_model_len)
    return found


def demand_of(found: Offered, clients: Clients) -> Demand:
    load, described = found.load, found.described
    if isinstance(load, OpenLoad):
        arrivals = list(read(load.arrivals))
        items = [arrival.item for arrival in arrivals]
        return Demand(requests_of(arrivals, clients), items, None, described, found.percentile, found.bursts_s)
    assert isinstance(load, ClosedLoad)
    loop = ClosedLoop(
        iter(read(load.items)),
        load.concurrency,
        requests=load.requests,
        duration_ns=None if load.duration_s is None else ns(load.duration_s),
        think_ns=ns(load.think_s),
        at_least=load.at_least,
        most_ns=None if load.most_s is None else ns(load.most_s),
        clients=clients,
    )
    return Demand(loop.first(), [], loop, described, found.percentile)


def feeler(options: Options, max_model_len: int | None, clients: Clients) -> Demand:
    """A short closed loop: what it gets through says where a ramp should end, as `headway bench` finds it."""
    window = replace(options.window, duration=5.0, requests=2000, warmup=0.0, cooldown=0.0)
    return demand_of(offered(Concurrency(concurrency=32), replace(options, window=window), max_model_len), clients)


def _measure(options: Options) -> Measure:
    """How long given prompts are; made up ones are as long as they are asked for."""
    given = options.text.tokenizer
    if given is None or given == "none":
        return Calibration()
    if given == "server":
        raise InvalidPlan("--tokenizer server: a simulation has no server to ask. Give a tokenizer.json, or none.")
    path = Path(given).expanduser()
    return Counted(TokenizerFile(path / "tokenizer.json" if path.is_dir() else path))


def _check_lengths(profile: Profile, found: Offered, max_model_len: int) -> None:
    whole = name_of(profile) == "trace"
    limits = None if whole else LOOKED_AT
    for number, item in enumerate(found.items(), 1):
        if limits is not None and number > limits:
            return
        if item.input_tokens + item.output_tokens > max_model_len:
            where = f"Request {number} of {getattr(profile, 'file', '')}" if whole else "A request"
            raise InvalidPlan(
                f"{where} has {item.input_tokens:,} input and {item.output_tokens:,} output tokens; the model takes "
                f"{max_model_len:,} together (--max-model-len). "
                + (
                    "Use --max-input-len and --max-output-len, with --over skip to leave such requests out."
                    if whole
                    else "Use a smaller --input-len or --output-len."
                )
            )


# -- what came to a real service ---------------------------------------------------------------------------------------


def replayed(path: Path, clients: Clients, seed: int | None) -> Demand:
    """By what is in the file. Raises `ConfigError` for one that tells no requests."""
    if path.is_dir() or path.suffix == ".json":
        return _of_bench(path / "run.json" if path.is_dir() else path, clients)
    header = _header(path)
    if header.get("log") == "decision" and header.get("body") == "gateway":
        return _of_gateway(path, clients)
    if header.get("log") == "decision":
        arrivals, note = _of_decisions(path)
    elif header.get("log") == "step":
        arrivals, note = _of_steps(path)
    else:
        raise ConfigError(
            f"{path}: no log of headway, and no run.json of `headway bench`: it has no header line that says so. A "
            "trace is simulated by `headway simulate trace FILE`.",
            param="replay",
        )
    return _as_open(path, arrivals, clients, (note,) if note else (), seed)


def _header(path: Path) -> dict[str, Any]:
    """Of the last run that the file holds."""
    found: dict[str, Any] = {}
    for line in _lines(path):
        if line.get("kind") == "header":
            found = line
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Those that are whole: a crash may have cut one short."""
    try:
        with path.open("rb") as file:
            for text in file:
                try:
                    line = msgspec.json.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                if isinstance(line, dict):
                    yield line
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", param="replay") from error


def _since_header(path: Path) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for line in _lines(path):
        if line.get("kind") == "header":
            kept.clear()
        else:
            kept.append(line)
    return kept


def _of_steps(path: Path) -> tuple[list[Arrival], str]:
    """A step log has a line for each request that was started and ended."""
    arrivals = [
        Arrival(line["arrival_ns"], Item(line["prompt_tokens"], line["output_tokens"], tenant=line["tenant"]))
        for line in _since_header(path)
        if line.get("kind") == "request" and line["output_tokens"] > 0
    ]
    note = "a step log does not tell what was never started, nor what prompts have in common"
    return sorted(arrivals, key=lambda arrival: arrival.at_ns), note


def _of_decisions(path: Path) -> tuple[list[Arrival], str]:
    """An engine's decision log has whole prompts: their beginnings are shared as they were."""
    asked: dict[str, tuple[int, dict[str, Any]]] = {}
    outputs: dict[str, int] = {}
    for line in _since_header(path):
        if line.get("stimulus") == "submit":
            asked.update({one["request"]: (line["now_ns"], one) for one in line["requests"]})
        elif line.get("decision") == "end" and line.get("output_tokens"):
            outputs[line["request"]] = line["output_tokens"]
    known: dict[tuple[int, ...], int] = {}
    arrivals = []
    for name, (at_ns, one) in asked.items():
        prompt = one["prompt"]
        blocks = tuple(
            known.setdefault(tuple(prompt[: start + 16]), len(known)) for start in range(0, len(prompt) - 15, 16)
        )
        output = outputs.get(name) or _usual(outputs)
        arrivals.append(Arrival(at_ns, Item(len(prompt), output, "", one["tenant"], blocks, 16 if blocks else 0)))
    lost = len(asked) - len(asked.keys() & outputs.keys())
    note = (
        f"{lost:,} requests did not end with an answer; theirs is taken to be the median of the others" if lost else ""
    )
    return arrivals, note


def _usual(outputs: dict[str, int]) -> int:
    values = sorted(outputs.values())
    return values[len(values) // 2] if values else 1


def _as_open(path: Path, arrivals: list[Arrival], clients: Clients, notes: tuple[str, ...], seed: int | None) -> Demand:
    if not arrivals:
        raise ConfigError(f"{path}: no request in it that was answered; there is nothing to replay", param="replay")
    zero = arrivals[0].at_ns
    moved = [replace(arrival, at_ns=arrival.at_ns - zero) for arrival in arrivals]
    items = [arrival.item for arrival in moved]
    described = _described(path, [arrival.at_ns for arrival in moved], seed)
    return Demand(requests_of(moved, clients), items, None, described, 95.0, notes=notes)


def _described(path: Path, times_ns: Sequence[int], seed: int | None) -> Load:
    lasts_s = (times_ns[-1] - times_ns[0]) / 1e9
    return Load(
        profile=REPLAY,
        loop="open",
        description=f"{len(times_ns):,} requests of {path.name} in {lasts_s:,.4g} s",
        rate=len(times_ns) / lasts_s if lasts_s else None,
        requests=len(times_ns),
        stationary=False,
        seed=seed or 0,
        options={"replayed": path.name},
        settings={"replayed": path.name},
    )


def _of_gateway(path: Path, clients: Clients) -> Demand:
    log = read_log(path)
    if not log.requests:
        raise ConfigError(f"{path}: nobody came; there is nothing to replay", param="replay")
    requests = [
        replace(
            one,
            id=f"r{number}",
            arrival_ns=one.arrival_ns + clients.way_ns,
            cancel_ns=one.cancel_ns and one.cancel_ns + clients.way_ns,
        )
        for number, one in enumerate(log.requests)
    ]
    items = [Item(_prompt_tokens(one), one.output_tokens, tenant=one.tenant) for one in requests]
    notes = (
        f"of {log.guessed:,} requests the log does not tell the output: it is taken to be their tenant's median",
    ) * bool(log.guessed)
    described = _described(path, [one.arrival_ns for one in log.requests], None)
    return Demand(requests, items, None, described, 95.0, notes=notes)


def _prompt_tokens(request: VirtualRequest) -> int:
    return request.prompt if isinstance(request.prompt, int) else len(request.prompt)


def _of_bench(path: Path, clients: Clients) -> Demand:
    """A closed loop is made again with the same lengths; an open one with the same times as well."""
    from headway.loadtest.bench.files import read as read_saved

    run, records = read_saved(path)
    if not records:
        raise ConfigError(
            f"{path}: {path.with_suffix('.csv').name} is not beside it, and holds the requests: make the run with "
            "`headway bench --output FOLDER`.",
            param="replay",
        )
    ordered = sorted(records, key=lambda record: (record.scheduled_ns, record.index))
    arrivals = [
        Arrival(
            max(0, record.scheduled_ns),
            Item(
                record.input_tokens if record.input_tokens > 0 else max(1, record.asked_input_tokens),
                record.output_tokens if record.ok and record.output_tokens > 0 else max(1, record.asked_output_tokens),
                record.kind,
                record.tenant,
            ),
        )
        for record in ordered
    ]
    items = [arrival.item for arrival in arrivals]
    # The text of a measured load is not ours, so that the two are compared by what they share.
    described = msgspec.structs.replace(run.load, settings={**run.load.settings, "replayed": path.parent.name})
    if run.load.loop == "closed" and run.load.concurrency:
        loop = ClosedLoop(iter(items), run.load.concurrency, clients=clients)
        return Demand(loop.first(), [], loop, described, 95.0)
    return Demand(requests_of(arrivals, clients), items, None, described, 95.0)
