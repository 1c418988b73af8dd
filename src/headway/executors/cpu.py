"""What the CPU can do, from the names the operating system gives its features."""

from __future__ import annotations

import platform
from pathlib import Path

# Strongest first: the first whose every flag is present is the one matrix kernels use.
_X86_BF16 = (("amx_bf16", {"amx_bf16"}), ("avx512_bf16", {"avx512_bf16"}))
_X86 = (
    ("avx512", {"avx512f", "avx512bw"}),
    ("avx2", {"avx2"}),
    ("sse4_2", {"sse4_2"}),
)
_ARM = (("sve", {"sve"}), ("neon", {"asimd"}))


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature names of the first CPU, lower case; empty where the system does not tell (macOS, Windows)."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return frozenset(value.lower().split())
    return frozenset()


def instruction_set(precision: str, flags: frozenset[str]) -> str:
    """The instruction set that matrix work in `precision` ("bf16", "f32") runs on; the architecture where unknown."""
    known = (*_X86_BF16, *_X86, *_ARM) if precision == "bf16" else (*_X86, *_ARM)
    return next((name for name, needed in known if needed <= flags), platform.machine().lower())
