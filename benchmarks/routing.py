"""How much load a fleet of four serves within its promises, behind our gateway and behind what others route by.

All on virtual time: the same `Front` that `headway serve --worker` has, before four simulated servers with queues of
their own, whose signals are up to a second old; as it comes, and with `--goal chat`, whose promises these are. The
rivals send each request on at once, as the usual routers do: in turns, or to the worker with the fewest requests in
flight. `all in one` is a yardstick: one server as fast and large as all of them, that knows each output and
lets the dearest tenth wait. The load is skewed lengths of our own, or traces, sped up:
    python -m benchmarks.routing --trace azure_llm_2023_conv.csv --trace azure_llm_2023_code.csv
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import virtual
from benchmarks.virtual import GPU, Asked, S
from headway.cli.goals import GOALS
from headway.core.fleet.worker import WorkerSpec
from headway.core.front.front import FrontLimits
from headway.core.front.ladder import Level, Mode
from headway.core.request import Request
from headway.core.scheduler.limits import SchedulerLimits
from headway.core.scheduler.policies import HEADWAY
from headway.executors.simulated import StepCost
from headway.simulate import VirtualFleet, VirtualRequest, VirtualSettings, VirtualWorker, simulate
from headway.simulate.settings import Route

TARGETS = {"round robin": 1.3, "least requests": 1.15}
BURST, SLACK = 64, 2


def round_robin() -> Route:
    turns = itertools.count()

    def route(_: Request, in_flight: Mapping[str, int]) -> str:
        return list(in_flight)[next(turns) % len(in_flight)]

    return route


def least_requests() -> Route:
    """Of equals the next in turn, as load balancers do."""
    turns = itertools.count()

    def route(_: Request, in_flight: Mapping[str, int]) -> str:
        names, turn = list(in_flight), next(turns)
        return min(names, key=lambda name: (in_flight[name], (names.index(name) - turn) % len(names)))

    return route


OURS, CHAT, BOUND = "headway", "headway chat", "all in one"
ROUTES: dict[str, Callable[[], Route]] = {"least requests": least_requests, "round robin": round_robin}
SIDES = (OURS, CHAT, *ROUTES, BOUND)


def front_of(side: str) -> FrontLimits:
    """What `headway serve` has by itself, or with `--goal chat`: who has waited so long is refused, and not good."""
    if side != CHAT:
        return FrontLimits()
    return FrontLimits(queue_timeout_ns=int(float(GOALS["chat"].choices["queue_timeout"].value) * S))


def fleet_of(side: str, given: argparse.Namespace) -> VirtualSettings:
    fleet = VirtualFleet(
        scrape_every_ns=int(given.scrape_s * S),
        levels=dict.fromkeys(Level, Mode.OFF),  # an answer cut short is not a load served
        route=ROUTES[side]() if side in ROUTES else None,
    )
    worker = virtual.worker(given.policy)
    return VirtualSettings(workers=(worker,) * given.workers, front=front_of(side), fleet=fleet, log_tokens=True)


def all_in_one(given: argparse.Namespace) -> VirtualSettings:
    """One server with the speed, the KV and the slots of all; each step reads the weights once, in the same time.

    It serves by promises, and nobody is lifted over others for having waited.
    """
    worker, count = virtual.worker("headway"), given.workers
    limits = SchedulerLimits(
        max_num_seqs=worker.limits.max_num_seqs * count,
        max_num_batched_tokens=worker.limits.max_num_batched_tokens * count,
    )
    cost = StepCost(
        step_ns=GPU.step_ns,
        prefill_token_ns=GPU.prefill_token_ns // count,
        decode_sequence_ns=GPU.decode_sequence_ns // count,
        context_token_ns=GPU.context_token_ns // count,
        prefill_attention_ns=0,
    )
    large = VirtualWorker(
        limits=limits, num_blocks=worker.num_blocks * count, block_size=worker.block_size, cost=cost, policy=HEADWAY
    )
    return VirtualSettings(workers=(large,), front=FrontLimits(age_bound_ns=0), log_tokens=True)


def dearest_last(load: list[Asked], requests: list[VirtualRequest]) -> list[VirtualRequest]:
    """The tenth that takes most of a server, for its output too, comes after all others: it need not be good."""
    capacity_tokens = virtual.worker("headway").capacity_tokens
    full_step_ns = GPU.step_ns + GPU.context_token_ns * capacity_tokens
    shares = [
        one.prompt_tokens * GPU.prefill_token_ns
        + one.output_tokens * full_step_ns * (one.prompt_tokens + one.output_tokens / 2) / capacity_tokens
        for one in load
    ]
    dear = np.quantile(shares, virtual.GOOD_SHARE)
    return [replace(one, priority=int(share > dear)) for one, share in zip(requests, shares, strict=True)]


def measure(load: list[Asked], side: str, given: argparse.Namespace) -> dict[str, Any]:
    """The highest rate at which nine tenths of the requests keep their promises."""

    def serves(rate: float) -> float:
        requests = virtual.at_rate(load, rate)
        if side == BOUND:
            run = simulate(dearest_last(load, requests), all_in_one(given))
        else:
            run = simulate(requests, fleet_of(side, given))
        return float(virtual.good(run).mean())

    rate, tried = virtual.highest(serves, given.start * given.workers / 4, given.tolerance)
    return {"rate": rate, "tried": sorted(tried)}


def burst(given: argparse.Namespace, seed: int) -> int:
    """How many of a burst one worker has, without a first byte, beyond its fair share, all signals being a second old.

    Windows that hold all of it: so that only the choice decides. The workers are differently busy meanwhile.
    """
    load = virtual.at_rate(virtual.skewed(60, seed, given.longest), 4.0)
    every_ns = int(given.scrape_s * S)
    at_ns = (load[-1].arrival_ns // every_ns + 2) * every_ns - 1  # the first was asked one interval ago, all but 1 ns
    specs = tuple(WorkerSpec(f"w{number}", first_sequences=1_000) for number in range(given.workers))
    fleet = VirtualFleet(specs=specs, scrape_every_ns=every_ns)
    load += [
        VirtualRequest(f"b{number}", at_ns, one.prompt_tokens, virtual.MAX_TOKENS, one.output_tokens)
        for number, one in enumerate(virtual.skewed(BURST, seed + 1, given.longest // 8))
    ]
    worker = virtual.worker(given.policy)
    run = simulate(load, VirtualSettings(workers=(worker,) * given.workers, fleet=fleet))
    out: Counter[int | None] = Counter()
    most = 0
    events = [
        event
        for record in run.records
        if record.id.startswith("b")
        for event in ((record.sent_ns, 1, record.worker), (record.first_token_ns, -1, record.worker))
    ]
    for _, change, number in sorted(events, key=lambda event: event[:2]):
        out[number] += change
        most = max(most, out[number])
    fair: int = -(-BURST // given.workers)
    return most - fair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--trace", type=Path, action="append", default=[], metavar="FILE", help="Azure's CSV or another"
    )
    parser.add_argument("--requests", type=int, default=2_000, help="of each load (default 2,000)")
    parser.add_argument("--longest", type=int, default=8_192, help="prompts are cut to this (default 8,192)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--policy", default="vllm", help="of the workers: vllm (default) or headway")
    parser.add_argument("--scrape-s", type=float, default=1.0, help="how often a worker's signals are read (default 1)")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--start", type=float, default=8.0, help="requests a second to begin at, of four workers")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--bursts", type=int, default=50, help="how many bursts of 64 are tried (default 50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE")
    given = parser.parse_args()
    loads = {"skewed": virtual.skewed(given.requests, given.seed, given.longest)}
    if given.trace:
        loads = {path.stem: virtual.of_trace(path, given.requests, given.longest) for path in given.trace}
    print(f"{given.workers} workers of policy {given.policy}, signals every {given.scrape_s:g} s; good: TTFT within")
    print(
        f"{virtual.TTFT_S:g} s and p99 of token gaps within {virtual.ITL_S:g} s; served: the most req/s with 90% good"
    )
    found: dict[str, Any] = {}
    for name, load in loads.items():
        found[name] = {}
        for side in given.sides.split(","):
            measured = found[name][side] = measure(load, side, given)
            line = f"{name:<24} {side:<16} {measured['rate']:>8.2f} req/s"
            ours = [(one, found[name][one]["rate"]) for one in (OURS, CHAT) if one in found[name]]
            if side in TARGETS and ours:
                times = ", ".join(f"{one} {rate / measured['rate']:.2f}x" for one, rate in ours)
                line += f"   {times} (target {TARGETS[side]}x)"
            if side == BOUND:
                rivals = [(one, found[name][one]["rate"]) for one in TARGETS if one in found[name]]
                line += "".join(f"   {measured['rate'] / rate:.2f}x {one}" for one, rate in rivals)
            print(line, flush=True)
    if given.bursts:
        worst = max(burst(given, seed) for seed in range(given.bursts))
        print(f"bursts of {BURST}, signals up to 1 s old: at most {worst} beyond the fair share (target {SLACK})")
        found["burst"] = {"bursts": given.bursts, "most_beyond_fair_share": worst}
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
