"""A server whose step times are known, live tests of it that take no time, and loads that strain it."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec

from headway.loadtest.bench.options import ClientOptions, Options, PromiseOptions, Rate, TextOptions, WindowOptions
from headway.loadtest.bench.profiles import Offered, Terms, offer
from headway.loadtest.bench.tester import Result
from headway.loadtest.client.address import Tls, parse_url
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.errors import Rejected, Unreachable
from headway.loadtest.record import Fate, Record
from headway.loadtest.result import Slo
from headway.simulate import simulate
from headway.simulate.fit import Coefficient, Server, StepFit, Valid
from headway.simulate.fit.terms import COLUMNS
from headway.tune import NotRestored, Settings, Tuning, Wanted, World, other_server, silent
from headway.tune.predict import NO_DOUBT, Prediction
from headway.tune.search import Grid
from headway.tune.workload import Outside, Workload
from headway.workload.tokens import Counted, words_in
from tests.loadtest.runs import run as run_of

US = 1_000
# Microseconds: a small model on a small machine.
COST = {"step_ns": 9_000, "prefill_token_ns": 480, "decode_seq_ns": 680, "context_token_ns": 1}
SLO = Slo(ttft_s=0.6, itl_s=0.12)
SMALL = Grid((4, 16, 64), (64, 256))


def fit_of(scale: float = 1.0, **server: Any) -> StepFit:
    """`scale` 2: twice as slow."""
    told = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "policy": "vllm", "prefix_cache": False, **server}
    ns = {name: COST.get(name, 0) * US * scale for name in COLUMNS}
    return StepFit(
        sources=["truth"],
        coefficients={name: Coefficient(value=value, low=value, high=value) for name, value in ns.items()},
        residuals=[],
        valid=Valid(
            steps=1000,
            max_prefill_tokens=1 << 14,
            min_decode_seqs=1,
            max_decode_seqs=512,
            max_context_tokens=1 << 22,
            max_attention_tokens=1 << 40,
        ),
        server=Server(**told),
    )


def options(slo: Slo = SLO, duration_s: float = 4.5, lengths: str = "64:256", outputs: str = "4:16") -> Options:
    return Options(
        window=WindowOptions(duration=duration_s, warmup=0.25, cooldown=0.0),
        promise=PromiseOptions(slo_ttft=slo.ttft_s, slo_itl=slo.itl_s, slo_e2e=slo.e2e_s),
        text=TextOptions(input_len=lengths, output_len=outputs),
        client=ClientOptions(drain=20.0),
    )


def offered(rate: float, asked: Options | None = None) -> Offered:
    asked = asked or options()
    return offer(Rate(request_rate=rate), Terms(asked.window, asked.text, Counted(words_in), None))


def workload(rate: float, slo: Slo = SLO, asked: Options | None = None) -> Workload:
    return Workload.of(offered(rate, asked), slo, Outside(), by_promise=False, drain_s=20.0)


def world(scale: float = 1.0) -> World:
    return World(fit_of(scale), other_server)


def predicted(truth: World, settings: Settings, load: Workload) -> Prediction:
    return truth.foresee(settings, load).judged(NO_DOUBT)


@dataclass
class VirtualTarget:
    """What `Admin` is, without a server. `dies_after`: so many live tests; then nothing can be changed any more."""

    current: Settings | None
    kind: str = "headway"
    changes: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    has: Settings | None = None
    dies_after: int | None = None
    tests: int = 0
    history: list[Settings] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.has = self.current or Settings(64, 512)

    def widen(self) -> Mapping[str, Any]:
        self.has = Settings(64, 1024)
        return self.config

    def apply(self, settings: Settings) -> None:
        if not self.answers():
            raise Unreachable("it is gone")
        if not self.changes and settings != self.current:
            raise Rejected("it cannot be changed")
        self.has = settings
        self.history.append(settings)

    def restore(self) -> None:
        if not self.answers():
            raise NotRestored("The old settings could not be put back: it is gone")
        self.has = self.current

    def answers(self) -> bool:
        return self.dies_after is None or self.tests < self.dies_after


@dataclass
class VirtualTester:
    """What `Tester` is, against a true server on virtual time. `noise`: the spread of how fast it is, by the test."""

    target: VirtualTarget
    options: Options
    truth: World
    noise: float = 0.0
    seed: int = 0
    interrupts: int | None = None  # the live test in which Ctrl-C comes
    template: RequestTemplate = field(default_factory=lambda: RequestTemplate(parse_url("http://server")[0], "m"))
    tls: Tls = field(default_factory=Tls)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def offer(self, what: Any, asked: Options | None = None) -> Offered:
        return offered(what.request_rate, asked or self.options)

    async def measure(self, load: Offered, **_: Any) -> Result:
        target = self.target
        target.tests += 1
        assert target.has is not None
        scale = math.exp(self._chance.gauss(0.0, self.noise))
        records = served(self.truth, target.has, load, scale)
        promise = self.options.promise
        slo = Slo(ttft_s=promise.slo_ttft, itl_s=promise.slo_itl, e2e_s=promise.slo_e2e)
        run = run_of(records, load.described, slo=slo, interrupted=target.tests == self.interrupts)
        run.interrupted = target.tests == self.interrupts
        return Result(run, records)


def served(truth: World, settings: Settings, load: Offered, scale: float = 1.0) -> list[Record]:
    """The records of a live test: what a client would have seen of the true server, made `scale` times as slow."""
    slower = msgspec.structs.replace(
        truth.fit,
        coefficients={
            name: Coefficient(value=one.value * scale, low=0, high=0) for name, one in truth.fit.coefficients.items()
        },
    )
    mine = Workload.of(load, Slo(), Outside(), by_promise=False, drain_s=20.0)
    run = simulate(mine.requests, replace(truth.build(slower, settings), log_tokens=True))
    by_id = {one.id: one for one in run.records}
    records = []
    for number, asked in enumerate(mine.requests):
        one = by_id[asked.id]
        times = list(one.token_ns or ())
        record = Record(number, "", "", one.prompt_tokens, asked.output_tokens, asked.arrival_ns, asked.arrival_ns)
        record.fate = Fate.OK if one.finished else Fate.CANCELLED
        record.ended_ns = one.ended_ns
        record.input_tokens, record.output_tokens = one.prompt_tokens, len(times)
        if times:
            record.first_ns, record.last_ns, record.first_tokens = times[0], times[-1], 1
            record.gaps_ns = array("q", [after - before for before, after in pairwise(times)])
            record.gap_tokens = array("H", [1] * len(record.gaps_ns))
            record.chunks = len(times)
        records.append(record)
    return records


def tuning(target: VirtualTarget, tester: VirtualTester, rate: float, **wanted: Any) -> Tuning:
    usual = {"fit": tester.truth.fit, "profile": Rate(request_rate=rate), "options": tester.options, "grid": SMALL}
    tester_: Any = tester
    return Tuning(target, tester_, Wanted(**{**usual, **wanted}), lambda _target: other_server, silent())
