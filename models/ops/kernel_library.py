"""Compiles, loads and tries the library of our own kernels for x86-64 (`kernels.cpp`, `models.ops.kernels`).

The machine's C++ compiler compiles the source when it is first needed (`make install` does it, in about two
seconds). The library is kept in ~/.cache/headroom and compared with torch once per process. Without a
compiler, or on anything but Linux on x86-64, torch's operators give the same answers, slower
(docs/decisions/006-kernels.md).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from models.device import processor_features
from models.ops.kernels import DTYPES, SIZE_MULTIPLE, Kernels
from models.ops.torch import rotated, rotations, visibility_bias

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-Wno-psabi")

SECONDS_TO_COMPILE = 120


class Level(NamedTuple):
    """A set of processor features that a library is compiled for. flags: the compiler's."""

    name: str
    flags: tuple[str, ...]


LEVELS = (
    Level("amx", ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16")),
    Level("avx512_bf16", ("-march=x86-64-v4", "-mavx512bf16")),
    Level("avx512", ("-march=x86-64-v4",)),
    Level("avx2", ("-march=x86-64-v3",)),
)
"""From the best one down. A processor that has one also has those after it."""


def levels() -> tuple[Level, ...]:
    """Return the levels that this processor has, the best one first; none outside Linux on x86-64."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return ()
    features = processor_features()
    present = itertools.takewhile(lambda level: level.name in features, reversed(LEVELS))
    return tuple(present)[::-1]


def fitting(dtype: torch.dtype, size: int) -> Kernels | None:
    """Return this processor's kernels, if they compute heads (or rows) of `size` numbers of this dtype."""
    return best() if dtype in DTYPES and size % SIZE_MULTIPLE == 0 else None


@functools.cache
def best() -> Kernels | None:
    """Return the kernels of this processor's best level, compiled if needed; None if none works."""
    missing = []
    for level in levels():
        try:
            kernels = load(level)
        except (OSError, RuntimeError) as error:
            missing.append(f"{level.name}: {error}")
        else:
            break
    else:
        kernels = None
    if missing:
        instead = "torch computes" if kernels is None else f"those for {kernels.name} are used"
        logger.warning("kernels cannot be had, %s instead: %s", instead, "; ".join(missing))
    return kernels


def load(level: Level) -> Kernels:
    """Return the kernels of a level, compiled if needed and compared with torch.

    Raises OSError if there is no library, RuntimeError if it does not work.
    """
    kernels = Kernels(level.name, build(level))
    for dtype in DTYPES:
        check(kernels, dtype)
    return kernels


def build(level: Level) -> Path:
    """Compile the kernels for a level, unless that was done before. Returns the library's path.

    Raises RuntimeError with the compiler's message; OSError without a compiler or without disk space.
    """
    recipe = [*FLAGS, *level.flags]
    digest = hashlib.sha256("\0".join([*recipe, SOURCE.read_text()]).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headroom"
    library = cache / f"kernels-{level.name}-{digest}.so"
    if library.exists():
        return library
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / library.name
        command = [os.environ.get("CXX") or "g++", *recipe, "-o", str(made), str(SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_COMPILE)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{command[0]} took more than {SECONDS_TO_COMPILE} s") from None
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
        made.replace(library)  # atomic: other processes may be building or loading it
    return library


def check(kernels: Kernels, dtype: torch.dtype) -> None:
    """Raise RuntimeError unless attention and layer normalisation agree with torch's."""
    generator = torch.Generator().manual_seed(0)
    tokens, heads, size = 37, 3, 2 * SIZE_MULTIPLE
    projected = torch.randn(tokens, 3 * heads * size, generator=generator).to(dtype)
    offsets = torch.tensor([0, tokens], dtype=torch.int32)
    query, key, value = projected.view(tokens, 3, heads, size).permute(1, 2, 0, 3)
    expected = F.scaled_dot_product_attention(query, key, value).transpose(0, 1).reshape(tokens, -1)
    attended = kernels.attention(projected, offsets, heads)
    rotation = rotations(100.0, tokens, size, projected.device)
    query, key, value = rotated(projected.view(tokens, 3, heads, size), rotation).permute(1, 2, 0, 3)
    seen = visibility_bias(query, 5)
    near = F.scaled_dot_product_attention(query, key, value, seen).transpose(0, 1).reshape(tokens, -1)
    attended_near = kernels.attention(projected, offsets, heads, rotation=rotation, window=5)
    weight, bias = projected[:2, : heads * size].contiguous()
    normed = F.layer_norm(expected, weight.shape, weight, bias, 1e-12)
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    for ours, torchs in (
        (attended, expected),
        (attended_near, near),
        (kernels.layer_norm(expected, weight, bias, 1e-12), normed),
    ):
        if not torch.allclose(ours, torchs, rtol=tolerance, atol=tolerance):
            raise RuntimeError(f"results in {dtype} are not torch's")
