"""What the host of a virtual machine kept of its processors' time: nothing here could run then, a load tester neither.

Linux tells it (proc(5), /proc/stat: steal). Where there is no such file, or no host, nothing is known to be stolen.
"""

from __future__ import annotations

import os
from pathlib import Path

_STAT = Path("/proc/stat")
_STEAL = 8  # its place in the first line: cpu user nice system idle iowait irq softirq steal


def stolen_s(stat: Path = _STAT) -> float:
    """Since this machine's start, in seconds of its whole: of four processors each second of one is a quarter."""
    try:
        told = stat.read_text().splitlines()[0].split()
        return int(told[_STEAL]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return 0.0
