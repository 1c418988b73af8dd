"""`Spans`: a sequence of tokens like a list of the same tokens, whose blocks compare as their tokens do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.scheduler.kv import KvPool, Table, contents
from headway.core.spans import Spans, tokens_of


@st.composite
def prompts(draw: st.DrawFn) -> Spans:
    unit = draw(st.sampled_from([1, 3, 4, 8, 16]))
    shared = tuple(draw(st.lists(st.integers(0, 3), max_size=5)))
    made = Spans(draw(st.integers(1, 60)), draw(st.integers(0, 5)), shared, unit)
    made += draw(st.lists(st.integers(0, 9), max_size=10))
    return made


@given(prompts(), st.data())
def test_it_is_the_list_of_its_tokens(spans, data):
    tokens = list(spans)
    assert len(spans) == len(tokens)
    places = st.integers(-len(tokens), len(tokens) - 1)
    place = data.draw(places)
    assert spans[place] == tokens[place]
    bounds = st.none() | st.integers(-len(tokens) - 2, len(tokens) + 2)
    part = slice(data.draw(bounds), data.draw(bounds), data.draw(st.sampled_from([None, 1, 2, -1, -2])))
    assert list(spans[part]) == tokens[part]
    assert len(spans[part]) == len(tokens[part])
    more = [7, 8]
    assert list(spans + more) == tokens + more


@given(prompts(), st.lists(st.integers(0, 9), min_size=1))
def test_a_copy_grows_by_itself(spans, more):
    before, copy = list(spans), tokens_of(spans)
    copy += more
    assert (list(spans), list(copy)) == (before, [*before, *more])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Spans, Spans]:
    """Two of one trace: they number blocks of one size. What is nobody else's differs."""
    unit = draw(st.sampled_from([1, 3, 4, 8, 16]))
    made = []
    for own in (0, 1):
        shared = tuple(draw(st.lists(st.integers(0, 2), max_size=5)))
        made.append(Spans(draw(st.integers(1, 60)), own, shared, unit))
        made[-1] += draw(st.lists(st.integers(0, 1), max_size=10))
    return made[0], made[1]


@given(pairs(), st.integers(1, 9))
def test_blocks_are_equal_where_their_tokens_are(pair, size):
    one, other = pair
    both = min(len(one), len(other)) // size
    said = [contents(each, 0, both, size) for each in pair]
    real = [[tuple(each[at * size : (at + 1) * size]) for at in range(both)] for each in pair]
    assert [a == b for a, b in zip(*said, strict=True)] == [a == b for a, b in zip(*real, strict=True)]


@given(prompts(), st.integers(1, 9), st.data())
def test_blocks_may_be_asked_for_from_anywhere(spans, size, data):
    end = len(spans) // size
    first = data.draw(st.integers(0, end))
    assert contents(spans, first, end, size) == contents(spans, 0, end, size)[first:]


@given(st.lists(prompts(), min_size=1, max_size=6), st.integers(1, 6))
def test_a_prefix_cache_finds_in_spans_what_it_finds_in_tokens(asked, size):
    """Of prompts whose blocks are numbered alike, so that equal numbers are equal tokens."""
    pools = [KvPool(200, size), KvPool(200, size)]
    for spans in asked:
        found = []
        for pool, tokens in zip(pools, (spans, list(spans)), strict=True):
            table = Table(scope=spans._unit)
            found.append(pool.match(table, tokens))
            assert pool.grow(table, len(tokens))
            pool.publish(table, tokens, len(tokens))
            pool.release(table)
        assert found[0] == found[1]
