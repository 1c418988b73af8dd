"""One table of servers' names, and all who read servers by it."""

from __future__ import annotations

import pytest

from headway.cli.top.frame import frame_of
from headway.cli.top.page import BY_LABEL, page_of
from headway.doctor.scrape import read_scrape
from headway.gateway.fleet.metrics import FLEET_METRICS
from headway.metrics.names import METRICS
from headway.metrics.server_names import GAUGES, HISTOGRAMS, TOTALS, kind_of, of_one_rank
from headway.metrics.worker_signals import read_metrics

NAMES = [name for table in (GAUGES, TOTALS, HISTOGRAMS) for names in table.values() for name in names]


def test_every_name_of_ours_is_one_that_we_export():
    exported = {*METRICS, *FLEET_METRICS}
    ours = {name for name in (*NAMES, *BY_LABEL) if name.startswith("headway_")}
    assert {name for name in ours if name not in exported and f"{name}_total" not in exported} == set()


@pytest.mark.parametrize("table", [GAUGES, TOTALS, HISTOGRAMS])
def test_a_name_means_one_thing_and_is_somebody_s(table):
    names = [name for told in table.values() for name in told]
    assert len(names) == len(set(names))
    assert all(kind_of(name) for name in names)


@pytest.mark.parametrize("name", ["vllm:gpu_prefix_cache_%s_total", "vllm:prefix_cache_%s_total"])
def test_versions_of_a_server_are_told_alike_to_all(name):
    queries, hits = name % "queries", name % "hits"
    pages = [page_of(f"{queries} {100 * at}\n{hits} {60 * at}\n", float(at)) for at in (1, 2)]
    assert frame_of(*pages).rates == {
        **dict.fromkeys(("prompt_tokens", "generation_tokens", "preemptions", "ended")),
        "lookup_tokens": 100,
        "hit_tokens": 60,
    }
    assert read_scrape(f"{queries} 100\n{hits} 60\n").at().totals == {"lookup_tokens": 100, "hit_tokens": 60}


def test_what_sglang_preempted_is_told():
    text = "sglang:num_running_reqs 2\nsglang:num_retracted_reqs 3\n"
    page = page_of(text, 0.0)
    assert frame_of(page, page).now["preempted"] == 3
    assert read_scrape(text).at().gauges == {"running": 2, "preempted": 3}


def test_one_thing_under_two_names_counts_once():
    sample = read_metrics("vllm:num_preemptions_total 4\nvllm:num_preemptions 4\nvllm:num_requests_running 1\n")
    assert sample is not None
    assert sample.values == {"preemptions_total": 4, "running": 1}
    slow = "sglang:time_per_output_token_seconds_{} 9\n"
    right = "sglang:inter_token_latency_seconds_{} 2\n"
    sample = read_metrics("".join(one.format(part) for one in (slow, right) for part in ("sum", "count")))
    assert sample is not None
    assert sample.totals["itl_s"].sum == 2, "the first of its names, wherever it stands"


def test_a_gateway_is_not_its_workers_once_more():
    worker = 'headway_worker_running{worker="a"} 2\nheadway_worker_kv_used_ratio{worker="a"} 1\n'
    sample = read_metrics(f"headway_sequences_running 2\n{worker}")
    assert sample is not None
    assert (sample.source, sample.values) == ("headway", {"running": 2})


def test_of_a_page_only_what_is_shown_is_kept():
    page = page_of(
        'headway_http_responses_total{route="/"} 1\nheadway_model_running{model="m"} 2\nheadway_replicas 3\n', 0
    )
    assert page.series == {"headway_replicas": {(): 3}}


@pytest.mark.parametrize("ranks", [("0", "1", "2", "3"), ("10", "9")])
def test_of_several_ranks_of_an_engine_the_lowest_tells(ranks):
    """SGLang with --enable-metrics-for-all-schedulers. Engines beside one another add up all the same."""
    text = "".join(
        f'sglang:num_queue_reqs{{dp_rank="{dp}",pp_rank="0",tp_rank="{tp}"}} {40 + int(tp)}\n'
        for dp in "01"
        for tp in reversed(ranks)
    )
    waiting = 2 * (40 + min(map(int, ranks)))
    sample = read_metrics(text)
    assert sample is not None
    assert sample.values == {"waiting": waiting}
    page = page_of(text, 0.0)
    assert frame_of(page, page).now["waiting"] == waiting


def test_a_rank_that_is_no_number_is_the_first():
    told = [("a", {"tp_rank": rank}, rank) for rank in ("9" * 5000, "x", "1")]
    assert [rank for _, _, rank in of_one_rank(told)] == ["9" * 5000, "x"]
