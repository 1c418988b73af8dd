"""Results of load tests: with and without their table, and what is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import ConfigError
from headway.doctor.bench import read_result
from headway.doctor.diagnose import diagnose
from headway.doctor.facts import Promise
from headway.doctor.inspect import read_test
from headway.doctor.merge import merged
from headway.doctor.step_model import new_prompt_tokens
from tests.doctor.making import facts, rising


def told(low: float, high: float) -> dict[str, Any]:
    half = {"value": (low + high) / 2, "low": None, "high": None}
    return {"samples": 100, "mean": (low + high) / 2, "std": 0.1, "min": low, "max": high, "percentiles": {"50": half}}


RESULT: dict[str, Any] = {
    "schema_version": 2,
    "target": {"url": "http://server"},
    "load": {"loop": "open", "profile": "rate", "description": "3 requests a second"},
    "slo": {"ttft_s": 0.4, "itl_s": None, "e2e_s": None},
    "summary": {
        "window_s": [0.0, 100.0],
        "overall": {"distributions": {"itl": told(0.01, 0.02), "ttft": told(0.5, 0.7), "e2e": told(0.5, 0.7)}},
    },
    "signals": {
        "times_s": [0.0, 1.0, 2.0],
        "series": {"running": [1, None, 3], "waiting": [0, 0, 0]},
        "source": "vllm",
    },
    "verdict": {"name": "VALID"},
}
HEAD = "fate,scheduled_s,ttft_s,ended_after_s,first_s,last_s,input_tokens,output_tokens,server_timing\n"


def saved(folder: Path, rows: str = "", **changes: Any) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps({**RESULT, **changes}))
    if rows:
        path.with_suffix(".csv").write_text(HEAD + rows)
    return path


def test_figures_alone(tmp_path: Path) -> None:
    made = read_result(saved(tmp_path))
    ttft = made.service.spread("ttft_s") or made.client.ttft_s
    assert ttft is not None
    assert ttft.quantile(0.5) == pytest.approx(0.6, abs=0.01)
    assert made.promise.ttft_s == 0.4
    assert made.service.mean("running") == 2
    assert any("run.csv" in line for line in made.missing)


def test_whose_server_it_is_is_told_by_its_signals_and_not_by_words_for_people(tmp_path: Path) -> None:
    made, live = read_result(saved(tmp_path)), facts()
    assert made.kind == "vllm"
    assert merged([live, made]).kind == merged([read_result(saved(tmp_path, signals=None)), live]).kind == "headway"
    counted = replace(live, service=replace(live.service, totals={**live.service.totals, "hit_tokens": rising(9e3)}))
    for source in ("headway", "load test of http://headway", "a headway"):
        own, others = (new_prompt_tokens(replace(counted, source=source, kind=kind)) for kind in ("headway", "vllm"))
        assert own == pytest.approx(30_000 / 198)  # hits are not counted among them
        assert others == pytest.approx((30_000 - 9_000) / 198)


@pytest.mark.parametrize(
    "slo", [None, [], {"ttft_s": -1, "itl_s": 0, "e2e_s": "soon"}, {"ttft_s": True, "itl_s": 10**400}]
)
def test_a_promise_that_is_none_is_the_usual_one(tmp_path: Path, slo: Any) -> None:
    assert read_result(saved(tmp_path, slo=slo)).promise == Promise()


def test_of_a_promise_what_is_given_counts() -> None:
    assert Promise.of(0.5, None) == Promise(ttft_s=0.5)  # `said` is of the streams
    own = Promise.of(None, 0.1, 9.0)
    assert own == Promise(itl_s=0.1, e2e_s=9.0, said=True)
    assert Promise.of(2.0, None, None, own) == Promise(2.0, 0.1, 9.0, said=True)


def test_requests_tell_the_network_from_the_server(tmp_path: Path) -> None:
    timing = '"network;dur=1.0, tokenise;dur=2.0, ttft;dur=80.0"'
    rows = "".join(f"ok,{at},0.45,2.0,{at}.4,{at}.9,100,50,{timing}\n" for at in range(40))
    made = read_result(saved(tmp_path, rows))
    finding = diagnose(made).findings[0]
    assert finding.cause == "network-delay"
    assert "370 ms" in finding.evidence[0]
    assert len(made.demand) == 40


def test_what_did_not_end_well_or_lies_outside_is_left_out(tmp_path: Path) -> None:
    rows = "ok,5.0,0.4,2.0,5.4,7.0,100,50,\nerror,6.0,,,,,,,\nok,500.0,9.0,9.0,509.0,509.0,1,1,\nok,,,,,,,,\n"
    assert len(read_result(saved(tmp_path, rows)).demand) == 1


def test_a_folder_will_do(tmp_path: Path) -> None:
    saved(tmp_path)
    assert read_result(tmp_path).promise.ttft_s == 0.4
    assert read_test(tmp_path).loop == "open"


def test_only_a_p99_that_was_told_counts(tmp_path: Path) -> None:
    def having(p99: Any) -> frozenset[str]:
        itl, ttft = told(0.01, 0.02), told(0.5, 0.7)
        itl["percentiles"] = {"99": p99}
        ttft["percentiles"] = {"99": {"value": 0.69, "low": None, "high": None}}
        summary = {"window_s": [0.0, 100.0], "overall": {"distributions": {"itl": itl, "ttft": ttft}}}
        return read_test(saved(tmp_path, summary=summary)).percentiles

    assert having({"value": 0.02, "low": None, "high": None}) == {"itl", "ttft"}
    assert having({"value": None, "low": None, "high": None}) == having(None) == {"ttft"}  # n too small


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"summary": 3}', '{"summary": {}}'])
def test_what_is_no_result(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    for reader in (read_result, read_test):
        with pytest.raises(ConfigError, match=r"run\.json"):
            reader(path)


def test_a_table_of_something_else(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.with_suffix(".csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="no table of"):
        read_result(path)


def test_sources_fill_one_anothers_gaps(tmp_path: Path) -> None:
    live, client = facts(), read_result(saved(tmp_path))
    both = merged([live, client])
    assert both.service.mean("running") == live.service.mean("running")
    assert both.client.ttft_s is not None
    assert both.service.spreads.keys() >= live.service.spreads.keys()
    assert "headway" in both.source
    assert "load test" in both.source
