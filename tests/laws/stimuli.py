"""What happens to a `World`, made by Hypothesis: limits, requests, arrivals, cancellations, deaths of the executor."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from headway.core.front.front import FrontLimits
from headway.core.lanes import LaneLimits
from headway.core.request import NO_SLO, Request, SamplingParams, Slo
from tests.laws.world import MS, VOCAB, Setup, World


@dataclass(frozen=True)
class Ask:
    """A request to be. Prompts of one family begin alike."""

    prompt_tokens: int
    max_tokens: int
    ignore_eos: bool = False
    seed: int = 0
    family: int = 0
    scope: str = ""
    priority: int = 0
    slo: Slo = NO_SLO

    def request(self, name: str) -> Request:
        prompt = [(self.family * 11 + 7 * i * i + i) % (VOCAB - 1) + 1 for i in range(self.prompt_tokens)]
        params = SamplingParams(temperature=1.0 if self.seed else 0.0, seed=self.seed, ignore_eos=self.ignore_eos)
        return Request(
            name,
            prompt,
            self.max_tokens,
            params=params,
            priority=self.priority,
            slo=self.slo,
            cache_scope=self.scope,
            tenant=self.scope,
        )


@dataclass(frozen=True)
class Story:
    """Who comes, how many at each step; who is cancelled while which step is in flight; when the executor dies."""

    asks: list[Ask]
    per_step: int = 3
    cancels: dict[int, int] = field(default_factory=dict)  # step -> index
    deaths: frozenset[int] = frozenset()  # steps that never come back
    refused: set[str] = field(default_factory=set, compare=False)

    def play(self, world: World, most: int = 5_000) -> World:
        todo = [ask.request(f"r{i}") for i, ask in enumerate(self.asks)]
        for at in range(most):
            for request in todo[: self.per_step]:
                world.submit(request)
            del todo[: self.per_step]
            step = world.plan()
            if at in self.cancels:  # while a step is in flight: the hard moment
                world.cancel(f"r{self.cancels[at]}")
            if step is not None and at in self.deaths:
                world.abort()
            elif step is not None:
                world.commit(step, world.compute(step))
            elif not todo:
                return world
        raise AssertionError(f"not idle after {most} steps: somebody is starved or lost")


LANES = (LaneLimits("short"), LaneLimits("long prompt", 20, 0, slots=2), LaneLimits("long both", 20, 12, slots=1))

fronts = st.builds(
    FrontLimits,
    queue_timeout_ns=st.sampled_from([0, 0, 20 * MS]),
    age_bound_ns=st.sampled_from([0, 5 * MS, 1000 * MS]),
    lanes=st.sampled_from([LANES[:1], LANES]),
)


def fits(setup: Setup) -> bool:
    """Limits that the core takes: every slot can decode and still leave room for a chunk."""
    return setup.max_num_batched_tokens >= setup.max_num_seqs - 1 + setup.chunk_multiple_tokens


setups = st.builds(
    Setup,
    num_blocks=st.integers(4, 40),
    block_size=st.sampled_from([1, 4, 8]),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([8, 13, 16, 64]),
    chunk_multiple_tokens=st.sampled_from([1, 4, 8]),
    kv_full=st.sampled_from(["preempt", "wait", "reject"]),
    policy=st.sampled_from(["headway", "headway", "vllm"]),
    prefix_cache=st.booleans(),
    front=fronts,
    margin=st.sampled_from([1.0, 1.3]),
    max_preemptions=st.sampled_from([0, 1]),
).filter(fits)

slos = st.builds(
    Slo,
    ttft_ns=st.sampled_from([0, 2 * MS, 10 * MS, 100 * MS]),
    itl_ns=st.sampled_from([0, 300_000, 600_000, 2 * MS]),
    ttft_limit_ns=st.sampled_from([0, 0, 0, 30 * MS]),
)

asks = st.builds(
    Ask,
    prompt_tokens=st.integers(1, 60),
    max_tokens=st.integers(1, 30),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 3),
    family=st.integers(0, 2),
    scope=st.sampled_from(["a", "b"]),
    priority=st.integers(0, 2),
    slo=st.one_of(st.just(Slo()), slos),
)

# Nobody leaves or is turned away: what such a world does must not depend on how it was scheduled.
plain_asks = st.builds(
    Ask,
    prompt_tokens=st.integers(1, 60),
    max_tokens=st.integers(1, 30),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 3),
    family=st.integers(0, 2),
    scope=st.sampled_from(["a", "b"]),
    priority=st.integers(0, 2),
    slo=st.builds(Slo, ttft_ns=st.sampled_from([0, 2 * MS, 100 * MS]), itl_ns=st.sampled_from([0, 300_000, 2 * MS])),
)

stories = st.builds(
    Story,
    asks=st.lists(asks, max_size=12),
    per_step=st.integers(1, 5),
    cancels=st.dictionaries(st.integers(0, 40), st.integers(0, 11), max_size=5),
    deaths=st.frozensets(st.integers(0, 40), max_size=2),
)

plain_stories = st.builds(Story, asks=st.lists(plain_asks, max_size=12), per_step=st.integers(1, 5))
