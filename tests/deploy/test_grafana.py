"""The dashboard's JSON is one that Grafana takes, and its queries are Prometheus' and of names that are exported."""

from __future__ import annotations

import ast
import itertools
import json
import re
from pathlib import Path
from typing import Any

import yaml

import headway
from tests.deploy.exported import DEPLOY, asked, exported, labels_of, promtool

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "headway.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
COLUMNS = 24
SOURCE = Path(headway.__file__).parent


def test_it_is_a_dashboard():
    assert DASHBOARD["uid"]
    assert DASHBOARD["title"]
    assert DASHBOARD["schemaVersion"] >= 39
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        assert panel["title"]
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert refs
        assert len(set(refs)) == len(refs)
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__all"}
    assert used <= variables


def test_no_panel_lies_on_another():
    spots = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for one in spots:
        assert one["x"] >= 0
        assert one["x"] + one["w"] <= COLUMNS
    for one, other in itertools.combinations(spots, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or apart


def test_every_query_asks_for_what_is_exported():
    missing = {name for query in QUERIES for name in asked(query)} - exported()
    assert missing == set()


def test_a_request_is_counted_by_those_in_front_alone():
    """An engine behind a gateway exports the same names: of all instances at once a request would count twice."""
    engine_alone = _engine_alone()
    for query in QUERIES:
        for name, by in re.findall(r'(headway_\w+)\{job=~"\$job",instance=~"\$(\w+)"', query):
            assert by == ("engine" if name in engine_alone else "instance"), query
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    front = variables["instance"]
    # "All" is those that the query finds, so no `allValue` that takes in others.
    assert front["current"]["value"] == ["$__all"]
    assert "allValue" not in front
    assert re.fullmatch(r"query_result\((.*)\)", front["definition"])
    assert front["query"]["query"] == front["definition"]
    # As the recording rule has it.
    rules = yaml.safe_load((DEPLOY / "prometheus" / "headway.rules.yml").read_text())["groups"][0]["rules"]
    (rule,) = (one["expr"] for one in rules if one["record"] == "headway:front:info")
    assert front["definition"].replace('{job=~"$job"}', "") == f"query_result({rule[len('0 * (') : -len(') + 1')]})"
    found = re.search(front["regex"].strip("/"), 'headway_replicas{exported_instance="x",instance="a:1",job="j"} 2 17')
    assert found is not None
    assert found[1] == "a:1"


def _engine_alone() -> set[str]:
    """What a gateway never exports. Its own collectors name what it does; what an edge observes both have."""
    gateway = {
        node.value
        for path in (SOURCE / "gateway" / "fleet").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    exporter = next(
        node
        for node in ast.parse((SOURCE / "metrics" / "exporter.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "SnapshotCollector"
    )
    engine = {node.value for node in ast.walk(exporter) if isinstance(node, ast.Constant)}
    return {name for name in exported() if name in engine - gateway}


def test_every_label_that_is_grouped_by_is_there():
    known = labels_of()
    for query in QUERIES:
        grouped = {
            label.strip()
            for group in re.findall(r"\bby \(([^)]*)\)", query)
            for label in group.split(",")
            if label.strip() != "le"
        }
        matched = set(re.findall(r"[{,](\w+)(?:=~|!~|!=|=)", query)) - {"job", "instance"}
        labels = {label for name in asked(query) for label in known[name]}
        assert grouped | matched <= labels, query


def test_every_query_is_one_to_prometheus(tmp_path: Path):
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(QUERIES)
    ]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in promtool("check", "rules", "queries.yml", cwd=tmp_path)


def test_the_brief_s_table_is_drawn():
    drawn = {name for query in QUERIES for name in asked(query)}
    assert {
        "headway_requests_total",
        "headway_time_to_first_token_seconds_bucket",
        "headway_inter_token_latency_seconds_bucket",
        "headway_request_duration_seconds_bucket",
        "headway_request_input_tokens_bucket",
        "headway_request_output_tokens_bucket",
        "headway_sequences_running",
        "headway_requests_waiting",
        "headway_prefill_tokens_total",
        "headway_decode_tokens_total",
        "headway_kv_usage_ratio",
        "headway_memory_used_bytes",
        "headway_kv_reserved_bytes",
        "headway_preemptions_total",
        "headway_kv_evictions_total",
        "headway_requests_refused_total",
    } <= drawn
