"""How well a step's time is predicted: the step log of a mixed run, predicted beside real.

The run is the mix of goodput.py at a load that keeps the server busy but not drowned: chats and documents, steps of
decode alone, of prefill alone and of both. What is judged is what the server itself wrote when it planned the step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import client, goodput, servers, steplog
from benchmarks.client import percentile

TARGET_MEDIAN = 0.10
TARGET_P95 = 0.30


def kind_of(step: dict[str, Any]) -> str:
    if not step["prefill_tokens"]:
        return "decode"
    return "mixed" if step["decode_tokens"] else "prefill"


def errors(steps: Sequence[dict[str, Any]]) -> list[float]:
    """|predicted - real| / real of each."""
    return [abs(step["predicted_s"] - step["real_s"]) / step["real_s"] for step in steps]


def run(given: argparse.Namespace, number: int) -> list[dict[str, Any]]:
    """The steps of one mixed run on a new server, those of its warm-up left out."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.jsonl"
        flags = ("--slo-ttft", "1", "--slo-itl", "0.15", "--step-log", str(log), *given.headway_flags.split())
        with servers.headway(given.model, *flags) as server:
            asyncio.run(client.settle(server.url, servers.NAME))
            planned = goodput.schedule(given.load, given.duration, given.seed + number)
            asyncio.run(client.run(server.url, servers.NAME, planned, goodput.DRAIN_S))
        return steplog.read(log)


def row(name: str, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    off = errors(steps)
    bias = statistics.median(step["predicted_s"] / step["real_s"] for step in steps)
    return {
        "steps": name,
        "count": len(steps),
        "real_ms_p50": statistics.median(step["real_s"] for step in steps) * 1e3,
        "error_p50": statistics.median(off),
        "error_p95": percentile(off, 0.95),
        "predicted_over_real_p50": bias,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, default=2.0, help="requests a second (default 2)")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of arrivals (default 60)")
    parser.add_argument("--repeats", type=int, default=2, help="runs, each on a new server (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-log", type=Path, metavar="FILE", help="judge this step log, and run nothing")
    parser.add_argument("--model", default=servers.DEFAULT_MODEL, help="what `headway serve` would take")
    parser.add_argument("--headway-flags", default="", help="more flags for the server, in one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row to FILE")
    given = parser.parse_args()

    runs = [steplog.read(given.step_log)] if given.step_log else [run(given, n) for n in range(given.repeats)]
    rows = [row(f"run {number}", steps) for number, steps in enumerate(runs, 1)]
    steps = [step for one in runs for step in one]
    rows.append(row("all", steps))
    kinds = {kind: [step for step in steps if kind_of(step) == kind] for kind in ("decode", "mixed", "prefill")}
    rows += [row(kind, of_kind) for kind, of_kind in kinds.items() if of_kind]
    print(f"{'steps':<10} {'count':>6} {'real p50 ms':>11} {'error p50':>9} {'error p95':>9} {'predicted/real':>14}")
    for one in rows:
        print(
            f"{one['steps']:<10} {one['count']:>6} {one['real_ms_p50']:>11.1f} {one['error_p50']:>9.1%} "
            f"{one['error_p95']:>9.1%} {one['predicted_over_real_p50']:>14.3f}"
        )
    total = next(one for one in rows if one["steps"] == "all")
    print(
        f"error p50 {total['error_p50'] / TARGET_MEDIAN:.2f}x of the target {TARGET_MEDIAN:.0%}, "
        f"p95 {total['error_p95'] / TARGET_P95:.2f}x of the target {TARGET_P95:.0%}"
    )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
