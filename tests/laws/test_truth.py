"""The prefix cache, chunks, batches, preemption and policies change when tokens come, never which."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.request import Request, State
from tests.laws.stimuli import Ask, Story, plain_asks, plain_stories, setups
from tests.laws.world import Setup, World


def alone(ask: Ask) -> list[int]:
    """The tokens of a request in a world of its own, with room for everything, no chunks and no cache."""
    world = World(Setup(num_blocks=200, max_num_seqs=1, max_num_batched_tokens=512, prefix_cache=False))
    assert world.submit(replace(ask, priority=0).request("alone"))
    world.run()
    return world.tokens["alone"]


@settings(max_examples=150, deadline=None)
@given(setups, plain_stories)
def test_tokens_are_those_of_a_request_alone(setup, story):
    world = story.play(World(replace(setup, front=replace(setup.front, queue_timeout_ns=0))))
    for i, ask in enumerate(story.asks):
        name = f"r{i}"
        if world.finished(name):
            assert world.tokens[name] == alone(ask)
        elif name in world.ends:
            assert world.ends[name].state is State.FAILED
            assert world.tokens[name] == alone(ask)[: len(world.tokens[name])]  # what was streamed was right


def test_the_tight_worlds_above_really_preempt():
    """The law of unchanged tokens says nothing unless sequences do lose their KV."""
    asks = [Ask(6, 20, ignore_eos=True, family=i) for i in range(4)]
    world = Story(asks, 4).play(World(Setup(num_blocks=12, block_size=4, max_num_seqs=4)))
    assert world.scheduler.counters.preemptions > 0
    assert all(world.tokens[f"r{i}"] == alone(ask) for i, ask in enumerate(asks))


@settings(max_examples=100, deadline=None)
@given(setups, plain_stories)
def test_a_token_is_charged_once_and_recomputed_only_when_it_was_lost(setup, story):
    """Tokens fed and tokens found in the cache are, together, tokens resident at the end and tokens lost on the way."""
    world = story.play(World(replace(setup, kv_full="preempt", front=replace(setup.front, queue_timeout_ns=0))))
    counters = world.scheduler.counters
    resident = sum(end.usage.prompt_tokens + end.usage.output_tokens - 1 for end in world.ends.values())
    fed = counters.prefill_tokens + counters.decode_tokens
    assert fed + world.pool.counters.hit_tokens == resident + counters.recomputed_tokens
    first = {row.seq: row.start for step in reversed(world.steps) for row in step.rows}
    for handle, start in first.items():
        assert world.seqs[handle].usage.cached_tokens == start  # what it found when it came back is nobody's discount
    for name, end in world.ends.items():
        assert end.usage.prompt_tokens == len(world.seq(name).request.prompt)  # never more for being resumed
        assert end.usage.output_tokens == len(world.tokens[name])


def test_what_is_found_before_anything_was_computed_is_a_discount_even_after_a_preemption():
    """The last prompt loses its place before its first token is fed, and meanwhile another computes its beginning."""
    asks = [Ask(4, 3, scope="b"), Ask(9, 2, scope="a"), Ask(1, 1, scope="a"), Ask(5, 1, scope="a")]
    setup = Setup(num_blocks=4, block_size=4, max_num_seqs=3, max_num_batched_tokens=13, policy="vllm")
    world = Story(asks, 1).play(World(setup))
    last = world.ends["r3"]
    assert world.seq("r3").preemptions == 1
    assert last.usage.cached_tokens == 4


@settings(max_examples=80, deadline=None)
@given(setups, plain_stories)
def test_a_first_start_computes_exactly_what_was_not_cached(setup, story):
    setup = replace(setup, kv_full="wait", front=replace(setup.front, queue_timeout_ns=0))  # nobody starts twice
    world = story.play(World(setup))
    fed: dict[int, int] = {}
    for step in world.steps:
        for row in step.rows:
            prompt = len(world.seqs[row.seq].request.prompt)
            fed[row.seq] = fed.get(row.seq, 0) + max(0, min(prompt, row.start + len(row.tokens)) - row.start)
    for handle, tokens in fed.items():
        usage = world.seqs[handle].usage
        assert tokens == usage.prompt_tokens - usage.cached_tokens
    assert world.pool.counters.hit_tokens == sum(end.usage.cached_tokens for end in world.ends.values())


@settings(max_examples=80, deadline=None)
@given(st.lists(plain_asks, max_size=8), st.sampled_from([1, 4, 8]))
def test_what_is_cached_is_the_longest_shared_beginning_in_whole_blocks(asks, block_size):
    """One after another, with room for everything: what each finds can be counted by hand, and never crosses scopes."""
    world = World(Setup(num_blocks=1000, block_size=block_size, max_num_seqs=1))
    past: list[tuple[str, list[int]]] = []  # scope, tokens that were resident
    for i, ask in enumerate(asks):
        request = replace(ask, priority=0).request(f"r{i}")
        assert world.submit(request)
        world.run()
        best = max((_shared(request, tokens) for scope, tokens in past if scope == ask.scope), default=0)
        usage = world.ends[request.id].usage
        assert usage.cached_tokens == min(best, request.prompt_tokens - 1) // block_size * block_size
        past.append((ask.scope, [*request.prompt, *world.tokens[request.id][:-1]]))


def _shared(request: Request, tokens: list[int]) -> int:
    pairs = enumerate(zip(request.prompt, tokens, strict=False))
    return next((i for i, (left, right) in pairs if left != right), min(request.prompt_tokens, len(tokens)))


def test_the_cache_hits_within_a_tenant_and_never_across():
    world = World(Setup(max_num_seqs=1))
    for name, scope in (("first", "a"), ("again", "a"), ("stranger", "b")):
        assert world.submit(Ask(17, 2, scope=scope).request(name))
        world.run()
    cached = {name: end.usage.cached_tokens for name, end in world.ends.items()}
    assert cached == {"first": 0, "again": 16, "stranger": 0}
    assert world.pool.counters.hit_tokens == 16


@settings(max_examples=60, deadline=None)
@given(setups, plain_stories)
def test_blocks_are_shared_within_a_scope_only(setup, story):
    """At no time do two scopes' tables name the same block."""
    world = World(replace(setup, prefix_cache=True))
    owners: list[dict[int, set[Hashable]]] = []
    commit = world.scheduler.commit

    def watch(step, outcome, now):
        held: dict[int, set[Hashable]] = {}
        for seq in world.scheduler.running:
            for block in seq.table.blocks:
                held.setdefault(block, set()).add(seq.request.cache_scope)
        owners.append(held)
        return commit(step, outcome, now)

    world.scheduler.commit = watch  # type: ignore[method-assign]
    story.play(world)
    assert all(len(scopes) == 1 for held in owners for scopes in held.values())


def test_a_follow_up_finds_the_answer_it_continues():
    world = World(Setup(max_num_seqs=1))
    first = Ask(8, 9, ignore_eos=True).request("first")
    assert world.submit(first)
    world.run()
    assert world.submit(Request("next", [*first.prompt, *world.tokens["first"], 1, 2, 3], 2))
    world.run()
    assert world.ends["next"].usage.cached_tokens == 16  # 8 of the prompt, 8 of the 9 that were answered


def test_without_the_cache_nothing_is_found():
    world = World(Setup(prefix_cache=False, max_num_seqs=1))
    for name in ("a", "b"):
        assert world.submit(Ask(20, 2).request(name))
    world.run()
    assert world.pool.counters.hit_tokens == world.pool.cached_blocks == 0
