"""Compares every entry point of our kernels with torch before it is used.

The tests of `models.ops.kernels` look closer; this finds a library that was compiled wrong.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.ops.kernels import SIZE_MULTIPLE, Kernels, filled, to_tiles
from models.ops.torch import activate, attention_probabilities, rotated, rotations, visibility_bias

LENGTHS = (1, 37, 16, 70)
"""Tokens of the sequences that are tried: less and more than a vector, a tile, and 32 queries."""

HEADS, WINDOW, EPSILON = 3, 9, 1e-12
SIZES = (2 * SIZE_MULTIPLE, 3 * SIZE_MULTIPLE)
"""Rotation pairs the halves of a head, and of an odd multiple they are no whole vectors."""

SHAPES = ((1, 48, 16), (70, 790, 48), (128, 2048, 400))
"""Rows, inputs and outputs of the maps that are tried; the last one's weight does not fit into L2."""


def check(kernels: Kernels, dtype: torch.dtype) -> None:
    """Raise RuntimeError unless what these kernels compute agrees with torch's.

    MemoryError passes through.
    """
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        _check_attention(kernels, _random(generator, sum(LENGTHS), 3 * HEADS * size).to(dtype), generator)
    x, (weight, bias) = (_random(generator, n, 96).to(dtype) for n in (70, 2))
    norm = F.layer_norm(x, weight.shape, weight, bias, EPSILON)
    _compare("layer normalisation", kernels.layer_norm(x, weight, bias, EPSILON), norm)
    multiplier, shift = torch.rand(2, 96, generator=generator).mul_(50).unbind()
    shift += 100
    exact = x.float() * multiplier + shift
    _compare_integers("quantized values", kernels.quantize(x, multiplier, shift, 0.5, 200)[0], exact, 200)
    x[3, 5] = torch.nan
    broken = kernels.quantize(x, None, None, 128.5)[1]
    if broken is None or broken.nonzero().flatten().tolist() != [3]:
        raise RuntimeError("rows with NaN are not found")
    x = torch.linspace(-9, 9, 10_003)
    for by_tanh, name in ((False, "gelu"), (True, "gelu_tanh")):
        found = kernels.quantize_gelu(x, 25.0, 9.5, 127, by_tanh=by_tanh)
        _compare_integers("quantized GELU", found, activate(x, name) * 25 + 9.5, 127)
    if kernels.multiplies and dtype == torch.bfloat16:
        for shape in SHAPES:
            _check_affine(kernels, shape, generator)
            _check_affine_int8(kernels, shape, generator)


def _check_attention(kernels: Kernels, projected: Tensor, generator: torch.Generator) -> None:
    """Try whole sequences and first tokens, with and without head weights, rotation and window."""
    offsets = F.pad(torch.tensor(LENGTHS).cumsum(0), (1, 0)).int()
    parts = projected.view(len(projected), 3, HEADS, -1)
    rotation = rotations(100.0, max(LENGTHS), parts.shape[-1], torch.device("cpu"))
    weights = torch.rand(len(LENGTHS), HEADS, generator=generator)
    for head_weights, turn, window in ((None, None, None), (weights, rotation, WINDOW)):
        expected = []
        for row, sequence in enumerate(parts.split_with_sizes(LENGTHS)):
            turned = sequence if turn is None else rotated(sequence, turn[: len(sequence)])
            query, key, value = turned.float().permute(1, 2, 0, 3)  # (h, n, d) each
            context = attention_probabilities(query, key, visibility_bias(query, window)) @ value
            scale = 1 if head_weights is None else head_weights[row, :, None, None]
            expected.append((context * scale).transpose(0, 1).flatten(1))
        how: dict[str, Any] = {"rotation": turn, "window": window}
        whole = kernels.attention(projected, offsets, HEADS, head_weights, **how)
        first = kernels.attention(projected, offsets, HEADS, head_weights, first_only=True, **how)
        _compare("attention", whole, torch.cat(expected))
        _compare("attention of first tokens", first, torch.stack([one[0] for one in expected]))


def _check_affine(kernels: Kernels, shape: tuple[int, int, int], generator: torch.Generator) -> None:
    """Try a map of bfloat16 with everything that may follow it."""
    rows, inputs, outputs = shape
    x, other, norm = (
        _random(generator, n, m).bfloat16() for n, m in ((rows, inputs), (rows, outputs), (2, outputs))
    )
    weight, bias = (_random(generator, outputs, inputs) / inputs**0.5).bfloat16(), other[0].clone()
    sums = F.linear(x.float(), weight.float(), bias.float())
    laid_out = to_tiles(weight), filled(bias.float()), outputs
    _compare_finishes("affine map", lambda *how: kernels.affine(x, *laid_out, *how), sums, other, norm)


def _check_affine_int8(kernels: Kernels, shape: tuple[int, int, int], generator: torch.Generator) -> None:
    """Try a map of 8-bit integers, and of floats that it quantizes, with everything that may follow it."""
    rows, inputs, outputs = shape
    inputs -= inputs % SIZE_MULTIPLE
    weight = torch.randint(-127, 128, (outputs, inputs), generator=generator).to(torch.int8)
    x = torch.randint(0, 256, (rows, inputs), generator=generator).to(torch.uint8)
    x[0], weight[0] = 255, 127  # the largest sums
    scale, bias = torch.rand(2, outputs, generator=generator).unbind()
    scale /= 10_000 * inputs**0.5
    other, norm = (_random(generator, n, outputs).bfloat16() for n in (rows, 2))
    start = torch.arange(outputs, dtype=torch.int32)
    sums = (F.linear(x.double(), weight.double(), start.double()) * scale + bias).float()
    laid_out = to_tiles(weight), (filled(start), filled(scale), filled(bias)), outputs
    name = "affine map of integers"
    _compare_finishes(
        name, lambda f, o=None, n=None: kernels.affine_int8(x, *laid_out, f, o, norm=n), sums, other, norm
    )
    found = kernels.affine_int8(x, *laid_out, "quantized_gelu", None, (25.0, 9.5))
    _compare_integers(f"{name}, quantized", found, activate(sums, "gelu") * 25 + 9.5, 255)
    floats = (_random(generator, rows, inputs) * 50).bfloat16()
    multiplier, shift = torch.rand(2, inputs, generator=generator).mul_(9).unbind()
    expected = kernels.affine_int8(kernels.quantize(floats, multiplier, shift, 128.5)[0], *laid_out, "none")
    found = kernels.affine_int8(floats, *laid_out, "none", source=(multiplier, shift, 128.5))
    _compare(f"{name}, of floats", found, expected)


def _compare_finishes(what: str, compute: Any, sums: Tensor, other: Tensor, norm: Tensor) -> None:
    """Compare what follows a map's sums. compute: takes finish, other and norm."""
    for name in ("none", "gelu", "gelu_tanh"):
        _compare(f"{what}, {name}", compute(name), activate(sums, name))
    added = compute("add", other)
    _compare(f"{what}, added", added, sums + other)
    _compare(f"{what}, multiplied", compute("multiply", other), sums * other)
    expected = F.layer_norm(added, norm[0].shape, norm[0], norm[1], EPSILON)
    _compare(f"{what}, normalised", compute("add", other, (norm[0], norm[1], EPSILON)), expected)


def _compare(what: str, ours: Tensor, expected: Tensor) -> None:
    """Raise RuntimeError unless two results agree to their dtype's rounding."""
    tolerance = 1e-5 if ours.dtype == torch.float32 else 5e-2
    if not torch.allclose(ours.float(), expected.float(), rtol=tolerance, atol=tolerance):
        raise RuntimeError(f"{what}: results in {ours.dtype} are not torch's")


def _compare_integers(what: str, ours: Tensor, exact: Tensor, largest: int) -> None:
    """Raise RuntimeError unless integers are these numbers, truncated, within their rounding."""
    low, high = ((exact + by).floor().clamp(0, largest) for by in (-1e-2, 1e-2))
    if ((ours < low) | (ours > high)).any():
        raise RuntimeError(f"{what} are not torch's")


def _random(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=generator)
