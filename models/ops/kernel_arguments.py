"""Checks what `models.ops.kernels` hands to the compiled kernels as addresses.

A wrong dtype, layout or length there would make a kernel read or write other memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)

SIZE_MULTIPLE = 16
"""The kernels compute heads and rows whose size is a multiple of this."""

Normalisation = tuple[Tensor, Tensor, float]
"""Weight and bias, (D,) of the dtype of the rows, and epsilon of a layer normalisation."""


def check_attention(
    projected: Tensor, offsets: Tensor, heads: int, weights: Tensor | None, rotation: Tensor | None
) -> int:
    """Return the size of a head. Raises ValueError unless `Kernels.attention` may read these tensors."""
    columns: int = projected.shape[1]
    size = columns // (3 * heads)
    if (
        columns == 3 * heads * size
        and size % SIZE_MULTIPLE == 0
        and projected.dtype in DTYPES
        and offsets.dtype is torch.int32
        and offsets.numel()
        and offsets.is_contiguous()
        and (weights is None or weights.shape[-1] == heads)
        and (rotation is None or _are_floats(rotation, len(rotation) * size))
    ):
        return size
    raise ValueError(
        f"{_forms(projected=projected, offsets=offsets, head_weights=weights, rotation=rotation)}; needed: "
        f"{heads} heads of a multiple of {SIZE_MULTIPLE} in float32 or bfloat16; offsets: int32, contiguous; "
        f"head_weights: (B, {heads}); rotation: (positions, {size}) float32, contiguous"
    )


def check_norm(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Raise ValueError unless `Kernels.layer_norm` may read these tensors."""
    width: int = x.shape[1]
    if (
        weight.dtype is bias.dtype is x.dtype
        and x.dtype in DTYPES
        and weight.numel() == bias.numel() == width
        and width % SIZE_MULTIPLE == 0
        and weight.is_contiguous()
        and bias.is_contiguous()
    ):
        return
    raise ValueError(
        f"{_forms(x=x, weight=weight, bias=bias)}; needed: all float32 or all bfloat16, contiguous, of a "
        f"width that is a multiple of {SIZE_MULTIPLE}"
    )


def check_quantization(x: Tensor, multiplier: Tensor | None, shift: Tensor | None) -> None:
    """Raise ValueError unless `Kernels.quantize` may read these tensors."""
    width: int = x.shape[1]
    given = [factor for factor in (multiplier, shift) if factor is not None]
    if (
        x.dtype in DTYPES
        and width % SIZE_MULTIPLE == 0
        and len(given) != 1
        and all(_are_floats(factor, width) for factor in given)
    ):
        return
    raise ValueError(
        f"{_forms(x=x, multiplier=multiplier, shift=shift)}; needed: x in float32 or bfloat16, of a width "
        f"that is a multiple of {SIZE_MULTIPLE}; multiplier and shift: float32 of that width, contiguous, "
        "both or neither"
    )


def check_map(
    tiles: Tensor,
    dtype: torch.dtype,
    inputs: int,
    outputs: int,
    factors: tuple[Tensor, ...],
    ending: tuple[int, str, Tensor | None, Normalisation | None],
) -> None:
    """Raise ValueError unless a map's tensors have the form that `Kernels.affine` says.

    dtype: of the weights. factors: bias, or start, scale and bias. ending: number of rows, finish, other,
    norm.
    """
    rows, finish, other, norm = ending
    filled, step = -(-outputs // 32) * 32, 64 // dtype.itemsize
    if (
        tiles.dtype is dtype
        and tiles.numel() == filled * -(-inputs // step) * step
        and tiles.is_contiguous()
        and _are_floats(factors[-1], filled)
        and (len(factors) == 1 or _is(factors[0], torch.int32, filled))
        and (len(factors) == 1 or _are_floats(factors[1], filled))
        and (other is not None or finish not in ("add", "multiply"))
        and (other is None or _is(other, torch.bfloat16, rows * outputs))
        and (norm is None or _is(norm[0], torch.bfloat16, outputs))
        and (norm is None or _is(norm[1], torch.bfloat16, outputs))
    ):
        return
    parts = dict(zip(("bias",) if len(factors) == 1 else ("start", "scale", "bias"), factors, strict=True))
    weight, bias = (None, None) if norm is None else norm[:2]
    raise ValueError(
        f"{_forms(tiles=tiles, **parts, other=other, norm_weight=weight, norm_bias=bias)}; needed for "
        f"{finish!r} of {rows} rows, {inputs} → {outputs}: {dtype} tiles of {filled} outputs; {filled} "
        f"floats, start in int32; other and norm in bfloat16 with {outputs} columns; all contiguous"
    )


def _is(tensor: Tensor, dtype: torch.dtype, numbers: int) -> bool:
    return tensor.dtype is dtype and tensor.numel() == numbers and tensor.is_contiguous()


def _are_floats(tensor: Tensor, numbers: int) -> bool:
    return tensor.dtype is torch.float32 and tensor.numel() == numbers and tensor.is_contiguous()


def _forms(**tensors: Tensor | None) -> str:
    """Return shape, dtype and layout of each tensor, for a message."""
    return ", ".join(
        f"{name} {tuple(tensor.shape)} {tensor.dtype}{'' if tensor.is_contiguous() else ' (not contiguous)'}"
        for name, tensor in tensors.items()
        if tensor is not None
    )
