"""Compiles our kernels (`native/`) when headroom is installed: every level of machines like this one.

The libraries lie in the package, so an image or a wheel that is built on one processor serves on any other.
Nothing is compiled when the service starts. A library's name holds a digest of the source, the compiler's
flags and the C library's kind. They need glibc 2.16 or newer.

A compiler may use every instruction of the sets that its flags name, so a level needs all of them, not only
those that the source asks for: a hypervisor may hide any one (BMI2, say) of a processor that has the others.
"""

import concurrent.futures
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).with_name("native")
BUILT = Path(__file__).with_name("built")
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp"),
    *("-ffp-contract=off", "-fno-exceptions", "-fno-math-errno", "-Wno-psabi"),
)


class Level(NamedTuple):
    """A set of processor features that a library is compiled for.

    machine: the name that `platform.machine` gives it. flags: the compiler's.
    features: all that the flags allow, as `headroom.models.cores.cpu_flags` names them.
    """

    name: str
    machine: str
    flags: tuple[str, ...]
    features: tuple[str, ...]


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


def build_all(levels: tuple[Level, ...]) -> dict[str, BaseException | None]:
    """Compile the kernels for each level, unless that was done before.

    Returns the error of each level by name, as `build` raises it; None for a level that is there.
    """
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        builds = {level.name: pool.submit(build, level) for level in levels}
    return {name: done.exception() for name, done in builds.items()}


def build(level: Level) -> Path:
    """Compile the kernels for a level, unless that was done before. Returns the library's path.

    Raises RuntimeError with the compiler's message; OSError without a compiler or disk space.
    """
    library = BUILT / _name(level)
    if library.exists():
        return library
    compiler = [f"{level.machine}-linux-gnu-g++"]
    if level.machine == platform.machine():
        compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    BUILT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as scratch:
        made = Path(scratch) / library.name
        command = [*compiler, *FLAGS, *level.flags, "-o", str(made), str(SOURCES / "kernels.cpp")]
        try:
            done = subprocess.run(command, capture_output=True, errors="replace", check=False)
        except OSError as error:
            raise OSError(f"no C++ compiler: {error}") from None
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
        made.replace(library)  # atomic: other processes may be building or loading it
    for old in BUILT.glob(f"kernels-{level.name}-*"):
        if old != library:
            old.unlink(missing_ok=True)
    return library


def library_of(level: Level) -> Path:
    """Return the library that `build` compiled for a level, from this source and for this C library.

    Raises FileNotFoundError if there is none.
    """
    library = BUILT / _name(level)
    if not library.exists():
        raise FileNotFoundError("not compiled from this source for this C library")
    return library


def _name(level: Level) -> str:
    """Return the name of a level's library, which changes with all that it is made of except the compiler."""
    sources = [file.read_bytes() for file in sorted(SOURCES.iterdir()) if file.suffix in (".h", ".cpp")]
    recipe = [*FLAGS, *level.flags, platform.libc_ver()[0], level.machine]
    digest = hashlib.sha256(bytes(1).join([*sources, *map(str.encode, recipe)])).hexdigest()
    return f"kernels-{level.name}-{digest[:16]}.so"
