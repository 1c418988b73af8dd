"""Lengths, shares, tenants and shared beginnings: what is drawn is what was described."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.workload.arrivals import Constant, Poisson
from headway.workload.draws import stream
from headway.workload.errors import MAX_TOKENS, WorkloadError
from headway.workload.item import Arrival, Item
from headway.workload.lengths import (
    Empirical,
    Fixed,
    Independent,
    Lengths,
    Lognormal,
    Normal,
    Uniform,
    observed,
    parse_lengths,
)
from headway.workload.mix import (
    Given,
    ItemSource,
    Mix,
    Share,
    SharedPrefix,
    Tenants,
    parse_share,
    parse_shares,
    parse_tenants,
    short_and_long,
)
from headway.workload.schedule import Stop, items, schedule

quick = settings(deadline=None)
DRAWS = 20_000


def taken(source: ItemSource, count: int, seed: int = 0) -> list[Item]:
    return list(itertools.islice(items(source, seed), count))


def lengths(text: str, count: int = DRAWS) -> list[int]:
    drawn, random = parse_lengths(text), stream(1, text)
    return [drawn.draw(random) for _ in range(count)]


@quick
@given(st.integers(1, MAX_TOKENS), st.integers(0, 1000), st.integers())
def test_lengths_lie_within_their_bounds(low: int, width: int, seed: int) -> None:
    high = min(low + width, MAX_TOKENS)
    for text in (f"{low}:{high}", f"normal:{low},{width},{low}:{high}", f"lognormal:{low},{width},{low}:{high}"):
        drawn, random = parse_lengths(text), stream(seed)
        assert all(low <= drawn.draw(random) <= high for _ in range(20))
    assert parse_lengths(str(low)) == Fixed(low)


@pytest.mark.parametrize(
    "text", ["40", "3:90", "normal:900,100", "normal:900,400,1:1000", "lognormal:512,300", "lognormal:9,90,1:50"]
)
def test_hardly_a_length_is_beyond_the_most(text: str) -> None:
    lengths, random = parse_lengths(text), stream(3, "lengths")
    drawn = [lengths.draw(random) for _ in range(20_000)]
    beyond = sum(length > lengths.most for length in drawn)
    endless = text.count(":") == 1 and "normal" in text
    assert beyond <= (6 if endless else 0)
    assert max(drawn) > lengths.most / 3, "and it is near what comes"


def test_a_uniform_length_has_both_ends_and_no_favourite() -> None:
    counts = Counter(lengths("3:7"))
    assert sorted(counts) == [3, 4, 5, 6, 7]
    assert all(abs(count - DRAWS / 5) < 4 * math.sqrt(DRAWS * 0.16) for count in counts.values())


@pytest.mark.parametrize(("text", "mean", "std"), [("normal:900,100", 900, 100), ("lognormal:512,300", 512, 300)])
def test_a_mean_and_a_deviation_are_those_of_the_lengths(text: str, mean: float, std: float) -> None:
    drawn = lengths(text)
    assert abs(statistics.fmean(drawn) - mean) < 4 * std / math.sqrt(DRAWS)
    assert statistics.stdev(drawn) == pytest.approx(std, rel=0.06)


def test_a_lognormal_length_is_skewed() -> None:
    """Its median is mean / √(1 + (std/mean)²)."""
    assert statistics.median(lengths("lognormal:512,300")) == pytest.approx(
        512 / math.sqrt(1 + (300 / 512) ** 2), rel=0.02
    )


def test_what_is_outside_becomes_the_limit() -> None:
    drawn = lengths("normal:100,50,80:120")
    assert min(drawn) == 80
    assert max(drawn) == 120
    assert 0.3 < drawn.count(80) / DRAWS < 0.4  # all that is more than 0.4 deviations below
    assert set(lengths("normal:5,0")) == {5}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("512", Fixed(512)),
        (" 100:500 ", Uniform(100, 500)),
        ("normal:512,100", Normal(512, 100)),
        ("Normal:512.5, 100.25", Normal(512.5, 100.25)),
        ("lognormal:512,300,16:2048", Lognormal(512, 300, 16, 2048)),
    ],
)
def test_the_short_form_is_read(text: str, made: Lengths) -> None:
    assert parse_lengths(text) == made


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "'' is not a whole number"),
        ("abc", "'abc' is not a whole number"),
        ("1_000", "'1_000' is not a whole number"),
        ("12.5", "is not a whole number"),
        ("0", "tokens must be 1 to 10,000,000 tokens, not 0"),
        ("-5", "tokens must be 1 to"),
        ("99999999999", "tokens must be 1 to 10,000,000 tokens"),
        ("9" * 40, "is not a whole number"),
        ("500:100", "the lower end, 500, is above the upper one, 100"),
        ("100:", "'' is not a whole number"),
        ("0:5", "low must be 1 to"),
        ("normal:512", "takes a mean and a standard deviation"),
        ("normal:512,nan", "'nan' is not a number"),
        ("normal:512,-1", "std must be 0 to"),
        ("lognormal:0,5", "mean must be 1 to"),
        ("normal:512,5,7", "the clip is LOW:HIGH, not '7'"),
        ("normal:512,5,9:7", "the lower end, 9, is above"),
        ("zipf:5,7", "'zipf' is not a whole number"),
    ],
)
def test_a_bad_short_form_says_what_to_write(text: str, what: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse_lengths(text, "--input")
    assert str(error.value).startswith(f"--input {text!r}"[:50])
    assert what in str(error.value)
    assert "Write 512, 100:500 (uniform)" in str(error.value)
    assert error.value.field == "--input"


@quick
@given(st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 9999)), min_size=1, max_size=20), st.integers())
def test_observed_lengths_stay_together(pairs: list[tuple[int, int]], seed: int) -> None:
    source = observed(Arrival(0, Item(put, out)) for put, out in pairs)
    random = stream(seed)
    assert all(source.draw(random) in pairs for _ in range(50))


def test_lengths_that_cannot_be_are_refused() -> None:
    for pairs, what in (((), "at least one pair"), (((5, 0),), r"pairs\[0\] output must be 1 to")):
        with pytest.raises(WorkloadError, match=what):
            Empirical(pairs)


def test_kinds_are_as_frequent_as_their_shares_and_as_long_as_they_say() -> None:
    source = Mix(parse_shares(["short=92%/40:160/32:96", "long=8%/2000:4000/256"]), parse_tenants("a=3,b=1"))
    made = taken(source, DRAWS)
    kinds, tenants = Counter(item.kind for item in made), Counter(item.tenant for item in made)
    assert abs(kinds["long"] - 0.08 * DRAWS) < 4 * math.sqrt(DRAWS * 0.08 * 0.92)
    assert abs(tenants["b"] - 0.25 * DRAWS) < 4 * math.sqrt(DRAWS * 0.25 * 0.75)
    assert set(kinds) == {"short", "long"}
    for item in made:
        low, high = (40, 160) if item.kind == "short" else (2000, 4000)
        assert low <= item.input_tokens <= high
        assert item.output_tokens == 256 if item.kind == "long" else 32 <= item.output_tokens <= 96


@quick
@given(st.integers(), st.integers(1, 5))
def test_tenants_and_prefixes_do_not_change_what_is_asked(seed: int, tenants: int) -> None:
    plain = Mix(short_and_long())
    dressed = Mix(short_and_long(), parse_tenants(str(tenants)), SharedPrefix(64, 3, 0.5))
    for one, other in zip(taken(plain, 50, seed), taken(dressed, 50, seed), strict=True):
        assert (one.kind, one.input_tokens, one.output_tokens) == (other.kind, other.input_tokens, other.output_tokens)


def test_a_share_of_requests_begins_alike_in_groups() -> None:
    one = Share("", 1, Independent(Fixed(512), Fixed(64)))
    made = taken(Mix((one,), prefix=SharedPrefix(128, 4, 0.75)), DRAWS)
    groups = Counter(item.prefix_blocks for item in made)
    assert set(groups) == {(), (0,), (1,), (2,), (3,)}
    assert abs(groups[()] - DRAWS / 4) < 4 * math.sqrt(DRAWS * 3 / 16)
    assert all(item.prefix_block_tokens == (128 if item.prefix_blocks else 0) for item in made)
    assert all(item.prefix_blocks == (0,) for item in taken(Mix((one,), prefix=SharedPrefix(128)), 100))
    assert not any(item.prefix_blocks for item in taken(Mix((one,), prefix=SharedPrefix(128, 1, 0)), 100))


@quick
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20, unique=True), st.booleans(), st.integers())
def test_every_pass_gives_every_item_once(inputs: list[int], shuffle: bool, seed: int) -> None:
    given_items = [Item(tokens, 1, tenant="own" if tokens % 2 else "") for tokens in inputs]
    made = taken(Given(given_items, shuffle, parse_tenants("a")), 3 * len(inputs), seed)
    for begin in range(0, len(made), len(inputs)):
        part = [item.input_tokens for item in made[begin : begin + len(inputs)]]
        assert sorted(part) == sorted(inputs)
        assert shuffle or part == inputs
    assert all(item.tenant == ("own" if item.input_tokens % 2 else "a") for item in made)


@quick
@given(st.integers(), st.integers(1, 200))
def test_another_rate_asks_for_the_same_items(seed: int, requests: int) -> None:
    source, stop = Mix(short_and_long(), parse_tenants("2")), Stop(requests=requests)
    slow = list(schedule(Poisson(1), source, stop, seed))
    fast = list(schedule(Constant(100), source, stop, seed))
    assert [arrival.item for arrival in slow] == [arrival.item for arrival in fast] == taken(source, requests, seed)
    assert [arrival.at_ns for arrival in slow] == sorted(arrival.at_ns for arrival in slow)
    assert slow == list(schedule(Poisson(1), source, stop, seed))


def test_tenants_are_a_number_or_names() -> None:
    assert parse_tenants("3") == Tenants((("tenant-1", 1.0), ("tenant-2", 1.0), ("tenant-3", 1.0)))
    assert parse_tenants("a=3, b=1.5") == Tenants((("a", 3.0), ("b", 1.5)))
    assert parse_tenants("a,b") == Tenants((("a", 1.0), ("b", 1.0)))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0", "number of tenants must be 1 to 10,000"),
        ("99999", "number of tenants must be 1 to 10,000"),
        ("a=0", "weight of tenant 'a' must be"),
        ("a=-1", "weight of tenant 'a' must be a number above 0"),
        ("a=x", "weight of tenant 'a' must be a number above 0, not 'x'"),
        ("a=nan", "weight of tenant 'a'"),
        ("a=1,a=2", "tenant 'a' comes twice"),
        ("", "tenant '' must be 1 to 64"),
        ("a,,b", "tenant '' must be 1 to 64"),
        ("a b=1", "tenant 'a b' must be"),
    ],
)
def test_bad_tenants_are_refused(text: str, what: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse_tenants(text)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("short", "a share is NAME=WEIGHT/INPUT/OUTPUT"),
        ("short=92/40", "a share is NAME=WEIGHT/INPUT/OUTPUT"),
        ("short=x/40/50", "weight of 'short' must be a number above 0, not 'x'"),
        ("short=0/40/50", "weight of 'short' must be"),
        ("=1/40/50", "kind '' must be 1 to 64"),
        ("short=1/abc/50", "input of share 'short' 'abc'"),
        ("short=1/40/9:3", "output of share 'short' '9:3'"),
    ],
)
def test_bad_shares_are_refused(text: str, what: str) -> None:
    with pytest.raises(WorkloadError) as error:
        parse_share(text)
    assert what in str(error.value)


def test_sources_of_nothing_and_doubled_names_are_refused() -> None:
    for make, what in (
        (lambda: Mix(()), "at least one kind"),
        (lambda: Given([]), "at least one item"),
        (lambda: parse_shares(["a=1/5/5", "a=2/5/5"]), "kind 'a' comes twice"),
        (lambda: SharedPrefix(0), "shared_prefix_tokens must be 1 to"),
        (lambda: SharedPrefix(5, 0), "prefix_groups must be 1 to"),
        (lambda: SharedPrefix(5, 1, 1.5), "shared_prefix_share must be 0 to 1, not 1.5"),
    ):
        with pytest.raises(WorkloadError, match=what):
            make()


def test_a_load_tells_people_what_it_asks() -> None:
    source = Mix(parse_shares(["short=3/40:160/32", "long=1/2000/64"]), parse_tenants("2"), SharedPrefix(64, 2, 0.5))
    assert source.description == (
        "short 0.75: 40 to 160 → 32 tokens; long 0.25: 2,000 → 64 tokens; 2 equal tenants; "
        "0.5 of prompts begin with 64 shared tokens, in 2 groups"
    )
    assert SharedPrefix(64).description == "all prompts begin with 64 shared tokens, all the same"
    assert Mix((Share("", 1, Independent(Normal(512, 10), Fixed(5))),)).description == (
        "normal, mean 512, std 10, at least 1 → 5 tokens"
    )
    assert Given([Item(1, 1)], shuffle=True).description == "1 given requests, shuffled"
