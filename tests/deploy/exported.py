"""Which names there are to ask for, and which of them a query asks for."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headway.gateway.background.metrics import BACKGROUND_METRICS
from headway.gateway.fleet.metrics import FLEET_METRICS
from headway.metrics.names import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
_NAME = re.compile(r"\bheadway[_:][\w:]+")


def exported() -> set[str]:
    """As a query reads them."""
    names = set()
    for table in (METRICS, FLEET_METRICS, BACKGROUND_METRICS):
        for metric in table.values():
            ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
            names |= {metric.name + end for end in ends}
    return names


def labels_of() -> dict[str, tuple[str, ...]]:
    found = {}
    for table in (METRICS, FLEET_METRICS, BACKGROUND_METRICS):
        for metric in table.values():
            for end in ("", "_bucket", "_sum", "_count"):
                found[metric.name + end] = metric.labels
    return found


def asked(expression: str) -> set[str]:
    return set(_NAME.findall(re.sub(r'"[^"]*"', '""', expression)))


def promtool(*arguments: str, cwd: Path = DEPLOY / "prometheus") -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
