"""Scrapes of several servers, with restarts, gaps, unknown names and broken lines: what they tell, and no more."""

from __future__ import annotations

import math

import pytest

from headway.doctor.scrape import Recorder, read_scrape

VLLM = """# HELP vllm:num_requests_running running
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 2.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.5
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1",model_name="m"}} {fast}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {all}
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} {sum}
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {all}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True"}} 1.0
"""


def page(running: float = 1, prompt: float = 0, fast: float = 0, every: float = 0, total: float = 0) -> str:
    return VLLM.format(running=running, prompt=prompt, fast=fast, all=every, sum=total)


def recorded(*pages: str | None) -> Recorder:
    recorder = Recorder()
    for at_s, text in enumerate(pages):
        recorder.add(None if text is None else read_scrape(text), float(at_s))
    return recorder


def test_what_vllm_tells() -> None:
    facts = recorded(page(), page(3, 500, 6, 10, 4.0)).facts()
    assert facts.source == "vllm"
    assert facts.service.mean("running") == 2
    assert facts.service.increase("prompt_tokens") == 500
    ttft = facts.service.spread("ttft_s")
    assert ttft is not None
    assert ttft.count == pytest.approx(10)
    assert ttft.share_above(0.1) == pytest.approx(0.4, abs=0.05)
    assert facts.settings.kv_tokens == 16_000
    assert facts.settings.prefix_cache is True


def test_only_the_window_counts() -> None:
    """What was counted before the first scrape is not part of it."""
    facts = recorded(page(1, 1e6, 1e5, 1e5, 9e5), page(1, 1e6 + 7, 1e5, 1e5, 9e5)).facts()
    assert facts.service.increase("prompt_tokens") == 7
    assert facts.service.spread("ttft_s") is None


def test_a_restart_is_not_mixed_in() -> None:
    facts = recorded(page(1, 900, 9, 9, 1.0), page(1, 1000, 10, 10, 1.1), page(1, 40, 3, 4, 2.0)).facts()
    assert facts.restarts == 1
    assert facts.service.increase("prompt_tokens") == 140
    ttft = facts.service.spread("ttft_s")
    assert ttft is not None
    assert ttft.count == pytest.approx(5)
    assert any("restart" in note for note in facts.notes)


def test_a_failed_scrape_is_a_gap() -> None:
    facts = recorded(page(2, 10), None, page(4, 30)).facts()
    assert math.isnan(facts.service.gauge("running")[1])
    assert facts.service.mean("running") == 3
    assert facts.service.increase("prompt_tokens") == 20
    assert any("1 of 3" in note for note in facts.notes)


def test_a_clock_that_goes_back_is_passed_over() -> None:
    recorder = Recorder()
    for at_s, prompt in ((0.0, 0.0), (10.0, 100.0), (5.0, 120.0), (20.0, 300.0)):
        recorder.add(read_scrape(page(1, prompt)), at_s)
    facts = recorder.facts()
    assert facts.service.times_s.tolist() == [0.0, 10.0, 20.0]
    assert facts.service.increase("prompt_tokens") == 300


def test_a_clock_that_was_set_back_goes_on() -> None:
    """By NTP, a minute: what came after is not thrown away, and no interval has two intervals' counts."""
    recorder = Recorder()
    for number in range(20):
        at_s = 100.0 + number - (60.0 if number >= 10 else 0.0)
        recorder.add(read_scrape(page(1, 50.0 * number)), at_s)
    facts = recorder.facts()
    assert len(facts.service.times_s) == 20
    assert facts.service.steps_of("prompt_tokens").tolist() == [50.0] * 19
    assert facts.service.rate("prompt_tokens") == pytest.approx(50.0)
    assert any("set back" in note for note in facts.notes)


@pytest.mark.parametrize(
    "names", [("num_preemptions_total", "num_preemptions"), ("num_preemptions", "num_preemptions_total")]
)
def test_a_counter_that_is_there_under_both_names_counts_once(names: tuple[str, str]) -> None:
    both = "".join(f'vllm:{name}{{engine="0",model_name="{model}"}} 5\n' for name in names for model in "ab")
    (shown,) = read_scrape(both).places.values()
    assert shown.totals == {"preemptions": 10}  # of two models


def test_a_gap_that_is_there_under_two_names_counts_once() -> None:
    names = ("inter_token_latency_seconds", "time_per_output_token_seconds")
    text = "".join(f'vllm:{name}_bucket{{le="0.1"}} 7\nvllm:{name}_sum 0.2\n' for name in names)
    (shown,) = read_scrape(text).places.values()
    assert shown.histograms == {"itl_s": {0.1: 7.0, None: 0.2}}


def test_vllm_s_names_at_a_headway_are_the_same_numbers_again() -> None:
    """They are no engine of its own, that queues while the workers have room."""
    ours = "headway_sequences_running 1\nheadway_requests_waiting 2\n" + "".join(
        f'headway_worker_running{{worker="{name}"}} {running}\nheadway_worker_waiting{{worker="{name}"}} 0\n'
        for name, running in (("a", 1), ("b", 0))
    )
    for text in (ours + page(), page() + ours):
        facts = recorded(text, text).facts()
        assert (facts.source, [part.name for part in facts.workers]) == ("headway", ["a", "b"])
        assert (facts.service.mean("running"), facts.service.mean("waiting")) == (1, 2)
        assert not facts.settings.kv_tokens  # nor are its blocks


@pytest.mark.parametrize("text", ["", "no metrics here", "<html>vllm:num_requests_running</html>", "other_metric 3"])
def test_a_page_without_known_names_has_no_kind(text: str) -> None:
    scrape = read_scrape(text)
    assert scrape.kind == ""
    assert not scrape.places


def test_lines_that_are_broken_are_passed_over() -> None:
    broken = 'vllm:num_requests_running{engine="0" 3\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc 0.25\n'
    (shown,) = read_scrape(broken).places.values()
    assert shown.gauges == {"kv_ratio": 0.25}


def test_an_unknown_version_says_what_is_missing() -> None:
    renamed = "vllm:sequences_in_batch 3\nvllm:sequences_queued 9\nvllm:prompt_tokens_total 5\n"
    missing = recorded(renamed, renamed).facts().missing
    assert any(line.startswith("running") for line in missing)
    assert any("vllm:sequences_queued" in line and "unknown version" in line for line in missing)


def test_engines_are_told_apart_and_add_up() -> None:
    text = "\n".join(
        f'headway_worker_running{{worker="{name}"}} {running}\nheadway_worker_kv_used_ratio{{worker="{name}"}} {kv}'
        for name, running, kv in (("a", 3, 0.9), ("b", 1, 0.2))
    )
    facts = recorded(text, text).facts()
    assert [part.name for part in facts.workers] == ["a", "b"]
    assert facts.service.mean("running") == 4
    assert facts.service.mean("kv_ratio") == 0.9  # the fullest counts


def test_the_size_of_blocks_is_seen_from_what_they_hold() -> None:
    text = "headway_kv_blocks 100\nheadway_kv_usage_ratio 0.5\nheadway_kv_resident_tokens 1530\n"
    assert recorded(text, text).facts().settings.kv_tokens == 3200


def test_what_is_set_aside_is_taken() -> None:
    text = "headway_kv_blocks 100\nheadway_kv_usage_ratio 0.5\nheadway_kv_set_aside_blocks 40\n"
    assert recorded(text, text).facts().service.mean("kv_ratio") == pytest.approx(0.9)
