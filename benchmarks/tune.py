"""Whether `headway tune` finds what a grid of live tests finds: its winner beside the best of a real 4 x 4 grid.

One server, ours. Every point of the grid is load-tested with the same requests; then `headway tune` starts from each of
two bad settings, with at most five live tests, and what it leaves the server with is tested again beside the best of
the grid, in turns. See benchmarks/README.md for what is promised.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import servers
from headway.loadtest.bench.options import ClientOptions, Options, PromiseOptions, Rate, TextOptions, WindowOptions
from headway.loadtest.bench.tester import Tester
from headway.tune import Http, Settings, Target, find_target
from headway.tune.judge import good_share

TARGET_RATIO, MOST_TESTS = 0.9, 5


@dataclass(frozen=True)
class Tested:
    """One live test. `goodput`: good requests due in the window per second of it."""

    settings: Settings
    goodput: float
    good_ratio: float
    verdict: str


class Bench:
    """The server, and one load that all are tested with."""

    def __init__(self, url: str, given: argparse.Namespace) -> None:
        self.url, self.given = url, given
        self.options = Options(
            window=WindowOptions(duration=given.duration, seed=None),
            promise=PromiseOptions(slo_ttft=given.slo_ttft, slo_itl=given.slo_itl),
            text=TextOptions(input_len=given.input_len, output_len=given.output_len),
            client=ClientOptions(drain=given.drain),
        )
        self.tester = asyncio.run(Tester.meet(url, self.options))
        self.target: Target = find_target(Http(self.tester.template, self.tester.tls), None, None, 60.0)

    def test(self, settings: Settings) -> Tested:
        self.target.apply(settings)
        offered = asyncio.run(self.tester.offer(Rate(request_rate=self.given.rate)))
        run = asyncio.run(self.tester.measure(offered)).run
        if run.interrupted:
            raise KeyboardInterrupt
        seconds = run.summary.window_s[1] - run.summary.window_s[0]
        share = good_share(run)
        found = Tested(settings, share * run.summary.overall.requests / seconds, share, run.verdict.name)
        print(f"  {settings.label:<28} {found.goodput:6.3f} /s  {share:6.1%}  {found.verdict}", flush=True)
        return found

    def tune(self, start: Settings) -> dict[str, Any]:
        """What the command says, from these settings on."""
        given = self.given
        self.target.apply(start)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tune.json"
            command = [sys.executable, "-m", "headway", "tune", self.url, "--json", str(path), "--quiet"]
            flags = {
                "request-rate": given.rate, "duration": given.duration, "drain": given.drain, "probe": given.probe,
                "slo-ttft": given.slo_ttft, "slo-itl": given.slo_itl, "live-tests": MOST_TESTS,
                "input-len": given.input_len, "output-len": given.output_len,
            }  # fmt: skip
            command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
            done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
            if done.returncode != 0:
                raise SystemExit(f"headway tune ended with {done.returncode}")
            report: dict[str, Any] = json.loads(path.read_bytes())
        return report


def settings_in(told: dict[str, Any]) -> Settings:
    return Settings(**told)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    flags = ["--executor", "simulated"] if given.executor == "simulated" else []
    model = "simulated" if given.executor == "simulated" else given.model
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.headway(model, *flags, "--step-log", str(Path(folder) / "steps.jsonl")) as server,
    ):
        bench = Bench(server.url, given)
        print(f"grid, {given.rate:g} req/s for {given.duration:g} s each:")
        grid = [bench.test(Settings(seqs, tokens)) for seqs in given.seqs for tokens in given.tokens if seqs <= tokens]
        best = max(grid, key=lambda one: one.goodput)
        print(f"best of the grid: {best.settings.label}, {best.goodput:.3f} good requests/s")
        return {
            "grid": [asdict(one) for one in grid],
            "best": asdict(best),
            "tuned": [one_start(bench, start, best.settings) for start in given.starts],
        }


def one_start(bench: Bench, start: Settings, best: Settings) -> dict[str, Any]:
    """From bad settings to those it ends with; and those beside the grid's best, in turns."""
    print(f"tune from {start.label}:")
    began = time.perf_counter()
    report = bench.tune(start)
    took_s = time.perf_counter() - began
    kept = settings_in(report["decision"]["kept"])
    predicted = [trial["error"] for trial in report["trials"] if trial["error"] is not None]
    print(f"  ended with {kept.label} after {len(report['trials'])} live tests, {took_s:.0f} s")
    pairs: list[tuple[Tested, Tested]] = []
    for number in range(bench.given.turns):
        order = (kept, best) if number % 2 == 0 else (best, kept)
        tested = {settings: bench.test(settings) for settings in dict.fromkeys(order)}
        pairs.append((tested[kept], tested[best]))
    goodputs = [statistics.median(side) for side in zip(*((a.goodput, b.goodput) for a, b in pairs), strict=True)]
    ratio = goodputs[0] / goodputs[1] if goodputs[1] else 1.0
    return {
        "start": asdict(start),
        "kept": asdict(kept),
        "live_tests": len(report["trials"]),
        "took_s": took_s,
        "goodput": goodputs[0],
        "best_goodput": goodputs[1],
        "ratio": ratio,
        "prediction_errors": predicted,
    }


def show(found: dict[str, Any]) -> bool:
    """Whether the target was met."""
    print("\nfrom             ended with        tests  goodput  of the grid's best")
    met = True
    for one in found["tuned"]:
        start, kept = (
            f"{each['max_num_seqs']} × {each['max_num_batched_tokens']}" for each in (one["start"], one["kept"])
        )
        holds = one["ratio"] >= TARGET_RATIO and one["live_tests"] <= MOST_TESTS
        met &= holds
        print(
            f"{start:<16} {kept:<16} {one['live_tests']:>6} {one['goodput']:>8.3f}  {one['ratio']:.2f}×"
            f"{'' if holds else '  MISSED'}"
        )
    print(f"target: at least {TARGET_RATIO:g}× with at most {MOST_TESTS} live tests: {'met' if met else 'MISSED'}")
    return met


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def starts(text: str) -> list[Settings]:
    """SEQSxTOKENS,…"""
    return [Settings(*(int(part) for part in one.split("x"))) for one in text.split(",")]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=servers.DEFAULT_MODEL)
    parser.add_argument("--executor", choices=("openvino", "simulated"), default="openvino")
    parser.add_argument("--rate", type=float, default=3.0, help="requests/s: more than bad settings can serve")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of each live test")
    parser.add_argument("--drain", type=float, default=10.0)
    parser.add_argument("--probe", type=float, default=24.0)
    parser.add_argument("--slo-ttft", type=float, default=1.5)
    parser.add_argument("--slo-itl", type=float, default=0.25)
    parser.add_argument("--input-len", default="64:512")
    parser.add_argument("--output-len", default="16:64")
    parser.add_argument("--seqs", type=numbers, default=[2, 8, 24, 96])
    parser.add_argument("--tokens", type=numbers, default=[32, 128, 384, 1536])
    parser.add_argument("--starts", type=starts, default=starts("1x32,2x1536"), help="SEQSxTOKENS,…")
    parser.add_argument("--turns", type=int, default=2, help="of the winner and the grid's best, afterwards")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(given)


def main() -> None:
    given = arguments()
    found = measure(given)
    met = show(found)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
