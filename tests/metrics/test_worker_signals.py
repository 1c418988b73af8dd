"""What servers' pages say, and what is made of a row of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.metrics.worker_signals import RECENT_NS, Meter, Sample, Total, read_load, read_metrics

S = 1_000_000_000


def test_vllm():
    sample = read_metrics(
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:num_requests_waiting{engine="0"} 1.0 1700000000000\n'
        "vllm:num_requests_waiting_other 50\n"
        'vllm:gpu_cache_usage_perc{engine="0"} 0.1\nvllm:gpu_cache_usage_perc{engine="1"} 0.7\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="20"} 1\n'
        'vllm:iteration_tokens_total_bucket{le="8.0"} 5\nvllm:iteration_tokens_total_sum 100\n'
        "vllm:iteration_tokens_total_count 10\n"
    )
    assert sample is not None
    assert sample.source == "vllm"
    assert sample.values == {"running": 7, "waiting": 1, "kv_used_ratio": 0.7, "kv_capacity_tokens": 480}
    assert sample.totals == {"batch_tokens": Total(100, 10)}
    assert sample.flags["block_size"] == "16"


@pytest.mark.parametrize(
    ("text", "source", "values"),
    [
        ("sglang:num_running_reqs 2\nsglang:num_queue_reqs 3\nsglang:token_usage 0.5", "sglang", (2, 3, 0.5)),
        ("llamacpp:requests_processing 2\nllamacpp:requests_deferred 3", "llamacpp", (2, 3, None)),
        ("tgi_batch_current_size 2\ntgi_queue_size 3", "tgi", (2, 3, None)),
        (
            "headway_sequences_running 2\nheadway_requests_waiting 3\nheadway_kv_usage_ratio 0.5",
            "headway",
            (2, 3, 0.5),
        ),
    ],
)
def test_the_other_kinds(text, source, values):
    sample = read_metrics(text)
    assert sample is not None
    assert sample.source == source
    assert tuple(sample.values.get(name) for name in ("running", "waiting", "kv_used_ratio")) == values


@given(st.text(max_size=200))
def test_any_text_is_read_or_is_nothing(text):
    sample = read_metrics(text + "\nvllm:num_requests_running" + text)
    assert sample is None or sample.values or sample.totals


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "vllm:num_requests_running",
        "vllm:num_requests_running NaN",
        "vllm:num_requests_running +Inf",
        'vllm:num_requests_running{engine="0" 3',
        'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1',
    ],
)
def test_what_is_not_known_is_not_zero(text):
    assert read_metrics(text) is None


def test_pages_of_json() -> None:
    loads = {"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2, "token_usage": 0.5, "max_total_num_tokens": 9}]}
    sample = read_load(loads)
    assert sample is not None
    assert sample.values == {"running": 1, "waiting": 2, "kv_used_ratio": 0.5, "kv_capacity_tokens": 9}
    slots = read_load([{"is_processing": True}, {"is_processing": False}, {"is_processing": True}])
    assert slots is not None
    assert slots.values == {"running": 2}
    ours = read_load({"step_tokens": 0, "running": 4, "kv_blocks_used": 1, "kv_blocks_total": 4, "steps_total": 7})
    assert ours is not None
    assert ours.values == {"running": 4, "kv_used_ratio": 0.25, "steps_total": 7}
    nothing: list[object] = [None, 1, [], {}, {"loads": []}, [1], {"loads": [3]}]
    for body in nothing:
        assert read_load(body) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.just(10**400) | st.text(max_size=5),
        lambda s: st.lists(s, max_size=3),
    )
)
def test_no_json_breaks_it(body):
    read_load(body)
    read_load({"loads": body})
    read_load({"step_tokens": body, "running": body, "kv_blocks_total": body, "kv_blocks_used": body})


def test_memory_of_a_gpu():
    sample = read_metrics('DCGM_FI_DEV_FB_FREE{gpu="0"} 30\nDCGM_FI_DEV_FB_USED{gpu="0"} 10')
    assert sample is not None
    assert Meter().feed(sample, 0) == {"memory_headroom_ratio": 0.75}


# -- over time ---------------------------------------------------------------------------------------------------------


def told(total: float, count: float, **values: float) -> Sample:
    return Sample("vllm", values, {}, {"ttft_s": Total(total, count)})


def test_a_mean_is_of_what_was_counted_between():
    meter = Meter()
    assert meter.feed(told(100, 10), 0) == {}, "since the start is not recent"
    assert meter.feed(told(103, 12), S) == {"ttft_s": 1.5}
    assert meter.feed(told(103, 12), 2 * S) == {}, "nothing new: what is known ages"
    assert meter.feed(told(203, 13), 20 * S) == {"ttft_s": 100.0}, "only what is recent"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(1, 3 * S)), min_size=1, max_size=30))
def test_a_mean_lies_between_its_parts(rows):
    """Each row adds `count` things of `size`: no mean is outside of the sizes of the rows that are recent."""
    meter, total, count, at_ns = Meter(), 0.0, 0, 0
    sizes: list[tuple[int, float]] = []
    meter.feed(told(0, 0), 0)
    for size, more, gap_ns in rows:
        at_ns += gap_ns
        total, count = total + size * more, count + more
        if more:
            sizes.append((at_ns, size))
        signals = meter.feed(told(total, count), at_ns)
        assert ("ttft_s" in signals) == bool(more)
        if more:
            # The row that began the window may be older than the window.
            recent = [size for when, size in sizes if when > at_ns - RECENT_NS - 3 * S]
            assert min(recent) - 1e-9 <= signals["ttft_s"] <= max(recent) + 1e-9


@pytest.mark.parametrize("after", [told(1, 1), Sample("vllm", {"generation_tokens_total": 1})])
def test_a_server_that_starts_again_counts_anew(after):
    meter = Meter()
    meter.feed(told(100, 10, generation_tokens_total=50), 0)
    meter.feed(told(200, 20, generation_tokens_total=60), S)
    assert "ttft_s" not in meter.feed(after, 2 * S)
    assert meter.restarts == 1
    assert meter.feed(told(3, 2, generation_tokens_total=2), 3 * S).get("ttft_s", 2.0) == 2.0


def test_batch_tokens_of_headway_are_tokens_over_steps():
    meter = Meter()
    values = {"prompt_tokens_total": 100.0, "generation_tokens_total": 10.0, "steps_total": 5.0}
    meter.feed(Sample("headway", values), 0)
    later = {"prompt_tokens_total": 300.0, "generation_tokens_total": 50.0, "steps_total": 9.0}
    assert meter.feed(Sample("headway", later), S)["batch_tokens"] == 60.0


def test_a_ratio_stays_one():
    assert Meter().feed(Sample("x", {"kv_used_ratio": 1.2}), 0) == {"kv_used_ratio": 1.0}
    assert json.dumps(Meter().feed(Sample("x", {}), 0)) == "{}"
