"""What every test shares. A test that needs an extra server or a browser skips where it is absent; CI forbids that."""

from __future__ import annotations

import os
from pathlib import Path
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


# Few tests, each waiting for processes, browsers or loads: at the end they would leave all workers but one idle.
BEGIN_WITH = (
    "cli/",
    "live/",
    "test_docs.py",
    "loadtest/",
    "gateway/",
    "executors/",
    "simulate/",
    "models/",
    "workers/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order of `BEGIN_WITH`, for workers that take them one by one."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(here).as_posix() if item.path.is_relative_to(here) else ""
        return next((at for at, begin in enumerate(BEGIN_WITH) if path.startswith(begin)), len(BEGIN_WITH))

    items.sort(key=place)


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
