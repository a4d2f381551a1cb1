"""Our own kernels for x86-64: attention over packs, layer normalisation, 8-bit steps (`kernels.cpp`).

torch has none in a form that suits short sequences and narrow rows: attention needs copies into padded
batches there, and a dozen operators for them. The source is compiled with the machine's C++ compiler when it
is first needed (`make install` does it, in some two seconds), kept in ~/.cache/headroom, tried against torch,
and called through ctypes, which lets go of the interpreter's lock. Where there is no compiler, and elsewhere
than on Linux on x86-64, torch's operators give the same answers, slower (docs/decisions/006-kernels.md).
"""

from __future__ import annotations

import ctypes
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
from torch import Tensor

from models.device import processor_features

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-Wno-psabi")

DTYPES = (torch.float32, torch.bfloat16)

SIZE_MULTIPLE = 16
"""Heads of a multiple of this many numbers, and rows as wide, are computed here."""

SECONDS_TO_COMPILE = 120


class Level(NamedTuple):
    """A set of processor features that a library is compiled for. flags: of the compiler."""

    name: str
    flags: tuple[str, ...]


LEVELS = (
    Level("amx", ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16")),
    Level("avx512_bf16", ("-march=x86-64-v4", "-mavx512bf16")),
    Level("avx512", ("-march=x86-64-v4",)),
    Level("avx2", ("-march=x86-64-v3",)),
)
"""By the processor's features, from the best one down; each needs those after it."""


def levels() -> tuple[Level, ...]:
    """The levels that this processor has, the best one first; none elsewhere than on Linux on x86-64."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return ()
    features = processor_features()
    held = itertools.takewhile(lambda level: level.name in features, reversed(LEVELS))
    return tuple(held)[::-1]


class Kernels:
    """The kernels of a compiled library. Threads may share it.

    name: of the level that it was compiled for.
    """

    def __init__(self, name: str, library: Path) -> None:
        """Raises OSError where the library cannot be loaded, RuntimeError where it does not work."""
        self.name = name
        loaded = ctypes.CDLL(str(library))
        pointer, number, flag = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        self._attend, self._normalise, self._quantize = {}, {}, {}
        for dtype in DTYPES:
            suffix = str(dtype).removeprefix("torch.")
            attend = getattr(loaded, f"headroom_attend_{suffix}")
            attend.argtypes = [pointer, number, pointer, number, number, number]
            attend.argtypes += [pointer, number, flag, pointer, flag]
            attend.restype = None
            normalise, quantize = (
                getattr(loaded, f"headroom_{name}_{suffix}") for name in ("normalise", "quantize")
            )
            of_rows = [pointer, number, number, pointer, pointer, ctypes.c_float, pointer]
            normalise.argtypes, normalise.restype = [*of_rows, flag], None
            quantize.argtypes, quantize.restype = [*of_rows, pointer, flag], number
            self._attend[dtype], self._normalise[dtype], self._quantize[dtype] = attend, normalise, quantize
        if loaded.headroom_prepare():
            raise RuntimeError("the operating system does not let this process use the processor's tiles")
        for dtype in DTYPES:
            self._try(dtype)

    def attention(
        self,
        projected: Tensor,
        offsets: Tensor,
        heads: int,
        head_weights: Tensor | None = None,
        *,
        first_only: bool = False,
    ) -> Tensor:
        """Self-attention of each sequence and head of a pack: softmax(q kᵀ/√d)·v, times the head's weight.

        projected: (T, 3·h·d) float32 or bfloat16, queries, keys and values of h heads; offsets:
            (B + 1,) int32, contiguous, where sequences begin and end; head_weights: (B, h), or (1, h) for all
            sequences; fewer rows where the last sequences are empty.
        first_only: of each sequence's first token alone.
        Returns (T, h·d), or (B, h·d), of projected's dtype; 0 for tokens of no sequence and empty sequences.
        Every sequence's result is the same bits in any pack, and on any number of torch's threads.
        """
        projected = projected.contiguous()
        tokens, width = projected.shape[0], projected.shape[1] // 3
        sequences = len(offsets) - 1
        out = projected.new_empty(sequences if first_only else tokens, width)
        weights = None if head_weights is None else head_weights.float().contiguous()
        self._attend[projected.dtype](
            projected.data_ptr(),
            tokens,
            offsets.data_ptr(),
            sequences,
            heads,
            width // heads,
            None if weights is None else weights.data_ptr(),
            0 if weights is None or len(weights) == 1 else heads,
            first_only,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """(x − mean) / √(variance + eps) · weight + bias of each row, in float32.

        x: (T, D) float32 or bfloat16; weight, bias: (D,) of x's dtype. Returns a (T, D) like x.
        """
        x = x.contiguous()
        out = torch.empty_like(x)
        parameters = (weight.data_ptr(), bias.data_ptr(), eps)
        self._normalise[x.dtype](x.data_ptr(), *x.shape, *parameters, out.data_ptr(), torch.get_num_threads())
        return out

    def quantize(
        self, x: Tensor, multiplier: Tensor | None, shift: Tensor | None, middle: float
    ) -> tuple[Tensor, Tensor | None]:
        """x·multiplier + shift, or x + middle without them, cut to 0 … 255 and to an integer.

        x: (T, D) float32 or bfloat16; multiplier, shift: (D,) float32, both or neither.
        Returns (T, D) uint8, and which rows hold NaN or an infinity, (T,) bool; None where none does.
        """
        out = torch.empty(x.shape, dtype=torch.uint8)
        broken = torch.empty(x.shape[0], dtype=torch.bool)
        x = x.contiguous()
        factors = [None if factor is None else factor.data_ptr() for factor in (multiplier, shift)]
        count = self._quantize[x.dtype](
            *(x.data_ptr(), *x.shape, *factors, middle, out.data_ptr()),
            *(broken.data_ptr(), torch.get_num_threads()),
        )
        return out, broken if count else None

    def _try(self, dtype: torch.dtype) -> None:
        """Raises RuntimeError where the results are not torch's."""
        generator = torch.Generator().manual_seed(0)
        tokens, heads, size = 37, 3, 2 * SIZE_MULTIPLE
        projected = torch.randn(tokens, 3 * heads * size, generator=generator).to(dtype)
        query, key, value = projected.view(tokens, 3, heads, size).permute(1, 2, 0, 3)
        expected = F.scaled_dot_product_attention(query, key, value).transpose(0, 1).reshape(tokens, -1)
        attended = self.attention(projected, torch.tensor([0, tokens], dtype=torch.int32), heads)
        weight, bias = projected[:2, : heads * size].contiguous()
        normed = F.layer_norm(expected, weight.shape, weight, bias, 1e-12)
        tolerance = 1e-5 if dtype == torch.float32 else 5e-2
        for ours, torchs in (
            (attended, expected),
            (self.layer_norm(expected, weight, bias, 1e-12), normed),
        ):
            if not torch.allclose(ours, torchs, rtol=tolerance, atol=tolerance):
                raise RuntimeError(f"results in {dtype} are not torch's")


def fitting(dtype: torch.dtype, size: int) -> Kernels | None:
    """Return this processor's kernels, if they compute heads (or rows) of `size` numbers of this dtype."""
    return best() if dtype in DTYPES and size % SIZE_MULTIPLE == 0 else None


@functools.cache
def best() -> Kernels | None:
    """The kernels of this processor's best level, compiled if need be; None where they cannot be had."""
    missing = []
    for level in levels():
        try:
            found = Kernels(level.name, build(level))
        except (OSError, RuntimeError) as error:
            missing.append(f"{level.name}: {error}")
        else:
            break
    else:
        found = None
    if missing:
        instead = "torch computes" if found is None else f"those for {found.name} are used"
        logger.warning("kernels cannot be had, %s instead: %s", instead, "; ".join(missing))
    return found


def build(level: Level) -> Path:
    """Compiles the kernels for a level, unless that was done before. Returns the library's path.

    Raises RuntimeError with the compiler's words, OSError where there is no compiler or no room to write.
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
        made.replace(library)  # at once: other processes may be building or loading it
    return library


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    print(f"kernels: {kernels.name if (kernels := best()) else 'none, torch computes'}")
