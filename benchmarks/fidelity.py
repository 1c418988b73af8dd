"""How true simulations are: predicted beside measured, for servers of others and for our own.

*Of others*: real vLLM runs (a folder each: requests.jsonl, timeseries.csv, meta.json). The fit sees what could be known
when a third of the requests had finished; the rest is predicted from arrivals and lengths: mean, p50, p90, p95 of queue
time, prefill time (scheduled to first token), TPOT and E2E. *Cross*: each run is predicted from the fit of another,
carried over by the ratio of rooflines. *Own*: the step log of a mixed run on the default model predicts another load
with other settings. See benchmarks/README.md for what is promised.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import client, goodput, servers, steplog
from benchmarks.client import Planned, Sample
from headway.core.front.front import FrontLimits
from headway.core.request import Slo
from headway.core.scheduler.limits import SchedulerLimits
from headway.engine.assembly import lanes
from headway.engine.config import engine_config
from headway.simulate import Run, VirtualRequest, VirtualSettings, simulate
from headway.simulate.fit import (
    Belief,
    Demand,
    Observed,
    Served,
    StepFit,
    fit,
    fit_bytes,
    read_folder,
    read_step_log,
    serve,
)
from headway.simulate.fit.settings import server_of, with_setting
from headway.simulate.fit.terms import Floats, step_cost
from headway.simulate.sizing import (
    MemorySettings,
    ModelShape,
    StepRange,
    engine_named,
    hardware_named,
    plan_memory,
    shape_from_config,
)

LONGEST = 4096  # tokens of a request, of which rooflines are to hold
# Whose chunk meets whose decides a tail percentile of few hundred requests, and is chance: figures are means over days
# on which everybody comes a little sooner or later.
DAYS, SHAKEN_S = 10, 0.1
SEEN = 1 / 3  # of the requests have finished
STATISTICS = ("mean", "p50", "p90", "p95")
TARGET_MEDIAN, TARGET_WORST, TARGET_CROSS = 0.05, 0.15, 0.20
TARGET_OWN, TARGET_OWN_THROUGHPUT = 0.15, 0.05

# What the hubs' config.json say of the models in the measured runs.
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    },
    "Qwen3-32B": {
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    },
}


@dataclass(frozen=True)
class Score:
    """One figure of one part, measured and predicted."""

    part: str
    what: str
    statistic: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0 if self.measured else 0.0


def statistic(values: Floats, name: str) -> float:
    return float(np.mean(values)) if name == "mean" else float(np.percentile(values, float(name[1:])))


def scores(part: str, pairs: dict[str, tuple[Floats, Floats]], names: Sequence[str] = STATISTICS) -> list[Score]:
    return [
        Score(part, what, name, statistic(measured, name), statistic(predicted, name))
        for what, (measured, predicted) in pairs.items()
        for name in names
    ]


def mean_of(days: Sequence[list[Score]]) -> list[Score]:
    """Each figure's prediction as the mean over simulations of days alike."""
    return [
        replace(same[0], predicted=statistics.fmean(score.predicted for score in same))
        for same in zip(*days, strict=True)
    ]


# -- runs of others ----------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """A run of another server: what of it may be seen, what is to be predicted, and of what it is."""

    name: str
    whole: Observed
    seen: Observed
    rest: np.ndarray
    shape: ModelShape | None
    belief: Belief | None
    ranks: int
    device: str

    @classmethod
    def read(cls, folder: Path) -> Measured:
        whole = read_folder(folder)
        until_s = whole.finished_by(SEEN)
        meta = whole.meta
        device = str((meta.get("hardware") or {}).get("device_name") or folder.name.partition("_")[0])
        ranks = int((meta.get("engine_kwargs") or {}).get("tensor_parallel_size") or 1)
        model = str(meta.get("model", "")).rpartition("/")[2]
        shape = belief = None
        if model in CONFIGS:
            shape = shape_from_config(CONFIGS[model], where=model, name=model)
            limits = server_of(whole, {})
            valid = StepRange(limits.max_num_batched_tokens, limits.max_num_seqs, LONGEST)
            belief = Belief.of(shape, hardware_named(device), tensor_parallel=ranks, valid=valid)
        return cls(folder.name, whole, whole.until(until_s), whole.last_s > until_s, shape, belief, ranks, device)

    def fit(self) -> StepFit:
        return fit(observed=[self.seen], belief=self.belief, given=self.sized())

    def days(self) -> list[Demand]:
        return [self.whole.demand.shaken(SHAKEN_S, seed) for seed in range(DAYS)]

    def sized(self) -> dict[str, Any]:
        """KV blocks as sizing finds them, where the run does not tell."""
        known = server_of(self.whole, {})
        if known.num_blocks or self.shape is None:
            return {}
        settings = MemorySettings(
            tensor_parallel=self.ranks,
            max_num_seqs=known.max_num_seqs,
            max_num_batched_tokens=known.max_num_batched_tokens,
        )
        plan = plan_memory(self.shape, hardware_named(self.device), engine_named("vllm"), settings)
        return {"num_blocks": plan.blocks}

    def pairs(self, served: Served, *, unseen: bool = False) -> dict[str, tuple[Floats, Floats]]:
        """Of the requests that had not finished; with `unseen`, only what of them had not been seen either."""
        whole, seen, rest = self.whole, self.seen, self.rest
        gaps = np.maximum(1, whole.output_tokens - 1)
        queue = rest & ~(unseen & np.isfinite(seen.scheduled_s))
        prefill = rest & ~(unseen & np.isfinite(seen.first_s))
        many = rest & (whole.output_tokens > 1)
        return {
            "queue": ((whole.scheduled_s - whole.queued_s)[queue], served.queue_s[queue]),
            "prefill": ((whole.first_s - whole.scheduled_s)[prefill], served.prefill_s[prefill]),
            "tpot": (((whole.last_s - whole.first_s) / gaps)[many], served.tpot_s[many]),
            "e2e": ((whole.last_s - whole.arrival_s)[rest], served.e2e_s[rest]),
        }


def of_others(folders: Sequence[Path]) -> Iterator[list[Score]]:
    runs = [Measured.read(folder) for folder in folders]
    fits = []
    for run in runs:
        began = time.perf_counter()
        fitted = run.fit()
        fits.append(fitted)
        fit_s = time.perf_counter() - began
        began = time.perf_counter()
        days = [serve(day, fitted.server, fitted.cost) for day in run.days()]
        print(
            f"# {run.name}: fitted in {fit_s:.0f} s to {len(run.whole) - int(run.rest.sum())} finished requests, "
            f"{int(run.rest.sum())} predicted in {time.perf_counter() - began:.1f} s",
            flush=True,
        )
        yield mean_of([scores(run.name, run.pairs(day)) for day in days])
        unseen = f"{run.name}, what had not been seen"
        yield mean_of([scores(unseen, run.pairs(day, unseen=True)) for day in days])
    for source, fitted in zip(runs, fits, strict=True):
        for target in runs:
            if target is source or source.belief is None or target.belief is None:
                continue
            server = server_of(target.whole, target.sized())
            for name in ("plans_ahead", "whole_prompt_kv"):
                if name not in server.known:  # by the version it printed, else as the source has it
                    server = with_setting(server, name, getattr(fitted.server, name), "assumed")
            cost = step_cost(source.belief.carried(fitted.values, target.belief))
            part = f"{source.name} -> {target.name}"
            found = [target.pairs(serve(day, server, cost)) for day in target.days()]
            yield mean_of([scores(part, {"e2e": pairs["e2e"]}) for pairs in found])


# -- our own server ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnLoad:
    """A load and the settings it meets."""

    share: float  # of the rate
    long_share: float
    outputs: tuple[int, int]
    flags: dict[str, int | float]

    def schedule(self, rate: float, duration_s: float, seed: int) -> list[Planned]:
        draw = random.Random(seed)
        rate *= self.share
        planned, at_s = [], draw.expovariate(rate)
        while at_s < duration_s:
            long = draw.random() < self.long_share
            words = draw.randint(*(goodput.LONG_WORDS if long else goodput.SHORT_WORDS))
            kind = "long" if long else "short"
            planned.append(Planned(at_s, client.text(draw, words), draw.randint(*self.outputs), 60, 60, kind))
            at_s += draw.expovariate(rate)
        return planned


# Rate (a share of --rate), mix and settings all differ.
FITTED = OwnLoad(1.0, 0.08, (32, 96), {"max-num-seqs": 64, "max-num-batched-tokens": 256})
PREDICTED = OwnLoad(0.7, 0.20, (64, 160), {"max-num-seqs": 32, "max-num-batched-tokens": 512})


def measure_own(given: argparse.Namespace, load: OwnLoad, seed: int, log: Path) -> list[Sample]:
    flags = [text for name, value in load.flags.items() for text in (f"--{name}", str(value))]
    planned = load.schedule(given.rate, given.duration, seed)
    with servers.headway(given.model, *flags, "--step-log", str(log)) as server:
        asyncio.run(client.settle(server.url, servers.NAME))
        return asyncio.run(client.run(server.url, servers.NAME, planned, 120.0))


def simulate_own(fitted: StepFit, load: OwnLoad, requests: Sequence[VirtualRequest]) -> Run:
    names = {name.replace("-", "_"): value for name, value in load.flags.items()}
    config = engine_config(**names)
    limits = SchedulerLimits(
        config.max_num_seqs, config.max_num_batched_tokens, fitted.server.chunk_multiple_tokens, config.kv_full
    )
    worker = replace(fitted.worker(), limits=limits)
    front = FrontLimits(0, int(config.age_bound * 1e9), lanes(config, config.max_num_seqs))
    return simulate(requests, VirtualSettings(workers=(worker,), front=front, log_tokens=True))


def own(given: argparse.Namespace) -> list[Score]:
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{number}.jsonl" for number in range(2)]
        first = measure_own(given, FITTED, given.seed, logs[0])
        fitted = fit(logs=[read_step_log(logs[0])])
        overhead_s = client_overhead_s(first, logs[0])
        samples = measure_own(given, PREDICTED, given.seed + 1, logs[1])
        prompts = prompts_by_order(logs[1], samples)
    if given.keep_fit is not None:
        given.keep_fit.write_bytes(fit_bytes(fitted))
    good = [sample for sample in samples if not sample.error and sample.first_s is not None]
    requests = [
        VirtualRequest(str(number), int((sample.sent_s + overhead_s) * 1e9), prompt, sample.tokens, sample.tokens,
                       slo=Slo(int(60e9), int(60e9)))
        for number, (sample, prompt) in enumerate(zip(good, prompts, strict=True))
    ]  # fmt: skip
    run = simulate_own(fitted, PREDICTED, requests)
    by_id = {record.id: record for record in run.records}
    records = [by_id[request.id] for request in requests]
    gaps = np.concatenate([np.diff(np.array(record.token_ns, np.float64)) for record in records]) / 1e9
    ttft = np.array([
        (record.first_token_ns - request.arrival_ns) / 1e9 + overhead_s
        for record, request in zip(records, requests, strict=True)
    ])  # fmt: skip
    measured_ttft = np.array([sample.first_s - sample.sent_s for sample in good if sample.first_s is not None])
    measured_gaps = np.array([gap for sample in good for gap in sample.gaps_s])
    pairs = {"ttft": (measured_ttft, ttft), "itl": (measured_gaps, gaps)}
    tokens = sum(sample.tokens for sample in good)
    spans = max(s.ended_s for s in good) - min(s.sent_s for s in good), (
        max(r.ended_ns for r in records) - min(r.arrival_ns for r in requests)
    ) / 1e9  # fmt: skip
    rates = Score("own", "throughput", "tokens/s", tokens / spans[0], tokens / spans[1])
    print(f"# own: fitted to {fitted.valid.steps} steps; the client adds {overhead_s * 1e3:.1f} ms", flush=True)
    return [*scores("own", pairs, ("p50", "p95")), rates]


def client_overhead_s(samples: Sequence[Sample], log: Path) -> float:
    """TTFT at the client beyond the server's own, at the median: connection, parsing, tokenising, streaming."""
    inside = [line["queue_s"] + line["prefill_s"] for line in steplog.read(log, "request")][-len(samples) :]
    outside = [sample.first_s - sample.sent_s for sample in samples if sample.first_s is not None]
    return max(0.0, float(statistics.median(outside)) - float(statistics.median(inside)))


def prompts_by_order(log: Path, samples: Sequence[Sample]) -> list[int]:
    """Prompt tokens of each sample as the server counted them: the n-th to be sent was the n-th to arrive."""
    lines = sorted(steplog.read(log, "request"), key=lambda line: int(line["arrival_ns"]))[-len(samples) :]
    good = [not sample.error and sample.first_s is not None for sample in samples]
    return [int(line["prompt_tokens"]) for line, ok in zip(lines, good, strict=True) if ok]


# -- what it comes to --------------------------------------------------------------------------------------------------


def show(part: str, found: Sequence[Score], verdict: Callable[[list[float]], str]) -> None:
    print(f"\n{part}")
    names = list(dict.fromkeys(score.what for score in found))
    for what in names:
        cells = [
            f"{score.statistic} {score.measured:.4g} / {score.predicted:.4g} {score.error:+.1%}"
            for score in found
            if score.what == what
        ]
        print(f"  {what:<10} " + "   ".join(f"{cell:<30}" for cell in cells).rstrip())
    print("  " + verdict([abs(score.error) for score in found]), flush=True)


def in_time(errors: list[float]) -> str:
    middle, worst = statistics.median(errors), max(errors)
    return (
        f"median error {middle:.1%} ({middle / TARGET_MEDIAN:.2f}x of the target {TARGET_MEDIAN:.0%}), "
        f"worst {worst:.1%} ({worst / TARGET_WORST:.2f}x of {TARGET_WORST:.0%})"
    )


def across(errors: list[float]) -> str:
    return f"worst {max(errors):.1%} ({max(errors) / TARGET_CROSS:.2f}x of the target {TARGET_CROSS:.0%})"


def at_home(errors: list[float]) -> str:
    rest, rate = max(errors[:-1]), errors[-1]
    return (
        f"worst latency {rest:.1%} ({rest / TARGET_OWN:.2f}x of the target {TARGET_OWN:.0%}), "
        f"throughput {rate:.1%} ({rate / TARGET_OWN_THROUGHPUT:.2f}x of {TARGET_OWN_THROUGHPUT:.0%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN_DIR", help="measured runs, or a folder of them")
    parser.add_argument("--own", action="store_true", help="also our own server (default without RUN_DIR)")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of arrivals, of our own (default 60)")
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second of the load fitted to (default 1)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default=servers.DEFAULT_MODEL, help="what `headway serve` would take")
    parser.add_argument("--keep-fit", type=Path, metavar="FILE", help="write the fit of our own server to FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    given = parser.parse_args()
    folders = [
        run for one in given.runs for run in ([one] if (one / "requests.jsonl").is_file() else sorted(one.iterdir()))
    ]
    found: list[Score] = []
    for part in of_others(folders):
        found += part
        show(part[0].part, part, across if "->" in part[0].part else in_time)
    if given.own or not folders:
        part = own(given)
        found += part
        show("our own server, another load", part, at_home)
    if given.json:
        rows = [{**asdict(score), "error": score.error} for score in found]
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
