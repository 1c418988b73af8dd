"""Common GPUs and CPUs: memory, bandwidth, dense rates. Prices are the user's.

`memory` is what a process sees, in GiB, which is less than the number on the box: from lines like «total_gpu_memory
(79.22GiB)» that engines print (marked `log`), else 98.5% of the nominal size, the usual share (marked `nominal`). Rates
are the makers' for dense matrices with 32-bit accumulation; where a sheet gives them «with sparsity», half. A CPU's
memory is the machine's, so it has to be given; its rate is cores × clock × operations per cycle, of which real code
reaches a third or less.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, replace

from headway.core.errors import ConfigError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. `rates` are FLOP/s by bits of the operands; `link_bytes_s` is to the others of a group, one way."""

    name: str
    kind: str  # "gpu" or "cpu"
    memory_bytes: int
    bandwidth_bytes_s: float
    rates: dict[int, float]
    link_bytes_s: float
    source: str

    def rate(self, bits: float) -> float:
        """FLOP/s for operands of so many bits: the narrowest it has that is at least as wide."""
        wide_enough = [have for have in self.rates if have >= bits]
        return self.rates[min(wide_enough)] if wide_enough else self.rates[max(self.rates)]


_NVLINK_A, _NVLINK_H, _NVLINK_B, _PCIE4, _PCIE5 = 300e9, 450e9, 900e9, 25e9, 50e9


def _gpu(
    name: str, memory_gib: float, bandwidth_gb_s: float, tflops16: float, *, tflops8: float = 0, tflops4: float = 0,
    link: float = _PCIE4, seen: str = "log", sheet: str = "datasheet",
) -> Hardware:  # fmt: skip
    rates = {16: tflops16 * 1e12}
    if tflops8:
        rates[8] = tflops8 * 1e12
    if tflops4:
        rates[4] = tflops4 * 1e12
    memory = memory_gib if seen == "log" else 0.985 * memory_gib
    origin = "as engines print it" if seen == "log" else "98.5% of the nominal size"
    source = f"memory: {origin}; rates: {sheet}"
    return Hardware(name, "gpu", int(memory * GIB), bandwidth_gb_s * 1e9, rates, link, source)


def _cpu(name: str, bandwidth_gb_s: float, cores: int, ghz: float, *, per_cycle16: int, sheet: str) -> Hardware:
    rate = cores * ghz * 1e9 * per_cycle16
    return Hardware(
        name, "cpu", 0, bandwidth_gb_s * 1e9, {16: rate}, math.inf, f"{sheet}; {per_cycle16} FLOP per cycle"
    )


HARDWARE: tuple[Hardware, ...] = (
    _gpu("B200", 178.35, 8000, 2250, tflops8=4500, tflops4=9000, link=_NVLINK_B, sheet="Blackwell datasheet"),
    _gpu(
        "B300",
        288,
        8000,
        2250,
        tflops8=4500,
        tflops4=13500,
        link=_NVLINK_B,
        seen="nominal",
        sheet="Blackwell Ultra sheet",
    ),
    _gpu("H200", 139.81, 4800, 989, tflops8=1979, link=_NVLINK_H, sheet="H200 datasheet"),
    _gpu("H100", 79.19, 3350, 989, tflops8=1979, link=_NVLINK_H, sheet="H100 SXM datasheet"),
    _gpu("H100-PCIe", 79.11, 2039, 756, tflops8=1513, link=_PCIE5, sheet="H100 PCIe datasheet"),
    _gpu("H100-NVL", 93.1, 3938, 835, tflops8=1671, link=_NVLINK_A, sheet="H100 NVL datasheet"),
    _gpu("H20", 95.01, 4000, 148, tflops8=296, link=_NVLINK_H, sheet="published H20 figures"),
    _gpu("GH200", 94.5, 4000, 989, tflops8=1979, link=_NVLINK_H, sheet="GH200 datasheet"),
    _gpu("A100-80GB", 79.25, 2039, 312, tflops8=624, link=_NVLINK_A, sheet="A100 datasheet (8 bits: integers)"),
    _gpu("A100-40GB", 39.39, 1555, 312, tflops8=624, link=_NVLINK_A, sheet="A100 datasheet (8 bits: integers)"),
    _gpu("A30", 24, 933, 165, tflops8=330, seen="nominal", sheet="A30 datasheet (8 bits: integers)"),
    _gpu("A10", 22.07, 600, 125, tflops8=250, sheet="A10 datasheet (8 bits: integers)"),
    _gpu("A10G", 22.07, 600, 70, tflops8=140, sheet="AWS G5 figures (8 bits: integers)"),
    _gpu("A40", 44.43, 696, 149.7, tflops8=299, sheet="A40 datasheet (8 bits: integers)"),
    _gpu("RTX-A6000", 47.53, 768, 154.8, tflops8=309.7, sheet="RTX A6000 datasheet (8 bits: integers)"),
    _gpu("RTX-A5000", 24, 768, 111.1, tflops8=222, seen="nominal", sheet="RTX A5000 datasheet (8 bits: integers)"),
    _gpu("L40S", 44.39, 864, 362, tflops8=733, sheet="L40S datasheet"),
    _gpu("L40", 44.39, 864, 181, tflops8=362, sheet="L40 datasheet"),
    _gpu("L20", 44.5, 864, 119.5, tflops8=239, sheet="published L20 figures"),
    _gpu("L4", 22.03, 300, 121, tflops8=242.5, sheet="L4 datasheet"),
    _gpu("T4", 14.56, 320, 65, tflops8=130, sheet="T4 datasheet (8 bits: integers)"),
    _gpu("V100-32GB", 31.73, 900, 125, link=150e9, sheet="V100 datasheet"),
    _gpu("V100-16GB", 15.77, 900, 125, link=150e9, sheet="V100 datasheet"),
    _gpu("RTX-6000-Ada", 47.5, 960, 364.2, tflops8=728.5, sheet="RTX 6000 Ada datasheet"),
    _gpu(
        "RTX-PRO-6000",
        94.97,
        1792,
        503.8,
        tflops8=1007,
        tflops4=2015,
        link=_PCIE5,
        sheet="RTX PRO 6000 Blackwell sheet",
    ),
    _gpu("RTX-5090", 31.36, 1792, 209.5, tflops8=419, tflops4=1676, link=_PCIE5, sheet="RTX Blackwell whitepaper"),
    _gpu(
        "RTX-5080",
        16,
        960,
        112.6,
        tflops8=225.1,
        tflops4=900,
        link=_PCIE5,
        seen="nominal",
        sheet="RTX Blackwell whitepaper",
    ),
    _gpu("RTX-5070-Ti", 15.92, 896, 87.9, tflops8=175.8, tflops4=703, link=_PCIE5, sheet="RTX Blackwell whitepaper"),
    _gpu(
        "RTX-5060-Ti-16GB", 15.55, 448, 47.4, tflops8=94.8, tflops4=379, link=_PCIE5, sheet="RTX Blackwell whitepaper"
    ),
    _gpu("RTX-4090", 23.5165, 1008, 165.2, tflops8=330.3, sheet="Ada whitepaper"),
    _gpu("RTX-4080", 16, 717, 97.5, tflops8=195, seen="nominal", sheet="Ada whitepaper"),
    _gpu("RTX-4070", 12, 504, 58.3, tflops8=116.6, seen="nominal", sheet="Ada whitepaper"),
    _gpu("RTX-4060-Ti-16GB", 16, 288, 44.1, tflops8=88.2, seen="nominal", sheet="Ada whitepaper"),
    _gpu("RTX-4060", 8.0, 272, 30.2, tflops8=60.5, sheet="Ada whitepaper"),
    _gpu("RTX-3090", 23.58, 936, 71, tflops8=284, sheet="Ampere GA102 whitepaper (8 bits: integers)"),
    _gpu("RTX-3090-Ti", 24, 1008, 80, tflops8=320, seen="nominal", sheet="Ampere GA102 whitepaper (8 bits: integers)"),
    _gpu("RTX-3080", 10, 760, 59.5, tflops8=238, seen="nominal", sheet="Ampere GA102 whitepaper (8 bits: integers)"),
    _gpu("RTX-3060", 12, 360, 25.6, tflops8=102, seen="nominal", sheet="Ampere GA102 whitepaper (8 bits: integers)"),
    _gpu("RTX-2080-Ti", 11, 616, 53.8, tflops8=215, seen="nominal", sheet="Turing whitepaper (8 bits: integers)"),
    _gpu("DGX-Spark", 121.63, 273, 125, tflops8=250, tflops4=500, sheet="DGX Spark sheet; memory shared with the CPU"),
    _gpu("MI300X", 191.98, 5300, 1307, tflops8=2615, link=_NVLINK_H, sheet="MI300X datasheet"),
    _gpu("MI325X", 256, 6000, 1307, tflops8=2615, link=_NVLINK_H, seen="nominal", sheet="MI325X datasheet"),
    _gpu("MI355X", 287.98, 8000, 2516, tflops8=5033, tflops4=10066, link=_NVLINK_H, sheet="MI355X datasheet"),
    _gpu("Gaudi-3", 128, 3700, 1835, tflops8=1835, link=_NVLINK_A, seen="nominal", sheet="Gaudi 3 whitepaper"),
    _gpu("Apple-M2-Ultra", 192, 800, 27.2, seen="nominal", sheet="published figures; memory shared with the CPU"),
    _gpu("Apple-M4-Max", 128, 546, 34, seen="nominal", sheet="published figures; memory shared with the CPU"),
    _cpu("Xeon-8480+", 307, 56, 2.0, per_cycle16=2048, sheet="Sapphire Rapids with AMX, 8 × DDR5-4800"),
    _cpu("Xeon-6980P", 614, 128, 2.0, per_cycle16=2048, sheet="Granite Rapids with AMX, 12 × DDR5-6400"),
    _cpu("Xeon-8380", 205, 40, 2.3, per_cycle16=64, sheet="Ice Lake with AVX-512 (32 bits), 8 × DDR4-3200"),
    _cpu("EPYC-9654", 461, 96, 2.4, per_cycle16=128, sheet="Zen 4 with AVX-512 bf16, 12 × DDR5-4800"),
    _cpu("EPYC-7763", 205, 64, 2.45, per_cycle16=32, sheet="Zen 3 with AVX2 (32 bits), 8 × DDR4-3200"),
    _cpu("Graviton4", 538, 96, 2.8, per_cycle16=128, sheet="Neoverse V2 with bf16, 12 × DDR5-5600"),
    _cpu("Ryzen-7950X", 83, 16, 4.5, per_cycle16=128, sheet="Zen 4 with AVX-512 bf16, 2 × DDR5-5200"),
    _cpu("Core-i9-14900K", 90, 24, 3.2, per_cycle16=32, sheet="AVX2 (32 bits), 2 × DDR5-5600"),
)


def hardware_named(name: str, *, memory_gib: float | None = None) -> Hardware:
    """A device by its name, however it is written: «RTX 4090», «NVIDIA GeForce RTX 4090», «rtx-4090».

    `memory_gib` replaces what the table says, and must be given for CPUs.

    Raises:
        ConfigError: no such device (with the nearest names), or a memory that cannot be true.
    """
    found = _find(name)
    if memory_gib is not None:
        if not (0 < memory_gib < 1 << 20):  # also refuses NaN
            raise ConfigError(f"--memory-gib is {memory_gib}, not a size above 0", param="memory_gib")
        return replace(found, memory_bytes=int(memory_gib * GIB), source=f"memory: as given; {found.source}")
    if not found.memory_bytes:
        raise ConfigError(
            f"{found.name} is a CPU, whose memory is the machine's: give --memory-gib", param="memory_gib"
        )
    return found


def _find(name: str) -> Hardware:
    wanted = _plain(name)
    by_name = {_plain(hardware.name): hardware for hardware in HARDWARE}
    if wanted in by_name:
        return by_name[wanted]
    starts = [hardware for plain, hardware in by_name.items() if wanted and _is_start(wanted, plain)]
    ends = [hardware for plain, hardware in by_name.items() if wanted and _is_start(wanted[::-1], plain[::-1])]
    if len(starts) == 1 or len(ends) == 1:
        return (starts if len(starts) == 1 else ends)[0]
    near = [by_name[plain].name for plain in difflib.get_close_matches(wanted, by_name, 4, 0.5)]
    near = [hardware.name for hardware in starts] or near
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(hardware.name for hardware in HARDWARE)}"
    raise ConfigError(f"no GPU or CPU {name!r} in the table; {hint}", param="gpu")


def _is_start(part: str, whole: str) -> bool:
    """Whether `whole` begins with `part`, and not in the middle of a number: «RTX 409» is no RTX 4090."""
    return whole.startswith(part) and not (part[-1].isdigit() and whole[len(part)].isdigit())


_NOISE = re.compile(r"nvidia|geforce|tesla|amd|instinct|intel|blackwell|sxm\d?|graphics|(?<!a)gpu|[^a-z0-9+]")


def _plain(name: str) -> str:
    return _NOISE.sub("", name.lower())
