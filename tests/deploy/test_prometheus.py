"""Rules and alerts: valid, tested with promtool, and of names that are exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.cli.explain import named
from headway.cli.explain.entries import KINDS, PROMETHEUS, entries
from tests.deploy.exported import DEPLOY, asked, exported, promtool
from tests.test_docs import generator

FOLDER = DEPLOY / "prometheus"
RULES = [
    rule
    for name in ("headway.rules.yml", "headway.alerts.yml")
    for group in yaml.safe_load((FOLDER / name).read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
ALERTS = [rule for rule in RULES if "alert" in rule]


def test_prometheus_takes_the_configuration_and_the_rules():
    promtool("check", "config", "prometheus.yml")


def test_the_rules_tests_pass():
    assert "SUCCESS" in promtool("test", "rules", "headway.test.yml")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or rule["alert"])
def test_a_rule_asks_for_what_is_exported(rule: dict[str, Any]):
    assert asked(rule["expr"]) <= exported() | RECORDED


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_it_is_and_where_to_look(alert: dict[str, Any]):
    assert alert["labels"]["severity"] in {"page", "ticket", "info"}
    assert set(alert["annotations"]) == {"summary", "look"}
    assert alert["for"]


def test_explain_knows_every_rule_as_it_is():
    """docs/generate.py reads them: `make docs` after a change."""
    assert [entry.name for entry in entries("alert")] == [rule["alert"] for rule in ALERTS]
    assert {entry.name for entry in entries("rule")} == RECORDED
    assert PROMETHEUS.read_text() == generator().prometheus()


def test_a_sum_in_the_guide_takes_those_in_front_alone():
    """Engines behind a gateway count its requests again; headway.test.yml holds that this keeps them out."""
    guide = (DEPLOY.parent / "docs" / "guide" / "monitoring.md").read_text()
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", guide, flags=re.DOTALL))
    sums = [span for span in spans if re.search(r"\bsum\b.*\(", span)]
    assert len(sums) == 2
    for query in sums:
        assert "and on (job, instance) headway:front:info" in query
        assert asked(query) <= exported() | RECORDED


def test_names_that_alerts_point_to_are_explained():
    every = [entry for kind in KINDS for entry in entries(kind)]
    for alert in ALERTS:
        for name in re.findall(r"`headway explain (\w+)`", alert["annotations"]["look"]):
            assert name in KINDS or named(name, every), name


def test_rules_that_are_broken_would_be_found(tmp_path: Path):
    """The check itself can fail."""
    (tmp_path / "broken.yml").write_text("groups: [{name: a, rules: [{record: b, expr: 'sum('}]}]")
    with pytest.raises(AssertionError):
        promtool("check", "rules", "broken.yml", cwd=tmp_path)
