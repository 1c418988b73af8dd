"""Scrapes of several servers, with restarts, gaps, unknown names and broken lines: what they tell, and no more."""

from __future__ import annotations

import math

import pytest

from headway.doctor.recorder import Recorder
from headway.doctor.rules.case import study
from headway.doctor.scrape import Scrape, read_scrape
from headway.doctor.split import split

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


def test_what_is_usual_is_what_was_usual_lately() -> None:
    """Every second for long, then every ten: twenty seconds back is then out of order, no clock that was set back."""
    recorder = Recorder()
    times_s = [*map(float, range(200)), *(210.0 + 10.0 * number for number in range(64))]
    for at_s in (*times_s, times_s[-1] - 20.0):
        recorder.add(read_scrape(page()), at_s)
    assert (recorder.set_back, recorder.disordered) == (0, 1)
    assert recorder.times_s == times_s


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
    beside = {line.partition(":")[0]: line for line in missing}
    assert "vllm:sequences_in_batch" in beside["running"]
    assert "vllm:sequences_queued" in beside["waiting"]
    assert "unknown version" in beside["waiting"]


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


RENAMED = """vllm:num_requests_running 8
vllm:num_requests_waiting 0
vllm:request_ttft_seconds_bucket{le="+Inf"} 3
vllm:request_ttft_seconds_sum 3
vllm:request_ttft_seconds_count 3
vllm:request_ttft_seconds_created 9
vllm:kv_usage 0.3
vllm:preempted_total 3
vllm:lora_slots 4
"""


def test_new_names_are_told_beside_each_signal_that_is_missing() -> None:
    """Whatever else is known, and of histograms too; each but once."""
    missing = recorded(RENAMED, RENAMED).facts().missing
    beside = {line.partition(":")[0]: line for line in missing}
    told = {name: beside[name].count("vllm:") for name in ("ttft_s", "kv_ratio", "preemptions", "queue_s")}
    assert told == {"ttft_s": 1, "kv_ratio": 1, "preemptions": 1, "queue_s": 0}
    assert "vllm:request_ttft_seconds)" in beside["ttft_s"]
    assert "vllm:kv_usage)" in beside["kv_ratio"]
    assert "vllm:preempted_total)" in beside["preemptions"]
    assert "vllm:lora_slots" in missing[-1]  # like nothing that is missing, but who knows
    assert "vllm:kv_usage" not in missing[-1]


def test_nothing_strange_is_told_of_a_server_that_lacks_nothing_else() -> None:
    ours = "headway_sequences_running 1\nheadway_http_responses_total 3\nheadway_requests_waiting 0\n"
    assert not any("not known here" in line for line in recorded(ours, ours).facts().missing)


def test_what_a_tgi_counted_is_in_its_histogram() -> None:
    pages = [f"tgi_request_input_length_sum {n * 500}\ntgi_request_input_length_count {n}\n" for n in (1, 3)]
    assert recorded(*pages).facts().service.increase("prompt_tokens") == 1000


@pytest.mark.parametrize("failed", [range(0), range(31, 61), range(16, 61), range(5, 40)])
def test_rates_and_waits_are_of_the_time_that_was_seen(failed: range) -> None:
    """A thousand tokens and ten first tokens a second, and ten that wait: 1 s each, whichever scrapes failed."""
    pages = [
        "vllm:num_requests_running 8\nvllm:num_requests_waiting 10\n"
        f"vllm:generation_tokens_total {1000 * n}\nvllm:request_success_total {10 * n}\n"
        f'vllm:time_to_first_token_seconds_bucket{{le="2.5"}} {10 * n}\nvllm:time_to_first_token_seconds_sum {11 * n}\n'
        for n in range(61)
    ]
    facts = recorded(*(None if n in failed else page for n, page in enumerate(pages))).facts()
    assert facts.service.rate("generation_tokens") == pytest.approx(1000)
    assert split(facts).queue_s == pytest.approx(1.0)
    waited = study(facts).waited
    assert waited is not None
    assert waited.request_s == pytest.approx(10 * facts.service.window_s)
    assert facts.service.window_s == (60 if 60 not in failed else failed.start - 1)


def test_what_is_counted_only_later_is_of_the_time_since() -> None:
    """A histogram that is not there before its first sample."""
    first = 'vllm:time_to_first_token_seconds_bucket{{le="2.5"}} {0}\nvllm:time_to_first_token_seconds_sum {0}\n'
    pages = ["vllm:num_requests_waiting 10\n" + (first.format(10 * n) if n >= 30 else "") for n in range(61)]
    assert split(recorded(*pages).facts()).queue_s == pytest.approx(1.0)


def test_who_does_not_answer_at_the_end() -> None:
    facts = recorded(*[page()] * 12, *[None] * 8).facts()
    assert facts.unseen == "it has not answered for the last 8 s"
    assert not recorded(*[page()] * 12, None, *[page()] * 7).facts().unseen
    assert recorded(*([page()] * 2 + [None]) * 5, page()).facts().unseen.startswith("5 of 16 looks at it failed")


def scrapes(*rows: dict[str, bool | None]) -> Recorder:
    """By instance: did it answer? None: that is not told, and it did not."""
    recorder = Recorder()
    for at_s, row in enumerate(rows):
        scrape = Scrape(up={name: answered for name, answered in row.items() if answered is not None})
        for name, answered in row.items():
            if answered:
                scrape.put("vllm:num_requests_running", {"instance": name}, 1.0)
        recorder.add(scrape, float(at_s))
    return recorder


BOTH: dict[str, bool | None] = {"a": True, "b": True}


@pytest.mark.parametrize(
    ("then", "unseen"),
    [
        ([{"a": True, "b": False}] * 10, "b has not answered for the last 10 s"),
        ([{"a": False, "b": False}] * 10, "it has not answered for the last 10 s"),
        ([{"a": True, "b": False}] * 2 + [{"a": True}] * 20, ""),  # it was taken away
        ([{"a": True, "b": False}] * 2 + [{"a": True, "c": True}] * 20, ""),  # or replaced
        ([{"a": True, "b": True, "c": False}] * 9 + [{**BOTH, "c": True}], ""),  # c was not there yet
        ([{"a": True, "b": False}, BOTH] * 10, "10 of 30 looks at b failed: too little was seen"),
    ],
)
def test_which_of_several_does_not_answer(then: list[dict[str, bool | None]], unseen: str) -> None:
    assert scrapes(*[BOTH] * 10, *then).facts().unseen == unseen


def test_one_of_several_that_is_not_there_any_more_where_it_is_not_told_why() -> None:
    pages = {name: f'vllm:num_requests_running{{instance="{name}"}} 1\n' for name in "abc"}
    both, one = pages["a"] + pages["b"], pages["a"]
    assert recorded(*[both] * 10, *[one] * 5).facts().unseen == ""  # at moments of their own
    assert recorded(*[both] * 10, *[one] * 9).facts().unseen == "b has not answered for the last 9 s"
    assert recorded(*[both] * 10, *[one + pages["c"]] * 9).facts().unseen == ""


def test_one_rank_of_an_engine_tells_of_it() -> None:
    """SGLang with --enable-metrics-for-all-schedulers: 4 × 2 ranks of each of two engines, in whatever order."""
    lines = [
        f'sglang:num_queue_reqs{{dp_rank="{dp}",tp_rank="{tp}",pp_rank="{pp}"}} {40 + tp + pp}\n'
        f'sglang:num_retractions_total{{dp_rank="{dp}",tp_rank="{tp}",pp_rank="{pp}"}} {7 + tp}\n'
        for dp in (0, 1)
        for pp in (1, 0)
        for tp in (3, 1, 0, 2)
    ]
    whole = 'sglang:generation_tokens_total{model_name="m"} 100\n'
    for text in ("".join(lines), "".join(reversed(lines))):
        facts = recorded(text + whole, text + whole).facts()
        assert [part.mean("waiting") for part in facts.workers] == [40, 40]
        assert facts.service.mean("waiting") == 80
        assert facts.restarts == 0
    (shown,) = read_scrape('sglang:max_running_requests{tp_rank="0"} 32\nsglang:max_running_requests{tp_rank="1"} 32\n'
                           ).places.values()  # fmt: skip
    assert shown.gauges == {"max_num_seqs": 32}
