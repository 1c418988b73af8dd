"""What every test shares. A test that needs an extra server or a browser skips where it is absent; CI forbids that."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

NO_SKIPS = os.environ.get("HEADWAY_NO_SKIPS", "") not in {"", "0"}

# A check of a change must not depend on luck: CI tries the same examples each time. Everybody else's runs search on.
settings.register_profile("ci", derandomize=True)
if NO_SKIPS:
    settings.load_profile("ci")


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
