"""Rules and alerts: valid, tested with promtool, and of names that are exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.exported import DEPLOY, asked, exported, promtool

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


def test_rules_that_are_broken_would_be_found(tmp_path: Path):
    """The check itself can fail."""
    (tmp_path / "broken.yml").write_text("groups: [{name: a, rules: [{record: b, expr: 'sum('}]}]")
    with pytest.raises(AssertionError):
        promtool("check", "rules", "broken.yml", cwd=tmp_path)
