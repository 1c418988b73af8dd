"""How fast a simulation goes: the Mooncake conversation trace, by hashes, on one simulated worker and on eight.

    python -m benchmarks.simspeed --trace mooncake_fast25_conversation.jsonl

A worker is Llama 3.1 8B in 16 bits on a B200: times by `headway fit`'s roofline, KV for 73,786 blocks of 16 tokens. Its
token budget is 8,192 a step, its slots are 256. What is timed is the drive alone, in CPU seconds of one core: reading
the trace and building a report are not in it. Beside each figure stands what a loop of ten million additions takes on
the same core at the same time, so that a busy machine is seen to be one.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.executors.simulated import StepCost
from headway.simulate import VirtualFleet, VirtualSettings, VirtualWorker, simulate
from headway.simulate.demand import requests_of
from headway.workload.item import Arrival
from headway.workload.traces import read_trace

COST = StepCost(
    step_ns=3_860_476,
    prefill_token_ns=8_712,
    decode_sequence_ns=2_260,
    context_token_ns=21,
    prefill_attention_ns=0.45,
)
NUM_BLOCKS, BLOCK_SIZE, SLOTS = 73_786, 16, 256
FIRST, WORKERS = 1_000, 8
TARGETS_S = {(FIRST, 1): 3.0, (12_031, WORKERS): 120.0}
ADDITIONS = 10_000_000
Row = dict[str, float | int | str]


def machine_s() -> float:
    """CPU seconds of a loop that does nothing else."""
    started, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - started


def timed(arrivals: list[Arrival], workers: int, policy: str, budget: int, repeats: int) -> Row:
    """The best of so many runs: the rest is the neighbours'."""
    worker = VirtualWorker(
        limits=SchedulerLimits(SLOTS, budget),
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        cost=COST,
        policy=POLICIES[policy],
    )
    fleet = VirtualFleet() if workers > 1 else None
    settings = VirtualSettings(workers=(worker,) * workers, fleet=fleet)
    took_s = []
    for _ in range(repeats):
        requests = requests_of(arrivals)
        started = time.process_time()
        run = simulate(requests, settings)
        took_s.append(time.process_time() - started)
    looked_up = sum(one.looked_up_tokens for one in run.kv)
    return {
        "policy": policy,
        "workers": workers,
        "requests": len(arrivals),
        "input_tokens": sum(arrival.item.input_tokens for arrival in arrivals),
        "finished": sum(record.finished for record in run.records),
        "virtual_s": run.ended_ns / 1e9,
        "steps": run.engine_steps,
        "preemptions": sum(one.preemptions for one in run.counters),
        "cache_hit_ratio": sum(one.hit_tokens for one in run.kv) / max(1, looked_up),
        "budget_tokens": budget,
        "cpu_s": min(took_s),
        "machine_s": machine_s(),
    }


def rows(arrivals: list[Arrival], given: argparse.Namespace) -> Iterator[Row]:
    for policy in given.policy:
        yield timed(arrivals[:FIRST], 1, policy, given.budget, given.repeats)
        for count in (len(arrivals) // 4, len(arrivals) // 2, len(arrivals)) if not given.short else ():
            yield timed(arrivals[:count], WORKERS, policy, given.budget, 1)


def exponent(found: list[Row], policy: str) -> float:
    """Of CPU seconds by requests, by least squares of their logarithms: 1 is linear."""
    points = [
        (math.log(float(row["requests"])), math.log(float(row["cpu_s"]) / float(row["machine_s"])))
        for row in found
        if row["policy"] == policy and row["workers"] == WORKERS
    ]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return float(sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="mooncake_fast25_conversation.jsonl")
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="default: both; may be repeated")
    parser.add_argument("--budget", type=int, default=8_192, help="tokens of a step (default 8192)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the first row, of which the best counts")
    parser.add_argument("--short", action="store_true", help="one worker only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row to FILE")
    given = parser.parse_args()
    given.policy = given.policy or list(POLICIES)

    arrivals = read_trace(given.trace).arrivals
    print(f"token budget {given.budget:,} a step, {SLOTS} slots, {NUM_BLOCKS:,} blocks of {BLOCK_SIZE}")
    print(
        f"{'policy':>8} {'workers':>7} {'requests':>8} {'input tokens':>13} {'virtual s':>9} {'steps':>8} {'CPU s':>7} "
        f"{'/ target':>8} {'loop s':>6}"
    )
    found = []
    for row in rows(arrivals, given):
        found.append(row)
        target = TARGETS_S.get((int(row["requests"]), int(row["workers"])))
        ratio = f"{float(row['cpu_s']) / target:.2f}x" if target else ""
        print(
            f"{row['policy']:>8} {row['workers']:>7} {row['requests']:>8,} {row['input_tokens']:>13,} "
            f"{row['virtual_s']:>9,.0f} {row['steps']:>8,} {row['cpu_s']:>7.2f} {ratio:>8} {row['machine_s']:>6.2f}",
            flush=True,
        )
    exponents = {} if given.short else {policy: exponent(found, policy) for policy in given.policy}
    for policy, value in exponents.items():
        print(f"{policy}: CPU seconds grow as requests to the power of {value:.2f}")
    if given.json:
        given.json.write_text(json.dumps({"rows": found, "exponents": exponents}, indent=2) + "\n")


if __name__ == "__main__":
    main()
