"""Three times what a fleet can do, for a minute: how much of it is still done well, and how soon all is as before.

On virtual time by default: half a minute of a normal load, a minute of overload, a minute of the normal load again. One
client in twenty comes back when `Retry-After` says; the others do not. Beside it the same fleet at steady loads, whose
best goodput is what overload is measured against. `--real` does the same over HTTP, with a gateway and simulated
workers that it starts, and `--live URL` before a gateway that is running (give its capacity with `--capacity`):
    python -m benchmarks.overload
    python -m benchmarks.overload --seeds 5
    python -m benchmarks.overload --real
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import virtual
from benchmarks.sides import overload_http
from benchmarks.virtual import S
from headway.core.errors import Refused
from headway.core.front.admission import AdmissionLimits
from headway.core.front.front import FrontLimits
from headway.simulate import Run, VirtualFleet, VirtualRequest, VirtualSettings, simulate

LEAST_OF_BEST, MOST_CHANGES, NORMAL_AFTER_S = 0.85, 2, 10.0
NORMAL, OVERLOAD = 0.6, 3.0
BEFORE_S, DURING_S, AFTER_S = 30.0, 60.0, 60.0
STEADY = (0.8, 1.0, 1.25, 1.5, 2.0, 3.0)
PATIENT_EVERY, RETRIES = 20, 50
MAX_WAITING = 1_024


# What is told of several seeds, and what it should be.
TARGETS = {
    "of_best": f"at least {LEAST_OF_BEST}",
    "most_waiting": f"at most {MAX_WAITING}",
    "patient_refused": "0",
    "good_after": "as before",
    "ladder_down_s": f"at most {NORMAL_AFTER_S:g}",
    "most_changes": f"at most {MOST_CHANGES}",
}


def service(given: argparse.Namespace) -> VirtualSettings:
    return VirtualSettings(
        workers=(virtual.worker(given.policy),) * given.workers,
        admission=AdmissionLimits(16_384, 1 << 60, max_waiting=MAX_WAITING, max_waiting_tokens=1_000_000),
        front=FrontLimits(queue_timeout_ns=int(given.queue_timeout * S)),
        fleet=VirtualFleet(),
        log_tokens=True,
    )


def steady(rate: float, seconds: float, given: argparse.Namespace, seed: int) -> list[VirtualRequest]:
    return virtual.at_rate(virtual.skewed(max(2, int(rate * seconds)), seed, given.longest), rate)


def storm(capacity: float, given: argparse.Namespace) -> list[VirtualRequest]:
    """Normal, too much, normal."""
    load: list[VirtualRequest] = []
    began_s = 0.0
    for number, (share, seconds) in enumerate(((NORMAL, BEFORE_S), (OVERLOAD, DURING_S), (NORMAL, AFTER_S))):
        for one in steady(capacity * share, seconds, given, given.seed + number):
            count = len(load)
            retries = RETRIES if count % PATIENT_EVERY == 0 else 0
            load.append(replace(one, id=f"r{count}", arrival_ns=one.arrival_ns + int(began_s * S), retries=retries))
        began_s += seconds
    return load


def capacity_of(given: argparse.Namespace) -> float:
    """Requests a second that the fleet finishes when it always has some waiting."""
    run = simulate(
        steady(1_000.0, 1.0, given, given.seed), replace(service(given), admission=None, front=FrontLimits())
    )
    return virtual.finished_rate(run)


def goodput(run: Run, start_s: float, end_s: float) -> float:
    """Good requests a second, of those that came in a window."""
    came = np.array([start_s <= record.arrival_ns / S < end_s for record in run.records])
    return float((virtual.good(run) & came).sum()) / (end_s - start_s)


def judged(run: Run, best: float) -> dict[str, Any]:
    """What the overload left of the service, and how it came back."""
    end_s = BEFORE_S + DURING_S
    good = virtual.good(run)
    after = np.array([record.arrival_ns / S >= end_s + NORMAL_AFTER_S for record in run.records])
    patient = [record for number, record in enumerate(run.records) if number % PATIENT_EVERY == 0]
    later = [sample for sample in run.samples if sample.at_ns / S >= end_s + NORMAL_AFTER_S]
    degraded = [sample.at_ns / S for sample in run.samples if sample.height]
    changes = Counter(shift.level.name.lower() for shift in run.shifts)
    return {
        "goodput": goodput(run, BEFORE_S, end_s),
        "best_goodput": best,
        "of_best": goodput(run, BEFORE_S, end_s) / best,
        "most_waiting": max(sample.waiting for sample in run.samples),
        "ends": run.ends,
        "patient": len(patient),
        "patient_tries": max(record.asked for record in patient),
        "patient_refused": sum(isinstance(record.error, Refused) for record in patient if record.end == "refused"),
        "good_after": float(good[after].mean()),
        "waiting_after": max((sample.waiting for sample in later), default=0),
        "ladder_down_s": max(degraded, default=end_s) - end_s,
        "changes": dict(changes),
        "most_changes": max(changes.values(), default=0),
        "cut_short": sum("output-clamped" in record.degraded and record.end == "length" for record in run.records),
    }


def shown(found: dict[str, Any]) -> None:
    print(
        f"goodput in the overload: {found['goodput']:.1f} of {found['best_goodput']:.1f} req/s at its best: "
        f"{found['of_best']:.2f} (target {LEAST_OF_BEST}); ended: {found['ends']}"
    )
    print(
        f"queue: at most {found['most_waiting']} waited (bound {MAX_WAITING}); {found['cut_short']} answers cut short"
    )
    let_in = found["patient"] - found["patient_refused"]
    print(
        f"clients that obey Retry-After: {let_in} of {found['patient']} were let in, "
        f"after at most {found['patient_tries']} tries (target: all)"
    )
    print(
        f"from {NORMAL_AFTER_S:g} s after it: {found['good_after']:.1%} good, "
        f"at most {found['waiting_after']} waiting; ladder down "
        f"after {found['ladder_down_s']:.1f} s (target: as before, {NORMAL_AFTER_S:g})"
    )
    most = max(found["changes"].values(), default=0)
    print(f"changes of a ladder level: at most {most} (target {MOST_CHANGES}): {found['changes']}")


def virtually(given: argparse.Namespace) -> dict[str, Any]:
    """The steady loads, and the storm, with one seed."""
    capacity = given.capacity or capacity_of(given)
    best = 0.0
    for share in STEADY:
        run = simulate(steady(capacity * share, DURING_S, given, given.seed), service(given))
        rate = goodput(run, 0.0, DURING_S)
        best = max(best, rate)
        print(f"steady at {share:g} of {capacity:.1f} req/s: {rate:.1f} good a second", flush=True)
    return judged(simulate(storm(capacity, given), service(given)), best)


def over_seeds(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The same with one seed after another; and in the end the median of what has a target, and its range."""
    found = []
    for seed in range(given.seed, given.seed + given.seeds):
        print(f"-- seed {seed}")
        found.append({"seed": seed, **virtually(argparse.Namespace(**{**vars(given), "seed": seed}))})
        shown(found[-1])
    print(f"-- median of {given.seeds} seeds (least to most)")
    for name, target in TARGETS.items():
        values = [one[name] for one in found]
        print(f"{name}: {np.median(values):.3g} ({min(values):.3g} to {max(values):.3g}; target {target})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=8_192, help="prompts are cut to this (default 8,192)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--policy", default="vllm", help="of the virtual workers: vllm (default) or headway")
    parser.add_argument("--queue-timeout", type=float, default=10.0, help="of the gateway, in seconds (default 10)")
    parser.add_argument("--real", action="store_true", help="over HTTP: a gateway and two simulated workers")
    parser.add_argument("--live", metavar="URL", help="over HTTP: a gateway that is running")
    parser.add_argument(
        "--capacity", type=float, default=0.0, help="req/s of --live, or of anything instead of measuring"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="on virtual time: how many, from --seed on (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE")
    given = parser.parse_args()
    found: Any
    if given.real or given.live:
        phases = [(NORMAL, BEFORE_S), (OVERLOAD, DURING_S), (NORMAL, AFTER_S)]
        goals = {"patient_every": PATIENT_EVERY, "retries": RETRIES, "normal_after_s": NORMAL_AFTER_S}
        found = asyncio.run(overload_http.measured(given, phases, goals))
        shown(found)
    elif given.seeds > 1:
        found = over_seeds(given)
    else:
        found = virtually(given)
        shown(found)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
