"""`Report`: all that a tuning found, and what became of the server. `SCHEMA_VERSION` changes with its meaning."""

from __future__ import annotations

import msgspec

from headway.loadtest.result import Run, Slo
from headway.simulate.fit import StepFit
from headway.tune.feasible import Alone
from headway.tune.judge import Gain
from headway.tune.predict import Figures, Prediction
from headway.tune.settings import Settings

SCHEMA_VERSION = 1


class Tried(msgspec.Struct, kw_only=True):
    """One simulated point."""

    settings: Settings
    predicted: Prediction


class Trial(msgspec.Struct, kw_only=True):
    """One live test. `error`: the prediction of goodput over what was measured, less 1; None: nothing was measured."""

    number: int
    settings: Settings
    current: bool  # these are the settings that the server had
    predicted: Prediction
    measured: Figures
    verdict: str
    started_at: str
    error: float | None = None


class Decision(msgspec.Struct, kw_only=True):
    """`kept` are the settings that the server has now; None: nobody knows. `why` is one sentence."""

    winner: Settings | None = None
    kept: Settings | None = None
    gain: Gain | None = None
    why: str = ""


class Report(msgspec.Struct, kw_only=True):
    """Unknown is None. `restored`: the server has its old settings again; None: they were never changed."""

    started_at: str
    url: str
    kind: str  # headway, vllm, sglang or other
    model: str
    framework: str | None = None
    load: str = ""
    rate: float | None = None  # requests/s of the live tests
    slo: Slo = msgspec.field(default_factory=Slo)
    objective: str = ""
    current: Settings | None = None
    fit: StepFit | None = None
    fitted_from: str = ""
    alone: list[Alone] = []
    searched: list[Tried] = []
    trials: list[Trial] = []
    decision: Decision = msgspec.field(default_factory=Decision)
    flags: str = ""  # of the winner, for the server's command line
    advice: list[str] = []
    notes: list[str] = []
    restored: bool | None = None
    not_restored: str = ""  # why the old settings could not be put back, and how to
    failed: str = ""
    interrupted: bool = False
    schema_version: int = SCHEMA_VERSION


def report_bytes(report: Report) -> bytes:
    """As a file holds it; the version stands first."""
    fields = msgspec.structs.asdict(report)
    ordered = {"schema_version": fields.pop("schema_version"), **fields}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n"


def figures_of(run: Run) -> Figures:
    """A load test's, in the terms of a prediction."""
    overall = run.summary.overall

    def at(name: str, key: str) -> float | None:
        found = overall.distributions.get(name)
        one = found.percentiles.get(key) if found is not None else None
        return one.value if one is not None else None

    good = overall.good_ratio.value if overall.good_ratio is not None else None
    ok = overall.fates.get("ok", 0) / overall.requests if overall.requests else 0.0
    window = run.summary.window_s
    return Figures(
        goodput=overall.goodput if overall.goodput is not None else overall.request_rate,
        good_ratio=good if good is not None else ok,
        request_rate=overall.request_rate,
        output_token_rate=overall.output_token_rate,
        ttft_p50_s=at("ttft", "50"),
        ttft_p95_s=at("ttft", "95"),
        itl_p50_s=at("itl", "50"),
        itl_p95_s=at("itl", "95"),
        e2e_p95_s=at("e2e", "95"),
        preemptions=run.signals.preemptions(window),
        kv_used_ratio=run.signals.kv_used_ratio(window),
    )
