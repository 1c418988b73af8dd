"""CI forbids skips: a test that would skip fails there, and says why it wanted to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = """
import pytest

def test_passes():
    pass

@pytest.mark.skip(reason="marked")
def test_marked():
    pass

def test_decides():
    pytest.skip("decided")
"""


@pytest.mark.parametrize(
    ("forbidden", "expected"), [("0", "1 passed, 3 skipped"), ("1", "1 failed, 1 passed, 2 errors")]
)
def test_skips_are_failures_where_they_are_forbidden(tmp_path: Path, forbidden: str, expected: str) -> None:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(SKIPS)
    (tmp_path / "test_module.py").write_text('import pytest\npytest.importorskip("no_such_module", reason="absent")\n')
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            "-rs",
            str(tmp_path),
        ],
        env=os.environ | {"HEADWAY_NO_SKIPS": forbidden},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert expected in done.stdout.splitlines()[-1]
    assert (done.returncode == 0) is (forbidden == "0")
    if forbidden == "1":
        for reason in ("marked", "decided", "absent"):
            assert reason in done.stdout
