"""Our own kernels for x86-64: attention over packs, layer normalisation, quantization (`kernels.cpp`).

torch's operators do not suit short sequences and narrow rows: attention needs copies into padded batches, and
a dozen operators to make them. The machine's C++ compiler compiles the source when it is first needed (`make
install` does it, in about two seconds). The library is kept in ~/.cache/headroom, compared with torch, and
called through ctypes, which releases the interpreter's lock. Without a compiler, or on anything but Linux on
x86-64, torch's operators give the same answers, slower (docs/decisions/006-kernels.md).
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
from models.ops.torch import rotated, rotations, visibility_bias

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-Wno-psabi")

DTYPES = (torch.float32, torch.bfloat16)

SIZE_MULTIPLE = 16
"""The kernels compute heads and rows whose size is a multiple of this."""

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


class Kernels:
    """The kernels of a compiled library. Threads may share it.

    name: the level that the library was compiled for.
    """

    def __init__(self, name: str, library: Path) -> None:
        """Load and try a library. Raises OSError if it cannot be loaded, RuntimeError if it does not work."""
        self.name = name
        loaded = ctypes.CDLL(str(library))
        pointer, number, flag = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        self._attend, self._normalise, self._quantize = {}, {}, {}
        for dtype in DTYPES:
            suffix = str(dtype).removeprefix("torch.")
            attend = getattr(loaded, f"headroom_attend_{suffix}")
            attend.argtypes = [pointer, number, pointer, number, number, number]
            attend.argtypes += [pointer, number, flag, pointer, number, pointer, flag]
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
        rotation: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Attend within each sequence of a pack, head by head: softmax(q kᵀ/√d)·v, times the head's weight.

        projected: (T, 3·h·d) float32 or bfloat16, queries, keys and values of h heads; offsets:
            (B + 1,) int32, contiguous, where sequences begin and end; head_weights: (B, h), or (1, h) for all
            sequences; it may have fewer rows if the last sequences are empty.
        first_only: only each sequence's first token attends. rotation, window: as in `TorchOps.attention`;
            rotation has a row for every position of the longest sequence.
        Returns (T, h·d), or (B, h·d), of projected's dtype; 0 for empty sequences and for
        tokens of no sequence. A sequence's result has the same bits in any pack and for any thread count.
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
            None if rotation is None else rotation.data_ptr(),
            -1 if window is None else window,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Return (x − mean) / √(variance + eps) · weight + bias of each row, computed in float32.

        x: (T, D) float32 or bfloat16; weight, bias: (D,) of x's dtype. The result is like x.
        """
        x = x.contiguous()
        out = torch.empty_like(x)
        parameters = (weight.data_ptr(), bias.data_ptr(), eps)
        self._normalise[x.dtype](x.data_ptr(), *x.shape, *parameters, out.data_ptr(), torch.get_num_threads())
        return out

    def quantize(
        self, x: Tensor, multiplier: Tensor | None, shift: Tensor | None, middle: float
    ) -> tuple[Tensor, Tensor | None]:
        """Return x·multiplier + shift (or x + middle without them), clamped to 0 … 255 and truncated.

        x: (T, D) float32 or bfloat16; multiplier, shift: (D,) float32, both or neither.
        Returns (T, D) uint8, and which rows hold NaN or an infinity, (T,) bool; None if no row does.
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
        """Raise RuntimeError unless the results agree with torch's."""
        generator = torch.Generator().manual_seed(0)
        tokens, heads, size = 37, 3, 2 * SIZE_MULTIPLE
        projected = torch.randn(tokens, 3 * heads * size, generator=generator).to(dtype)
        offsets = torch.tensor([0, tokens], dtype=torch.int32)
        query, key, value = projected.view(tokens, 3, heads, size).permute(1, 2, 0, 3)
        expected = F.scaled_dot_product_attention(query, key, value).transpose(0, 1).reshape(tokens, -1)
        attended = self.attention(projected, offsets, heads)
        rotation = rotations(100.0, tokens, size, projected.device)
        query, key, value = rotated(projected.view(tokens, 3, heads, size), rotation).permute(1, 2, 0, 3)
        seen = visibility_bias(query, 5)
        near = F.scaled_dot_product_attention(query, key, value, seen).transpose(0, 1).reshape(tokens, -1)
        attended_near = self.attention(projected, offsets, heads, rotation=rotation, window=5)
        weight, bias = projected[:2, : heads * size].contiguous()
        normed = F.layer_norm(expected, weight.shape, weight, bias, 1e-12)
        tolerance = 1e-5 if dtype == torch.float32 else 5e-2
        for ours, torchs in (
            (attended, expected),
            (attended_near, near),
            (self.layer_norm(expected, weight, bias, 1e-12), normed),
        ):
            if not torch.allclose(ours, torchs, rtol=tolerance, atol=tolerance):
                raise RuntimeError(f"results in {dtype} are not torch's")


def fitting(dtype: torch.dtype, size: int) -> Kernels | None:
    """Return this processor's kernels, if they compute heads (or rows) of `size` numbers of this dtype."""
    return best() if dtype in DTYPES and size % SIZE_MULTIPLE == 0 else None


@functools.cache
def best() -> Kernels | None:
    """Return the kernels of this processor's best level, compiled if needed; None if none works."""
    missing = []
    for level in levels():
        try:
            kernels = Kernels(level.name, build(level))
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


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    print(f"kernels: {kernels.name if (kernels := best()) else 'none, torch computes'}")
