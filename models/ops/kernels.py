"""Calls our own kernels: attention over packs, layer normalisation, quantization, affine maps (`native/`).

torch's operators do not suit short sequences and narrow rows: attention needs copies into padded batches, and
a dozen operators to make them. The compiled library is called through ctypes, which releases the
interpreter's lock. `models.ops.kernel_library` loads and tries it when a checkpoint is loaded.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.ops.kernel_arguments import (
    DTYPES,
    SIZE_MULTIPLE,
    Normalisation,
    check_attention,
    check_map,
    check_norm,
    check_quantization,
)

__all__ = ["AS_IT_IS", "DTYPES", "FINISHES", "SIZE_MULTIPLE", "Kernels", "Normalisation", "Quantization"]

NO_MEMORY_FOR_A_MAP = "not enough memory for an affine map"

Quantization = tuple[Tensor | None, Tensor | None, float]
"""Multiplier, shift and middle, as `Kernels.quantize` takes them."""

AS_IT_IS: Quantization = (None, None, 0.0)
"""Of an input that is quantized already."""

FINISHES = ("none", "gelu", "gelu_tanh", "add", "multiply", "quantized_gelu", "quantized_gelu_tanh")
"""What `affine` and `affine_int8` do with their sums; the order is that of `Finish` in native/affine.h."""


class Kernels:
    """The kernels of a compiled library. Threads may share it.

    name: the level that the library was compiled for. multiplies: whether it has `affine` and `affine_int8`.
    """

    def __init__(self, name: str, library: Path) -> None:
        """Load a library. Raises OSError if it cannot be loaded, RuntimeError if it may not be used."""
        self.name = name
        loaded = ctypes.CDLL(str(library))
        pointer, number, flag, real = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
        self._attend, self._normalise, self._quantize = {}, {}, {}
        for dtype in DTYPES:
            suffix = str(dtype).removeprefix("torch.")
            attend = getattr(loaded, f"headroom_attend_{suffix}")
            attend.argtypes = [pointer, number, pointer, number, number, number]
            attend.argtypes += [pointer, number, flag, pointer, number, number, pointer, flag]
            attend.restype = flag
            normalise, quantize = (
                getattr(loaded, f"headroom_{name}_{suffix}") for name in ("normalise", "quantize")
            )
            of_rows = [pointer, number, number, pointer, pointer, real]
            normalise.argtypes, normalise.restype = [*of_rows, pointer, flag], None
            quantize.argtypes, quantize.restype = [*of_rows, real, pointer, pointer, flag], number
            self._attend[dtype], self._normalise[dtype], self._quantize[dtype] = attend, normalise, quantize
        self._quantize_gelu = loaded.headroom_quantize_gelu
        self._quantize_gelu.argtypes = [pointer, number, flag, real, real, real, pointer, flag]
        self._quantize_gelu.restype = None
        self._affine: Any = getattr(loaded, "headroom_map_bfloat16", None)
        self.multiplies = self._affine is not None
        if self._affine is not None:
            into: list[Any] = [pointer, pointer, real, pointer, flag]  # what all maps end with
            self._affine.argtypes = [pointer, number, number, pointer, pointer, number, flag, pointer, *into]
            self._affine.restype = flag
            self._affine_int8 = loaded.headroom_map_int8
            self._affine_int8.argtypes = [pointer, flag, number, number, pointer, pointer, real]
            self._affine_int8.argtypes += [*[pointer] * 4, number, flag, pointer, real, real, *into]
            self._affine_int8.restype = flag
        if loaded.headroom_prepare():
            raise RuntimeError("the operating system does not let this process use the processor's tiles")

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
        Raises MemoryError if there is not enough memory for the longest sequence, ValueError for tensors of
        another form.
        """
        projected = projected.contiguous()
        tokens, columns = projected.shape
        width = columns // 3
        weights = None if head_weights is None else head_weights.float().contiguous()
        size = check_attention(projected, offsets, heads, weights, rotation)
        sequences = offsets.numel() - 1
        out = projected.new_empty(sequences if first_only else tokens, width)
        problem = self._attend[projected.dtype](
            projected.data_ptr(),
            tokens,
            offsets.data_ptr(),
            sequences,
            heads,
            size,
            _address(weights),
            0 if weights is None else len(weights),
            first_only,
            _address(rotation),
            0 if rotation is None else len(rotation),
            -1 if window is None else window,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        if problem == 1:
            raise MemoryError("not enough memory for the attention of the longest sequence")
        if problem:
            raise ValueError(
                f"offsets must ascend from 0 to at most {tokens} tokens, with a row of head_weights for each "
                "sequence and a row of the rotation for each position"
            )
        return out

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Return (x − mean) / √(variance + eps) · weight + bias of each row, computed in float32.

        x: (T, D) float32 or bfloat16; weight, bias: (D,) of x's dtype. The result is like x.
        Raises ValueError for tensors of another form.
        """
        x = x.contiguous()
        check_norm(x, weight, bias)
        out = torch.empty_like(x)
        parameters = (weight.data_ptr(), bias.data_ptr(), eps)
        self._normalise[x.dtype](x.data_ptr(), *x.shape, *parameters, out.data_ptr(), torch.get_num_threads())
        return out

    def quantize(
        self, x: Tensor, multiplier: Tensor | None, shift: Tensor | None, middle: float, largest: int = 255
    ) -> tuple[Tensor, Tensor | None]:
        """Return x·multiplier + shift (or x + middle without them), clamped to 0 … largest and truncated.

        x: (T, D) float32 or bfloat16; multiplier, shift: (D,) float32, both or neither.
        Returns (T, D) uint8, and which rows hold NaN or an infinity, (T,) bool; None if no row does.
        Raises ValueError for tensors of another form.
        """
        check_quantization(x, multiplier, shift)
        out = torch.empty(x.shape, dtype=torch.uint8)
        broken = torch.empty(x.shape[0], dtype=torch.bool)
        x = x.contiguous()
        factors = [None if factor is None else factor.data_ptr() for factor in (multiplier, shift)]
        count = self._quantize[x.dtype](
            *(x.data_ptr(), *x.shape, *factors, middle, largest, out.data_ptr()),
            *(broken.data_ptr(), torch.get_num_threads()),
        )
        return out, broken if count else None

    def quantize_gelu(
        self, x: Tensor, multiplier: float, shift: float, largest: int, *, by_tanh: bool
    ) -> Tensor:
        """Return GELU(x)·multiplier + shift, clamped to 0 … largest and truncated.

        GELU is within 6e-5, above 18 within 3.3e-6·x.
        x: float32 of any shape. by_tanh: which GELU. Returns uint8 of the same shape; NaN becomes 0.
        Raises ValueError for another dtype.
        """
        out = torch.empty(x.shape, dtype=torch.uint8)
        x = x.contiguous()
        if x.dtype is not torch.float32:
            raise ValueError(f"x is {x.dtype}; needed: torch.float32")
        self._quantize_gelu(
            *(x.data_ptr(), x.numel(), by_tanh, multiplier, shift, largest),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def affine(
        self,
        x: Tensor,
        tiles: Tensor,
        bias: Tensor,
        outputs: int,
        finish: str,
        other: Tensor | None = None,
        norm: Normalisation | None = None,
    ) -> Tensor:
        """Return x·Wᵀ + b, with GELU (within 6e-5 before it is rounded), or with `other` added or multiplied.

        x: (T, in) bfloat16; tiles: W as `models.ops.tiles.to_tiles` lays it out; bias: float32, filled up
            with zeros as W is; finish: one of FINISHES; other: (T, outputs) bfloat16, to add or multiply.
        norm: of the result, as by `layer_norm`.
        Returns (T, outputs) bfloat16. A row has the same bits in any batch and for any thread count.
        Raises MemoryError if there is not enough memory, ValueError for tensors of another form.
        """
        x, other = x.contiguous(), None if other is None else other.contiguous()
        rows, inputs = x.shape
        if x.dtype is not torch.bfloat16:
            raise ValueError(f"x is {x.dtype}; needed: torch.bfloat16")
        check_map(tiles, torch.bfloat16, inputs, outputs, (bias,), (rows, finish, other, norm))
        out = x.new_empty(len(x), outputs)
        out_of_memory = self._affine(
            *(x.data_ptr(), *x.shape, tiles.data_ptr(), bias.data_ptr(), outputs, FINISHES.index(finish)),
            *(_address(other), *_arguments(norm), out.data_ptr(), torch.get_num_threads()),
        )
        if out_of_memory:
            raise MemoryError(NO_MEMORY_FOR_A_MAP)
        return out

    def affine_int8(
        self,
        x: Tensor,
        tiles: Tensor,
        factors: tuple[Tensor, Tensor, Tensor],
        outputs: int,
        finish: str,
        other: Tensor | None = None,
        target: tuple[float, float] = (0.0, 0.0),
        *,
        source: Quantization = AS_IT_IS,
        norm: Normalisation | None = None,
    ) -> Tensor:
        """Return (start + x·Wᵀ)·scale + bias, finished as `affine` does, or quantized after GELU.

        x: (T, in) uint8, or bfloat16 that is quantized first; tiles: W, int8, as
            `models.ops.tiles.to_tiles` lays it out; factors: start, int32, scale and bias, float32, filled up
            as W is; finish: one of FINISHES; other: as for `affine`.
        target: multiplier and shift of `quantize_gelu`, whose result this is for the quantized finishes.
        source: multiplier, shift and middle of `quantize` for an x of bfloat16, whose width is a multiple of
            SIZE_MULTIPLE. Rows of it that hold NaN or an infinity become NaN, unless the result is quantized.
        norm: as for `affine`.
        Returns (T, outputs) bfloat16, or uint8. A row has the same bits in any batch and thread count.
        Raises MemoryError if there is not enough memory, ValueError for tensors of another form.
        """
        x, other = x.contiguous(), None if other is None else other.contiguous()
        rows, inputs = x.shape
        if x.dtype not in (torch.uint8, torch.bfloat16):
            raise ValueError(f"x is {x.dtype}; needed: torch.uint8 or torch.bfloat16")
        if x.dtype is torch.bfloat16:
            check_quantization(x, *source[:2])
        check_map(tiles, torch.int8, inputs, outputs, factors, (rows, finish, other, norm))
        quantizes = finish.startswith("quantized")
        out = torch.empty(len(x), outputs, dtype=torch.uint8 if quantizes else torch.bfloat16)
        multiplier, shift, middle = source
        out_of_memory = self._affine_int8(
            *(x.data_ptr(), x.dtype == torch.uint8, *x.shape, _address(multiplier), _address(shift), middle),
            *(tiles.data_ptr(), *(factor.data_ptr() for factor in factors), outputs, FINISHES.index(finish)),
            *(_address(other), *target, *_arguments(norm), out.data_ptr(), torch.get_num_threads()),
        )
        if out_of_memory:
            raise MemoryError(NO_MEMORY_FOR_A_MAP)
        return out


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _arguments(norm: Normalisation | None) -> tuple[int | None, int | None, float]:
    return (None, None, 0.0) if norm is None else (norm[0].data_ptr(), norm[1].data_ptr(), norm[2])
