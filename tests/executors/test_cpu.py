from __future__ import annotations

import platform
from pathlib import Path

import pytest

from headway.executors.cpu import cpu_flags, instruction_set

AVX512 = frozenset({"sse4_2", "avx2", "avx512f", "avx512bw"})


@pytest.mark.parametrize(
    ("precision", "flags", "expected"),
    [
        ("bf16", AVX512 | {"amx_bf16", "avx512_bf16"}, "amx_bf16"),
        ("bf16", AVX512 | {"avx512_bf16"}, "avx512_bf16"),
        ("bf16", AVX512, "avx512"),
        ("f32", AVX512 | {"amx_bf16", "avx512_bf16"}, "avx512"),
        ("f32", frozenset({"sse4_2", "avx2"}), "avx2"),
        ("f32", frozenset({"sse4_2"}), "sse4_2"),
        ("f32", frozenset({"asimd", "sve"}), "sve"),
        ("f32", frozenset(), platform.machine().lower()),
    ],
)
def test_the_strongest_set_that_the_precision_uses(precision: str, flags: frozenset[str], expected: str):
    assert instruction_set(precision, flags) == expected


def test_flags_of_x86_and_arm_and_of_systems_that_do_not_tell(tmp_path: Path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu AVX2 amx_bf16\n")
    assert cpu_flags(file) == {"fpu", "avx2", "amx_bf16"}
    file.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert cpu_flags(file) == {"fp", "asimd"}
    file.write_text("processor\t: 0\n")
    assert cpu_flags(file) == frozenset()
    assert cpu_flags(tmp_path / "absent") == frozenset()
