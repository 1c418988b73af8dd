"""Reading how much memory is available."""

from __future__ import annotations

from pathlib import Path

from headway.executors.memory import available_bytes


def test_what_the_system_tells(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:     20 kB\n")
    assert available_bytes(meminfo) == 20 * 1024


def test_where_it_does_not_tell(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "no") is None
    (tmp_path / "other").write_text("MemTotal: 100 kB\n")
    assert available_bytes(tmp_path / "other") is None
