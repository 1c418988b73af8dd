"""What every test shares. A test that needs an extra server or a browser skips where it is absent; CI forbids that."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

NO_SKIPS = os.environ.get("HEADWAY_NO_SKIPS", "") not in {"", "0"}

# A check of a change must not depend on luck: CI tries the same examples each time. Everybody else's runs search on.
settings.register_profile("ci", derandomize=True)
if NO_SKIPS:
    settings.load_profile("ci")


_shortened: set[object] = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    """CI's examples are the same each time: a quarter of them has to tell it as much."""
    found = getattr(item, "obj", None)
    test: Any = getattr(found, "__func__", found)
    if not NO_SKIPS or not is_hypothesis_test(test) or test in _shortened:
        return
    _shortened.add(test)
    # Where Hypothesis's own pytest plugin reads them. State machines keep theirs elsewhere, and are left as they are.
    asked: settings | None = getattr(test, "_hypothesis_internal_use_settings", None)
    if asked is not None:
        test._hypothesis_internal_use_settings = settings(asked, max_examples=max(5, asked.max_examples // 4))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report: pytest.TestReport = yield
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped, which HEADWAY_NO_SKIPS forbids: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """A module that skips itself (`importorskip`) never reaches a test report."""
    report: pytest.CollectReport = yield
    if NO_SKIPS and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped, which HEADWAY_NO_SKIPS forbids: {reason}"
    return report
