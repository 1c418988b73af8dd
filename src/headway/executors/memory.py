"""How much memory this machine can still give."""

from __future__ import annotations

import re
from pathlib import Path


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What can be used without swapping; None where the system does not tell."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
