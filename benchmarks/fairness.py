"""What a noisy tenant does to a quiet one behind our gateway, and whether tokens are shared as the weights say.

On virtual time, a fleet of four. First two tenants of equal weight: the quiet one asks for a third of its share, its
neighbour for its share, or for twenty times as much. Then tenants of several weights, all of whom want more than there
is. Each may have so many requests inside at a time (`--concurrency`), so that nobody can fill the waiting room alone.
    python -m benchmarks.fairness --json results/fairness.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import virtual
from benchmarks.virtual import S
from headway.core.front.admission import AdmissionLimits
from headway.core.front.ladder import Level, Mode
from headway.core.front.tenants import NO_LIMITS, TenantLimits
from headway.simulate import Run, VirtualFleet, VirtualRequest, VirtualSettings, simulate

MOST_MOVED, MOST_OFF = 1.3, 0.05
FLOOD, QUIET_SHARE = 20.0, 1 / 3
WEIGHTS = {"one": 1.0, "two": 2.0, "four": 4.0}


def load_of(tenant: str, rate: float, seconds: float, given: argparse.Namespace, seed: int) -> list[VirtualRequest]:
    asked = virtual.skewed(max(2, int(rate * seconds)), seed, given.longest)
    return [replace(one, id=f"{tenant}-{one.id}", tenant=tenant) for one in virtual.at_rate(asked, rate)]


def service(given: argparse.Namespace, tenants: dict[str, TenantLimits]) -> VirtualSettings:
    worker = virtual.worker(given.policy)
    return VirtualSettings(
        workers=(worker,) * given.workers,
        admission=AdmissionLimits(16_384, 1 << 60, max_waiting=1_024, max_waiting_tokens=1_000_000),
        tenants=tenants,
        default_limits=TenantLimits(max_concurrency=given.concurrency),
        fleet=VirtualFleet(levels=dict.fromkeys(Level, Mode.OFF)),  # fairness alone
        log_tokens=True,
    )


def capacity(given: argparse.Namespace) -> float:
    """Requests a second that the fleet finishes when it always has some waiting."""
    run = simulate(virtual.at_rate(virtual.skewed(1_000, given.seed, given.longest), 1_000.0), _endless(given))
    return virtual.finished_rate(run)


def _endless(given: argparse.Namespace) -> VirtualSettings:
    return replace(service(given, {}), admission=None, default_limits=NO_LIMITS)


def noisy(share: float, quiet: float, given: argparse.Namespace) -> dict[str, Any]:
    """A neighbour at `share` times its share; what the quiet tenant's first tokens take."""
    load = load_of("quiet", quiet, given.seconds, given, given.seed)
    load += load_of("neighbour", quiet / QUIET_SHARE * share, given.seconds, given, given.seed + 1)
    run = simulate(load, service(given, {}))
    mine = [record for record in run.records if record.tenant == "quiet"]
    ttft_s = [record.ttft_ns / 1e9 for record in mine if record.ttft_ns is not None]
    return {
        "neighbour_share": share,
        "p50_ttft_s": float(np.percentile(ttft_s, 50)),
        "p99_ttft_s": float(np.percentile(ttft_s, 99)),
        "quiet": len(mine),
        "quiet_not_served": sum(not record.finished for record in mine),
        "neighbour_refused": sum(record.end == "refused" for record in run.records if record.tenant != "quiet"),
    }


def shares(rate: float, given: argparse.Namespace) -> dict[str, float]:
    """Of the tokens that were served while all were backlogged, each tenant's part over that of its weight."""
    most = given.concurrency
    tenants = {name: TenantLimits(weight=weight, max_concurrency=most) for name, weight in WEIGHTS.items()}
    load: list[VirtualRequest] = []
    for number, name in enumerate(WEIGHTS):
        load += load_of(name, rate, given.seconds, given, given.seed + number)
    run = simulate(load, service(given, tenants))
    served = _served(run, given.seconds)
    total, weights = sum(served.values()), sum(WEIGHTS.values())
    return {name: served[name] / total / (weight / weights) for name, weight in WEIGHTS.items()}


def _served(run: Run, seconds: float) -> dict[str, int]:
    """Tokens of requests that ended in the backlog: after it has built up, and while everybody still comes."""
    served = dict.fromkeys(WEIGHTS, 0)
    for record in run.records:
        if record.finished and 0.1 * seconds <= record.ended_ns / S <= seconds:
            served[record.tenant] += record.prompt_tokens + record.output_tokens
    return served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="virtual, of each load (default 120)")
    parser.add_argument("--longest", type=int, default=8_192, help="prompts are cut to this (default 8,192)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--policy", default="vllm", help="of the workers: vllm (default) or headway")
    parser.add_argument(
        "--concurrency", type=int, default=300, help="each tenant's requests inside (default 300; 0: no limit)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE")
    given = parser.parse_args()
    most = capacity(given)
    quiet = most / 2 * QUIET_SHARE
    print(
        f"{given.workers} workers of policy {given.policy} finish {most:.1f} req/s; the quiet tenant asks {quiet:.1f}"
    )
    found = {name: noisy(share, quiet, given) for name, share in (("behaving", 1.0), ("flooding", FLOOD))}
    for name, one in found.items():
        print(
            f"neighbour {name:<9} {one['neighbour_share']:>4g}x its share: quiet TTFT p50 {one['p50_ttft_s']:.3f} s, "
            f"p99 {one['p99_ttft_s']:.3f} s, {one['quiet_not_served']} of {one['quiet']} not served; "
            f"{one['neighbour_refused']} of the neighbour's refused"
        )
    moved = found["flooding"]["p99_ttft_s"] / found["behaving"]["p99_ttft_s"]
    print(f"flooding / behaving: {moved:.2f}x of the quiet tenant's p99 TTFT (target at most {MOST_MOVED}x)")
    parts = shares(most, given)
    off = max(abs(part - 1.0) for part in parts.values())
    told = ", ".join(f"{name} {part:.3f}" for name, part in parts.items())
    print(f"tokens / weight: {told}; at most {off:.1%} off (target {MOST_OFF:.0%})")
    if given.json:
        given.json.write_text(json.dumps({"noisy": found, "moved": moved, "shares": parts}, indent=2) + "\n")


if __name__ == "__main__":
    main()
