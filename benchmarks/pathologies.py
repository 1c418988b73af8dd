"""Twelve ways in which a server is slow and four in which it is well, each as a load and a server on virtual time.

Loads are drawn anew for each seed. The server is that of `benchmarks.virtual` (an 8B model on a 24 GB GPU), except
where a pathology is in its settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchmarks.virtual import GPU
from benchmarks.watched import Dialect, Page, S, Watched, WatchedFleet
from headway.core.request import Request
from headway.core.scheduler.limits import KvFull, SchedulerLimits
from headway.core.scheduler.policies import POLICIES
from headway.executors.simulated import StepCost
from headway.simulate import VirtualFleet, VirtualRequest, VirtualSettings, VirtualWorker

WINDOW_S = 120.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """`cause`: what the doctor must find first; empty for a healthy control."""

    name: str
    cause: str
    load: Callable[[random.Random], list[VirtualRequest]]
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    num_blocks: int = 2_588
    block_size: int = 16
    kv_full: KvFull = "preempt"
    cost: StepCost = GPU
    prefix_cache: bool = True
    policy: str = ""  # empty: that of the dialect
    tokenise_s: float = 0.0
    network_s: float = 0.0005
    workers: int = 1
    route: Callable[[random.Random], Callable[[Request, Mapping[str, int]], str]] | None = None
    from_s: float = 10.0  # before that it warms up
    window_s: float = WINDOW_S


def poisson(draw: random.Random, rate: float, until_s: float = WINDOW_S + 20.0) -> list[float]:
    at_s, found = 0.0, []
    while (at_s := at_s + draw.expovariate(rate)) < until_s:
        found.append(at_s)
    return found


def lengths(draw: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    return int(min(max(median * 2.718281828 ** (sigma * draw.gauss(0.0, 1.0)), low), high))


def requests(times: list[float], draw: random.Random, prompt: tuple[float, float], output: tuple[float, float],
             most: int = 2048) -> list[VirtualRequest]:  # fmt: skip
    """`prompt`, `output`: median and sigma of lognormal lengths."""
    made = []
    for number, at_s in enumerate(times):
        tokens = lengths(draw, *output, 4, most)
        made.append(VirtualRequest(f"r{number}", int(at_s * S), lengths(draw, *prompt, 8, 16_000), most, tokens))
    return made


# -- pathologies -------------------------------------------------------------------------------------------------------


def long_prompts_among_short(draw: random.Random) -> list[VirtualRequest]:
    """Chats, and now and then a document of ten thousand tokens."""
    chats = requests(poisson(draw, 5.0), draw, (120, 0.6), (100, 0.5))
    long = requests(poisson(draw, 0.25), draw, (10_000, 0.2), (60, 0.4))
    return _merged(chats, long)


def at_the_slot_limit(draw: random.Random) -> list[VirtualRequest]:
    return requests(poisson(draw, 4.0), draw, (200, 0.5), (150, 0.5))


def kv_exhausted(draw: random.Random) -> list[VirtualRequest]:
    """Documents with short answers: each holds much KV."""
    return requests(poisson(draw, 1.6), draw, (3_500, 0.3), (120, 0.3))


def thrash(draw: random.Random) -> list[VirtualRequest]:
    """Short prompts that let many in, and answers that then need more KV than there is."""
    return requests(poisson(draw, 2.5), draw, (80, 0.4), (500, 0.4))


def many_at_once(draw: random.Random) -> list[VirtualRequest]:
    return requests(poisson(draw, 6.0), draw, (60, 0.4), (220, 0.4))


def steady_prompts(draw: random.Random) -> list[VirtualRequest]:
    """Prompts of one length keep coming, as from retrieval: nearly every step has some."""
    return requests(poisson(draw, 2.6), draw, (2_600, 0.15), (90, 0.4))


def usual(rate: float) -> Callable[[random.Random], list[VirtualRequest]]:
    return lambda draw: requests(poisson(draw, rate), draw, (200, 0.7), (150, 0.6))


def in_bursts(draw: random.Random) -> list[VirtualRequest]:
    """Ninety at once every half minute, and a trickle between."""
    times = poisson(draw, 0.5)
    at_s = draw.uniform(12.0, 20.0)
    while at_s < WINDOW_S + 20.0:
        times += [at_s + draw.uniform(0.0, 1.0) for _ in range(90)]
        at_s += draw.uniform(26.0, 34.0)
    return requests(sorted(times), draw, (200, 0.5), (120, 0.5))


def over_long(draw: random.Random) -> list[VirtualRequest]:
    """One in eight answers is twenty times as long as the others."""
    made = requests(poisson(draw, 2.2), draw, (150, 0.5), (60, 0.4))
    return [
        replace(one, output_tokens=min(2048, one.output_tokens * 20)) if draw.random() < 0.125 else one for one in made
    ]


def same_beginnings(draw: random.Random) -> list[VirtualRequest]:
    """Forty long beginnings, each asked again and again; the cache starts empty."""
    heads = [[(number << 20) + token for token in range(3_000)] for number in range(1, 13)]
    made = []
    fresh = 1 << 40
    for number, at_s in enumerate(poisson(draw, 3.2)):
        tail = lengths(draw, 60, 0.4, 8, 400)
        shared = number / 400 < draw.random() or at_s > 60.0  # at first mostly prompts nobody has asked before
        head = draw.choice(heads) if at_s > 55.0 or (shared and at_s > 50.0) else [fresh + k for k in range(3_000)]
        fresh += 100_000
        prompt = [*head, *range(fresh, fresh + tail)]
        made.append(VirtualRequest(f"r{number}", int(at_s * S), prompt, 512, lengths(draw, 60, 0.4, 4, 512)))
    return made


def _merged(*several: list[VirtualRequest]) -> list[VirtualRequest]:
    merged = sorted((one for some in several for one in some), key=lambda one: one.arrival_ns)
    return [replace(one, id=f"r{number}") for number, one in enumerate(merged)]


def mostly_to_one(draw: random.Random) -> Callable[[Request, Mapping[str, int]], str]:
    """A router by a hash that is unlucky."""

    def route(_: Request, in_flight: Mapping[str, int]) -> str:
        names = list(in_flight)
        return names[0] if draw.random() < 0.7 else draw.choice(names[1:])

    return route


def in_turns(_: random.Random) -> Callable[[Request, Mapping[str, int]], str]:
    def route(_: Request, in_flight: Mapping[str, int]) -> str:
        return min(in_flight, key=lambda name: in_flight[name])

    return route


PATHOLOGIES = (
    Scenario("long-prompt interference", "long-prompt-interference", long_prompts_among_short,
             max_num_batched_tokens=8_192, policy="vllm"),
    Scenario("queue at the slot limit", "slot-limit", at_the_slot_limit, max_num_seqs=8),
    Scenario("KV exhaustion", "kv-exhausted", kv_exhausted, max_num_batched_tokens=2_048, num_blocks=1_300),
    Scenario("preemption thrash", "preemption-thrash", thrash, max_num_seqs=256, num_blocks=400, policy="vllm"),
    Scenario("oversized batch", "oversized-batch", many_at_once, max_num_seqs=512, max_num_batched_tokens=1_024,
             num_blocks=20_000, cost=replace(GPU, decode_sequence_ns=4_000_000)),
    Scenario("decode starvation", "decode-starvation", steady_prompts, max_num_seqs=128, max_num_batched_tokens=8_192,
             policy="vllm", num_blocks=20_000),
    Scenario("hot worker", "hot-worker", usual(9.0), workers=3, route=mostly_to_one, max_num_seqs=24,
             window_s=60.0),
    Scenario("slow tokenizer", "slow-preprocessing", usual(1.5), tokenise_s=0.4),
    Scenario("bursts", "bursts", in_bursts, max_num_seqs=16),
    Scenario("over-long outputs", "long-outputs", over_long, max_num_seqs=8),
    Scenario("cold cache", "cold-cache", same_beginnings, max_num_batched_tokens=1_024, num_blocks=6_000),
    Scenario("network delay", "network-delay", usual(1.5), network_s=0.3),
)  # fmt: skip

CONTROLS = (
    Scenario("light chat", "", usual(1.0)),
    Scenario("busy chat", "", usual(5.0), max_num_seqs=128),
    Scenario("documents", "", lambda draw: requests(poisson(draw, 0.4), draw, (2_000, 0.4), (200, 0.4)),
             max_num_batched_tokens=1_024),
    Scenario("even fleet", "", usual(9.0), workers=3, route=in_turns, max_num_seqs=64, window_s=60.0),
)  # fmt: skip
SCENARIOS = PATHOLOGIES + CONTROLS


def pages(scenario: Scenario, seed: int, dialect: Dialect, every_s: float = 1.0) -> list[Page]:
    """What scrapes of it showed."""
    watched = watch(scenario, seed, dialect, every_s)
    watched.run()
    return [page for page in watched.pages if page.at_s >= scenario.from_s]


def watch(scenario: Scenario, seed: int, dialect: Dialect, every_s: float = 1.0) -> Watched | WatchedFleet:
    draw = random.Random(f"{scenario.name} {seed}")
    limits = SchedulerLimits(
        scenario.max_num_seqs, max(scenario.max_num_batched_tokens, scenario.max_num_seqs),
        kv_full=scenario.kv_full,
    )  # fmt: skip
    worker = VirtualWorker(
        limits=limits,
        num_blocks=scenario.num_blocks,
        block_size=scenario.block_size,
        prefix_cache=scenario.prefix_cache,
        cost=scenario.cost,
        policy=POLICIES[scenario.policy or dialect],
    )
    load = scenario.load(draw)
    until_s = scenario.from_s + scenario.window_s
    if scenario.workers > 1:
        assert scenario.route is not None
        fleet = VirtualFleet(route=scenario.route(draw))
        settings = VirtualSettings(workers=(worker,) * scenario.workers, fleet=fleet, leaps=False, log_steps=True)
        return WatchedFleet(load, settings, dialect, every_s=every_s, until_s=until_s)
    settings = VirtualSettings(workers=(worker,), leaps=False, log_steps=True)
    return Watched(load, settings, dialect, every_s=every_s, until_s=until_s, tokenise_s=scenario.tokenise_s)
