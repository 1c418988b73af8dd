"""What a machine's host kept of its time, as Linux tells it."""

from __future__ import annotations

import os
from pathlib import Path

from headway.loadtest.runner.stolen import stolen_s


def test_the_steal_of_all_processors_is_a_share_of_the_machine_s_time(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    ticks, processors = os.sysconf("SC_CLK_TCK"), os.cpu_count() or 1
    stat.write_text(f"cpu  1 2 3 4 5 6 7 {30 * ticks * processors} 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert stolen_s(stat) == 30.0


def test_where_nothing_tells_of_it_nothing_is_known_to_be_stolen(tmp_path: Path) -> None:
    assert stolen_s(tmp_path / "none") == 0.0
    (tmp_path / "old").write_text("cpu  1 2 3 4\n")
    assert stolen_s(tmp_path / "old") == 0.0
    (tmp_path / "empty").write_text("")
    assert stolen_s(tmp_path / "empty") == 0.0
