"""The levels that our kernels are compiled for, and which of them this processor has.

A compiler may use every instruction of the sets that its flags name, so a level needs all of them, not only
those that the source asks for: a hypervisor may hide any one (BMI2, say) of a processor that has the others.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import NamedTuple

from models.device import may_use_avx512

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux lists the features that the processor has and the kernel has switched on."""


class Level(NamedTuple):
    """A set of processor features that a library is compiled for.

    machine: as `platform.machine` names it. flags: the compiler's.
    features: all that the flags allow, as CPUINFO names them.
    """

    name: str
    machine: str
    flags: tuple[str, ...]
    features: tuple[str, ...]

    def lacking(self, features: frozenset[str]) -> list[str]:
        """Return the level's features that are not among `features`."""
        return [feature for feature in self.features if feature not in features]


_AVX2 = (
    *("avx2", "avx", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe", "xsave"),  # x86-64-v3; abm is LZCNT
    *("cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"),  # x86-64-v2; pni is SSE3
)
_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", *_AVX2)  # x86-64-v4
_AVX512_BF16 = ("avx512_bf16", *_AVX512)

LEVELS = (
    Level(
        "amx",
        "x86_64",
        ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        ("amx_tile", "amx_bf16", "amx_int8", *_AVX512_BF16),
    ),
    Level("avx512_bf16", "x86_64", ("-march=x86-64-v4", "-mavx512bf16"), _AVX512_BF16),
    Level("avx512", "x86_64", ("-march=x86-64-v4",), _AVX512),
    Level("avx2", "x86_64", ("-march=x86-64-v3",), _AVX2),
    Level("neon", "aarch64", ("-march=armv8.2-a",), ("fp", "asimd", "asimdrdm", "crc32", "atomics")),
)
"""From the best one down, for each machine."""


def levels_of_machine() -> tuple[Level, ...]:
    """Return the levels of machines like this one, the best one first; none outside Linux."""
    if sys.platform != "linux":
        return ()
    return tuple(level for level in LEVELS if level.machine == platform.machine())


def features_here() -> frozenset[str]:
    """Return the features that CPUINFO lists for every core; none if it cannot be read.

    ATEN_CPU_CAPABILITY=avx2 hides AVX-512 and AMX, as it does from torch's own kernels.
    """
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    cores = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    features = frozenset(cores[0]).intersection(*cores) if cores else frozenset()
    hidden = () if may_use_avx512() else ("avx512", "amx")
    return frozenset(feature for feature in features if not feature.startswith(hidden))
