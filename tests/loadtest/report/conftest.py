"""One made-up run for all tests of reports; they only read it."""

from __future__ import annotations

import pytest

from tests.loadtest.report.sample_run import Sample, sample


@pytest.fixture(scope="session")
def made() -> Sample:
    return sample()


@pytest.fixture(scope="session")
def ramped() -> Sample:
    return sample(profile="ramp", rate=30.0)
