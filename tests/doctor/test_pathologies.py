"""The doctor names what was done to a server. `benchmarks.doctor` does this with more seeds and is the figure."""

from __future__ import annotations

import pytest

from benchmarks.doctor import seen
from benchmarks.pathologies import CONTROLS, PATHOLOGIES, SCENARIOS, Scenario


def test_there_are_twelve_and_four() -> None:
    assert (len(PATHOLOGIES), len(CONTROLS)) == (12, 4)
    assert len({one.cause for one in PATHOLOGIES}) == 12


QUICK = ("oversized batch", "bursts", "over-long outputs", "light chat")


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.name in QUICK], ids=lambda one: one.name)
def test_the_first_finding_is_the_cause(scenario: Scenario) -> None:
    for one in seen(scenario, 11, "headway"):  # a seed that the figures do not use
        assert one.right, one


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["headway", "vllm"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_every_one_by_every_view(scenario: Scenario, dialect: str) -> None:
    for one in seen(scenario, 12, dialect):  # type: ignore[arg-type]
        assert one.right, one
