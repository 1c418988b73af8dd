"""Profiles become loads: the same for a seed, of the length that was asked, and able to travel to client processes."""

from __future__ import annotations

import pickle
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.loadtest.bench.options import (
    PROFILES,
    Burst,
    Concurrency,
    LongContext,
    LongOutput,
    Mixed,
    Profile,
    Ramp,
    Rate,
    ServerOptions,
    TextOptions,
    Trace,
    WindowOptions,
    name_of,
)
from headway.loadtest.bench.profiles import MOST_S, Offered, Terms, extent, length_s, offer, percentile_of
from headway.loadtest.bench.template import keys_of_tenants
from headway.loadtest.bench.tester import check_tenants
from headway.loadtest.bench.texts import Texts
from headway.loadtest.errors import InvalidPlan
from headway.loadtest.runner.plan import ClosedLoad, OpenLoad, read
from headway.metrics.percentiles import samples_needed
from headway.workload.errors import WorkloadError
from headway.workload.item import Arrival, Item
from headway.workload.tokens import Calibration

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{second},{100 + second},{10}\n" for second in range(20))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    return str(path)


def offered(profile: Profile, window: WindowOptions = WindowOptions(duration=20.0), **text: Any) -> Offered:
    return offer(profile, Terms(window, TextOptions(**text), Calibration(), 4096))


def asked(found: Offered) -> list[Arrival]:
    """Everything an open loop sends; the first items of a closed one."""
    if isinstance(found.load, OpenLoad):
        return list(read(found.load.arrivals))
    return [Arrival(0, item) for item in islice(read(found.load.items), 200)]


ALL: list[Profile] = [
    Concurrency(),
    Rate(request_rate=20),
    Rate(request_rate=20, burstiness=0.2),
    Rate(request_rate=20, constant=True),
    Ramp(end_rate=20),
    Mixed(request_rate=20),
    Mixed(concurrency=3),
    LongContext(),
    LongOutput(),
    Burst(base_rate=10, burst_rate=40, period=8),
]


def test_a_run_too_short_for_a_burst_is_none() -> None:
    with pytest.raises(InvalidPlan, match="No burst falls into 16 s: the first begins after 27 s"):
        offered(Burst(), WindowOptions(duration=16.0))


def test_every_profile_is_tried() -> None:
    assert {name_of(profile) for profile in ALL} | {"trace"} == set(PROFILES)


@pytest.mark.parametrize("profile", ALL, ids=name_of)
def test_a_seed_is_a_load(profile: Profile) -> None:
    once = offered(profile, WindowOptions(duration=20.0, seed=5))
    again = offered(profile, WindowOptions(duration=20.0, seed=5))
    assert asked(once) == asked(again) != []
    drawn = not isinstance(profile, Concurrency) and not getattr(profile, "constant", False)
    if drawn:
        assert asked(once) != asked(offered(profile, WindowOptions(duration=20.0, seed=6)))
    assert once.described.profile == name_of(profile)
    assert once.described.loop == ("closed" if isinstance(once.load, ClosedLoad) else "open")
    assert (once.described.concurrency is None) == (once.described.loop == "open")


@pytest.mark.parametrize("profile", ALL, ids=name_of)
def test_a_load_can_be_sent_to_a_process(profile: Profile) -> None:
    found = offered(profile)
    travelled: OpenLoad | ClosedLoad = pickle.loads(pickle.dumps(found.load))
    assert asked(found) == asked(Offered(travelled, found.described, found.items))


@pytest.mark.parametrize("profile", ALL, ids=name_of)
def test_nothing_is_due_after_the_duration_or_beyond_the_number(profile: Profile) -> None:
    found = offered(profile, WindowOptions(duration=10.0, requests=15))
    if isinstance(found.load, ClosedLoad):
        assert (found.load.duration_s, found.load.requests) == (10.0, 15)
    else:
        due = asked(found)
        assert len(due) <= 15
        assert all(arrival.at_ns < 10e9 for arrival in due)


@given(
    st.none() | st.floats(0.1, 1e5), st.none() | st.integers(1, 10**6), st.none() | st.floats(0, 100),
    st.none() | st.floats(0, 100), st.none() | st.floats(0.01, 1e4), st.booleans(),
)  # fmt: skip
def test_what_counts_is_never_empty(  # noqa: PLR0917 - hypothesis gives them in order
    duration: float | None,
    requests: int | None,
    warmup: float | None,
    cooldown: float | None,
    rate: float | None,
    whole: bool,
) -> None:
    window = WindowOptions(duration=duration, requests=requests, warmup=warmup, cooldown=cooldown)
    try:
        lasts = extent(window, 60.0, rate=rate, whole=whole)
    except InvalidPlan as error:
        assert warmup is not None or cooldown is not None  # the defaults always leave something
        assert "--warmup" in str(error)
        return
    if lasts.duration_s is not None:
        ends_s = min(lasts.duration_s, lasts.requests / rate if lasts.requests and rate else lasts.duration_s)
        assert lasts.warmup_s + lasts.cooldown_s < ends_s
    assert lasts.duration_s is not None or lasts.requests is not None


def test_a_burst_knows_when_its_bursts_are() -> None:
    found = offered(Burst(base_rate=0, burst_rate=50, period=4.0, burst_share=0.25))
    assert len(found.bursts_s) == 5
    inside = [any(start <= arrival.at_ns / 1e9 < end for start, end in found.bursts_s) for arrival in asked(found)]
    assert all(inside)


def test_long_ones_fit_into_the_servers_context() -> None:
    for profile in (LongContext(), LongOutput()):
        [item] = {arrival.item for arrival in asked(offered(profile))}
        assert item.input_tokens + item.output_tokens <= 4096
        assert max(item.input_tokens, item.output_tokens) >= 1000


@pytest.mark.parametrize(
    ("output_len", "input_len"),
    [
        ("100", (4096 - 100) * 9 // 10),
        ("1000:3000", (4096 - 3000) * 9 // 10),
        ("normal:500,100", (4096 - 900) * 9 // 10),
        ("normal:500,100,1:600", (4096 - 600) * 9 // 10),
        ("lognormal:400,100,1:2000", None),
    ],
)
def test_long_prompts_leave_room_for_the_longest_answer(output_len: str, input_len: int | None) -> None:
    items = [arrival.item for arrival in asked(offered(LongContext(), output_len=output_len))]
    assert all(item.input_tokens + item.output_tokens <= 4096 for item in items)
    assert input_len is None or {item.input_tokens for item in items} == {input_len}
    assert items[0].input_tokens > 500


def test_long_prompts_that_have_no_room_are_refused() -> None:
    with pytest.raises(InvalidPlan, match=r"--output-len 10:5000 may be 5,000 tokens.*4,096 that the server takes"):
        offered(LongContext(), output_len="10:5000")
    assert asked(offered(LongContext(), input_len="7", output_len="10:5000"))[0].item.input_tokens == 7


def test_lengths_tenants_and_prefixes_are_as_asked() -> None:
    found = offered(
        Rate(request_rate=50), input_len="10:20", output_len="3", tenants="a=3,b=1", shared_prefix_tokens=8,
        shared_prefix_groups=2, shared_prefix_share=0.5,
    )  # fmt: skip
    items = [arrival.item for arrival in asked(found)]
    assert {item.output_tokens for item in items} == {3}
    assert min(item.input_tokens for item in items) >= 10
    assert max(item.input_tokens for item in items) <= 20
    assert {item.tenant for item in items} == {"a", "b"}
    assert {item.prefix_blocks for item in items} == {(), (0,), (1,)}


def test_a_trace_is_stretched_sliced_and_clipped(trace: str) -> None:
    found = offered(
        Trace(file=trace, time_scale=0.5, start=4.0, max_input_len=110), WindowOptions(duration=5.0), tenants="2"
    )
    due = asked(found)
    assert [arrival.at_ns for arrival in due] == [round(place * 0.5e9) for place in range(10)]
    assert [arrival.item.input_tokens for arrival in due] == [min(104 + place, 110) for place in range(10)]
    assert {arrival.item.tenant for arrival in due} <= {"tenant-1", "tenant-2"}
    assert "10 of 20 requests" in found.described.settings["trace"]
    assert "3 shortened" in found.described.settings["trace"]
    assert found.described.settings["time scale"] == "0.5"
    assert pickle.loads(pickle.dumps(found.load)).arrivals().__next__() == due[0]


@pytest.mark.parametrize(
    ("profile", "text", "named"),
    [
        (Ramp(start_rate=2, end_rate=1), {}, "--end-rate"),
        (Ramp(end_rate=5, steps=1), {}, "--steps"),
        (Rate(constant=True, burstiness=2), {}, "--burstiness"),
        (Burst(base_rate=5, burst_rate=2), {}, "burst_rate"),
        (Burst(base_rate=1, period=20), {}, "Use --period 34, or a higher --base-rate"),
        (Mixed(), {"input_len": "5"}, "--share"),
        (Mixed(share=("x",)), {}, "NAME=WEIGHT/INPUT/OUTPUT"),
        (Concurrency(), {"input_len": "many"}, "--input-len"),
        (Concurrency(), {"prompts": "poems"}, "--prompts"),
        (Concurrency(), {"prompts": "jsonl:"}, "--prompts"),
        (Concurrency(), {"prompts": "jsonl:none.jsonl", "input_len": "5"}, "--input-len"),
        (Concurrency(), {"prompts": "jsonl:none.jsonl", "unique_prefix": True}, "--unique-prefix"),
        (Concurrency(), {"prompts": "jsonl:none.jsonl"}, "none.jsonl"),
        (Concurrency(), {"shared_prefix_tokens": 5, "unique_prefix": True}, "--unique-prefix"),
        (Concurrency(), {"tenants": "a=x"}, "tenant"),
        (Trace(file="none.csv"), {}, "none.csv"),
        (Trace(file="none.csv"), {"input_len": "5"}, "--input-len"),
    ],
)
def test_what_makes_no_sense_is_named(profile: Profile, text: dict[str, Any], named: str) -> None:
    with pytest.raises((InvalidPlan, WorkloadError)) as caught:
        offered(profile, **text)
    assert named in str(caught.value)


def test_every_process_writes_the_same_prompt() -> None:
    texts = Texts(Calibration(), 3, "words", "chat")
    item = Item(20, 5)
    here = texts(item, 7)
    assert pickle.loads(pickle.dumps(texts))(item, 7) == here
    assert Texts(Calibration(), 4, "words", "chat")(item, 7) != here
    assert isinstance(Texts(Calibration(), 3, "words", "completions")(item, 7), str)


def test_a_picture_is_for_chat_only() -> None:
    item = Item(5, 5, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    assert Texts(Calibration(), 0, "given", "chat")(item, 0) == item.messages
    with pytest.raises(WorkloadError, match="chat"):
        Texts(Calibration(), 0, "given", "completions")(item, 0)


# -- how long, where nobody says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("profile", "percentile"),
    [
        (Rate(), None),
        (Rate(request_rate=0.5), None),
        (Rate(request_rate=20), 99.0),
        (Rate(request_rate=4, burstiness=0.5), None),
        (Rate(request_rate=3, constant=True), None),
        (Mixed(request_rate=3), 95.0),
    ],
)
def test_a_default_length_has_the_samples_its_percentile_needs(
    profile: Profile, percentile: float | None, seed: int
) -> None:
    found = offered(profile, WindowOptions(seed=seed, percentile=percentile))
    told = found.described
    assert told.duration_s is not None
    due_s = [arrival.at_ns / 1e9 for arrival in asked(found)]
    counted = sum(told.warmup_s <= at_s < told.duration_s - told.cooldown_s for at_s in due_s)
    assert counted >= samples_needed(found.percentile)
    assert f"p{found.percentile:g}" in told.settings["length"]


def test_the_default_is_over_in_about_two_minutes() -> None:
    duration_s = offered(Rate(), WindowOptions()).described.duration_s
    assert duration_s is not None
    assert 60 <= duration_s <= 140


@given(st.sampled_from((50.0, 90.0, 95.0, 99.0, 99.9)), st.floats(1e-6, 1e6), st.floats(1e-3, 1e6))
def test_a_default_length_has_bounds(percentile: float, rate: float, burstiness: float) -> None:
    assert 60 <= length_s(percentile, rate, burstiness) <= MOST_S


def test_a_closed_loop_lasts_until_it_has_enough() -> None:
    load = offered(Concurrency(concurrency=4), WindowOptions()).load
    assert isinstance(load, ClosedLoad)
    assert load.at_least > samples_needed(95)
    assert load.most_s is not None
    assert load.duration_s is not None
    assert load.most_s > load.duration_s
    for window in (WindowOptions(duration=5), WindowOptions(requests=5)):
        load = offered(Concurrency(), window).load
        assert isinstance(load, ClosedLoad)
        assert load.at_least == 0, "what was asked for is what is done"


def test_what_changes_all_along_is_not_asked_for_a_high_percentile() -> None:
    for profile in (Ramp(end_rate=9), Burst()):
        assert offered(profile, WindowOptions()).percentile == 50
        assert percentile_of(profile, WindowOptions(percentile=99)) == 99


# -- what of it counts -------------------------------------------------------------------------------------------------


def test_a_closed_loop_of_some_requests_leaves_out_its_first_tenth() -> None:
    assert offered(Concurrency(), WindowOptions(requests=200)).described.warmup_requests == 20
    assert offered(Concurrency(), WindowOptions(requests=200, warmup=0.0)).described.warmup_requests == 0
    assert offered(Concurrency(), WindowOptions(duration=20.0)).described.warmup_requests == 0
    assert offered(Rate(request_rate=20), WindowOptions(requests=200)).described.warmup_requests == 0


def test_which_loads_are_the_same_all_along(trace: str) -> None:
    for profile in [*ALL, Trace(file=trace)]:
        changes = isinstance(profile, Ramp | Burst | Trace)
        assert offered(profile, WindowOptions(duration=40.0)).described.stationary is not changes


# -- what contradicts itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ({"input_len": "512", "shared_prefix_tokens": 512}, "the longest has 512 tokens"),
        ({"input_len": "10:20", "shared_prefix_tokens": 100}, "leaves no prompt anything of its own"),
        ({"shared_prefix_share": 0.5}, "give --shared-prefix-tokens"),
        ({"shared_prefix_groups": 3}, "give --shared-prefix-tokens"),
        ({"shared_prefix_tokens": 10, "shared_prefix_share": 0.0}, "nothing is shared"),
        ({"shared_prefix_tokens": 10, "unique_prefix": True}, "exclude each other"),
    ],
)
def test_beginnings_that_cannot_be_shared_so(text: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidPlan) as caught:
        offered(Concurrency(), **text)
    assert named in str(caught.value)


def test_prompts_that_end_before_their_shared_beginning_are_counted() -> None:
    some = offered(Concurrency(), input_len="1:100", shared_prefix_tokens=50, shared_prefix_share=0.5)
    [share] = re.findall(r"([0-9.]+) of these end before it does", some.described.description)
    assert float(share) == pytest.approx(0.5, abs=0.1)
    assert "of these" not in offered(Concurrency(), input_len="60", shared_prefix_tokens=50).described.description


def test_a_load_knows_whose_its_requests_may_be(tmp_path: Path, trace: str) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a", "max_tokens": 1, "tenant": "x"}\n{"prompt": "b", "max_tokens": 1}\n')
    assert offered(Concurrency(), tenants="a=3,b").tenants == {"a", "b"}
    assert offered(Concurrency(), prompts=f"jsonl:{lines}", tenants="a").tenants == {"x", "", "a"}
    assert offered(Trace(file=trace), WindowOptions(), tenants="a").tenants == {"", "a"} - {""}
    assert offered(Concurrency()).tenants == frozenset()


def test_a_key_of_a_tenant_that_asks_for_nothing_is_refused() -> None:
    check_tenants({"a": "k"}, {"a", "b", ""})
    with pytest.raises(InvalidPlan, match=r"--tenant-key c: no request is of that tenant; there are a, b\."):
        check_tenants({"a": "k", "c": "k"}, {"b", "a", ""})
    with pytest.raises(InvalidPlan, match="give --tenants"):
        check_tenants({"a": "k"}, frozenset())
    with pytest.raises(InvalidPlan, match="twice"):
        keys_of_tenants(ServerOptions(tenant_key=("a=one", "b=two", "a=three")))
