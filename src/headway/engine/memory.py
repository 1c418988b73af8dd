"""How much memory processes really use, from the operating system."""

from __future__ import annotations

from pathlib import Path


def resident_bytes(pid: int | str = "self") -> int | None:
    """The resident set of a process; None where the system does not tell (it is gone, or there is no /proc)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return None
