"""What deciding costs: plan + commit by running and by waiting sequences, and how fast the virtual drive goes.

No model and no peer: the sides are our own targets. Each row is measured by `--repeats` runs of its own. The figure is
the median over all steps; the median of the best run is beside it, since on a shared machine the rest is the
neighbours'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import Front, FrontLimits
from headway.core.pace import StepTimeModel
from headway.core.request import Request, Slo
from headway.core.scheduler.kv import KvPool
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.scheduler import Scheduler
from headway.core.scheduler.step import Outcome, RowResult
from headway.executors.simulated import StepCost
from headway.simulate import VirtualRequest, VirtualSettings, VirtualWorker, simulate

S = 1_000_000_000
PROMPT_TOKENS = 100
# Most milliseconds that plan + commit may take, by (running, waiting).
TARGETS_MS = {(256, 1_000): 0.5, (1_000, 1_000): 3.0}
GRID = ((64, 1_000), (128, 1_000), (256, 0), (256, 1_000), (256, 10_000), (512, 1_000), (1_000, 1_000))
TARGET_STEPS_S = 5_000
MODEL = StepCost().step_time


def decode_steps(running: int, waiting: int, steps: int) -> list[float]:
    """Milliseconds of plan + commit, of each of `steps` steps in which `running` decode and `waiting` wait."""
    pool = KvPool(running * 40, 32)
    model = StepTimeModel(MODEL)
    front = Front(AdmissionLimits(8192, pool.capacity_tokens, 1 << 30, 1 << 60), FrontLimits(), model=model)
    scheduler = Scheduler(SchedulerLimits(running, max(running, 512)), pool, front.pull, model=model)
    slo = Slo(ttft_ns=S, itl_ns=1_000 * S)  # so that everything a promise costs is paid
    now = 0

    def submit(prefix: str, count: int) -> None:
        for number in range(count):
            prompt = range(number * PROMPT_TOKENS, (number + 1) * PROMPT_TOKENS)
            front.submit(Request(f"{prefix}{number}", prompt, 1_000, slo=slo), now)

    def step() -> tuple[float, bool]:
        nonlocal now
        now += S // 100
        started = time.perf_counter()
        planned = scheduler.plan(now)
        took = time.perf_counter() - started
        assert planned is not None
        outcome = Outcome(planned.id, [RowResult(row.seq, [5]) for row in planned.rows if row.samples], 0.01)
        started = time.perf_counter()
        scheduler.commit(planned, outcome, now + S // 100)
        return (took + time.perf_counter() - started) * 1e3, planned.prefill_tokens > 0

    submit("r", running)
    while step()[1]:
        pass
    submit("w", waiting)
    assert len(scheduler.running) == running
    return [step()[0] for _ in range(steps)]


def drive(*, leaps: bool, burst: bool) -> float:
    """Steps a second of the virtual drive at 64 running. In a burst others wait, so that there is nothing to leap."""
    worker = VirtualWorker(limits=SchedulerLimits(64, 512), num_blocks=8_192)
    count = 256 if burst else 64
    requests = [VirtualRequest(f"r{i}", 0, PROMPT_TOKENS, 2_000, 800 + 7 * (i % 60)) for i in range(count)]
    started = time.perf_counter()
    run = simulate(requests, VirtualSettings(workers=(worker,), leaps=leaps))
    return run.engine_steps / (time.perf_counter() - started)


def plan_rows(repeats: int) -> Iterator[dict[str, float]]:
    for running, waiting in GRID:
        runs = [decode_steps(running, waiting, 100) for _ in range(repeats)]
        medians = [statistics.median(run) for run in runs]
        yield {
            "running": running,
            "waiting": waiting,
            "median_ms": statistics.median(value for run in runs for value in run),
            "best_ms": min(medians),
            "us_per_running": 1e3 * min(medians) / running,
        }


def drive_rows(repeats: int) -> Iterator[dict[str, float | str]]:
    for name, leaps, burst in (
        ("64 running, single steps", False, False),
        ("64 running, leaps", True, False),
        ("64 running, 192 waiting, leaps", True, True),
    ):
        speeds = [drive(leaps=leaps, burst=burst) for _ in range(repeats)]
        yield {"drive": name, "median_steps_s": statistics.median(speeds), "best_steps_s": max(speeds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each row (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row to FILE")
    arguments = parser.parse_args()

    print(f"{'running':>8} {'waiting':>8} {'median ms':>10} {'best ms':>8} {'best us/running':>16} {'/ target':>9}")
    planned = []
    for row in plan_rows(arguments.repeats):
        planned.append(row)
        target = TARGETS_MS.get((int(row["running"]), int(row["waiting"])))
        ratio = f"{row['median_ms'] / target:.2f}x" if target else ""
        print(
            f"{row['running']:>8} {row['waiting']:>8} {row['median_ms']:>10.3f} {row['best_ms']:>8.3f} "
            f"{row['us_per_running']:>16.2f} {ratio:>9}",
            flush=True,
        )
    best = {(row["running"], row["waiting"]): row["best_ms"] for row in planned}
    growth = best[1_000, 1_000] / best[64, 1_000]
    print(f"linear in running: 1,000 over 64 costs {growth / (1_000 / 64):.2f}x of linear")
    print(f"flat in waiting: 10,000 over 0 waiting costs {best[256, 10_000] / best[256, 0]:.2f}x")

    print(f"\n{'virtual drive':<32} {'median steps/s':>14} {'best':>10} {'/ target':>9}")
    driven = []
    for drive_row in drive_rows(arguments.repeats):
        driven.append(drive_row)
        median, best_run = float(drive_row["median_steps_s"]), float(drive_row["best_steps_s"])
        ratio = f"{median / TARGET_STEPS_S:.2f}x"
        print(f"{drive_row['drive']:<32} {median:>14,.0f} {best_run:>10,.0f} {ratio:>9}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"plan": planned, "drive": driven}, indent=2) + "\n")


if __name__ == "__main__":
    main()
