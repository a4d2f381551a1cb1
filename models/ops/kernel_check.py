"""Compares every entry point of our kernels with torch before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.ops.kernels import SIZE_MULTIPLE, Kernels
from models.ops.tiles import filled, to_tiles
from models.ops.torch import activate, attention_probabilities, rotated, rotations, visibility_bias

LENGTHS = (1, 37, 0, 16, 70)
"""Tokens of the sequences that are tried: less and more than a vector, a tile, and 32 queries."""

HEADS, WINDOW, EPSILON = 3, 9, 1e-12
SIZE, ODD_SIZE = 2 * SIZE_MULTIPLE, 3 * SIZE_MULTIPLE
"""Rotation pairs the halves of a head, and of an odd multiple they are no whole vectors."""


def check(kernels: Kernels, dtype: torch.dtype) -> None:
    """Raise RuntimeError unless what these kernels compute agrees with torch's.

    MemoryError passes through.
    """
    generator = torch.Generator().manual_seed(0)
    offsets = F.pad(torch.tensor(LENGTHS).cumsum(0), (1, 0)).int()
    tokens, width = sum(LENGTHS), HEADS * SIZE
    projected = torch.randn(tokens + 2, 3 * width, generator=generator).to(dtype)
    weights = torch.rand(len(LENGTHS), HEADS, generator=generator)
    _check_attention(kernels, projected, offsets, weights)
    odd = torch.randn(tokens + 2, 3 * HEADS * ODD_SIZE, generator=generator).to(dtype)
    _check_attention(kernels, odd, offsets, weights)
    x, (weight, bias) = projected[:, :width].contiguous(), projected[:2, width : 2 * width].contiguous()
    normed = F.layer_norm(x, weight.shape, weight, bias, EPSILON)
    _compare("layer normalisation", kernels.layer_norm(x, weight, bias, EPSILON), normed)
    x[4, 0], x[9, -1] = torch.nan, torch.inf
    spoilt = kernels.layer_norm(x, weight, bias, EPSILON).isnan().any(1).nonzero().flatten().tolist()
    if spoilt != [4, 9]:
        raise RuntimeError(f"layer normalisation of NaN in {dtype} is not torch's")
    _check_quantization(kernels, x * 50, weights=torch.rand(2, width, generator=generator))
    _check_gelu(kernels)
    if kernels.multiplies and dtype == torch.bfloat16:
        _check_affine(kernels, generator)
        _check_affine_int8(kernels, generator)


def _check_attention(kernels: Kernels, projected: Tensor, offsets: Tensor, weights: Tensor) -> None:
    """Try whole sequences and first tokens, each with and without head weights, rotation and window."""
    rotation = rotations(100.0, max(LENGTHS), projected.shape[1] // 3 // HEADS, torch.device("cpu"))
    first = offsets[:-1].long()
    exists = (offsets.diff() > 0)[:, None]
    # What this leaves in the kernel's own memory must reach none of the results below.
    kernels.attention(torch.full_like(projected, torch.nan), offsets, HEADS, rotation=rotation)
    for head_weights in (None, weights, weights[:1]):
        for turn, window in ((None, None), (rotation, WINDOW)):
            how: dict[str, Any] = {"rotation": turn, "window": window}
            expected = _attention(projected, offsets, head_weights, turn, window)
            whole = kernels.attention(projected, offsets, HEADS, head_weights, **how)
            firsts = kernels.attention(projected, offsets, HEADS, head_weights, first_only=True, **how)
            _compare("attention", whole, expected)
            _compare("attention of first tokens", firsts, expected[first] * exists)
    empty = kernels.attention(projected[:0], torch.zeros_like(offsets), HEADS, first_only=True)
    _compare("attention without tokens", empty, torch.zeros_like(empty))
    spoilt = projected.clone()
    spoilt[3, 0] = torch.nan  # a query of the second sequence
    found = kernels.attention(spoilt, offsets, HEADS).isnan().any(1).nonzero().flatten().tolist()
    if found != [3]:
        raise RuntimeError(f"attention with NaN in {projected.dtype} is not torch's")


def _attention(
    projected: Tensor, offsets: Tensor, weights: Tensor | None, rotation: Tensor | None, window: int | None
) -> Tensor:
    """Return the attention of each sequence by torch; arguments as those of `Kernels.attention`."""
    parts = projected.view(len(projected), 3, HEADS, -1)
    out = torch.zeros(len(projected), HEADS, parts.shape[-1])
    for row, (begin, end) in enumerate(zip(offsets.tolist(), offsets[1:].tolist(), strict=False)):
        sequence = parts[begin:end]
        if rotation is not None:
            sequence = rotated(sequence, rotation[: end - begin])
        query, key, value = sequence.float().permute(1, 2, 0, 3)  # (h, n, d) each
        context = attention_probabilities(query, key, visibility_bias(query, window)) @ value
        if weights is not None:
            context = context * weights[min(row, len(weights) - 1), :, None, None]
        out[begin:end] = context.transpose(0, 1)
    return out.flatten(1)


def _check_quantization(kernels: Kernels, x: Tensor, weights: Tensor) -> None:
    """Try rows with and without scales; x holds NaN in row 4 and an infinity in row 9."""
    multiplier, shift = weights[0], 100 + weights[1]
    for (quantized, broken), y in (
        (kernels.quantize(x, None, None, 128.5), x.float() + 128.5),
        (kernels.quantize(x, multiplier, shift, 128.5), x.float() * multiplier + shift),
    ):
        if broken is None or broken.nonzero().flatten().tolist() != [4, 9]:
            raise RuntimeError(f"rows with NaN in {x.dtype} are not reported")
        ours, exact = quantized[~broken].float(), y[~broken].clamp(0, 255)
        # A number next to an integer may be rounded to its other side.
        low, high = (exact - 1e-3).clamp(0).floor(), (exact + 1e-3).clamp(0, 255).floor()
        if ((ours < low) | (ours > high)).any():
            raise RuntimeError(f"quantized values in {x.dtype} are not torch's")
    if kernels.quantize(x[10:], None, None, 128.5)[1] is not None:
        raise RuntimeError(f"rows without NaN in {x.dtype} are reported")
    few = kernels.quantize(x[10:], None, None, 128.5, 99)[0]
    if not torch.equal(few, kernels.quantize(x[10:], None, None, 128.5)[0].clamp(max=99)):
        raise RuntimeError(f"quantized values in {x.dtype} are larger than allowed")


def _check_gelu(kernels: Kernels) -> None:
    """Try a wide range of inputs, of which the last are no whole vector."""
    x = torch.linspace(-9, 9, 10_003)
    x[77] = torch.nan
    for by_tanh, name in ((False, "none"), (True, "tanh")):
        ours = kernels.quantize_gelu(x, 25.0, 9.5, 127, by_tanh=by_tanh).float()
        exact = (F.gelu(x, approximate=name) * 25 + 9.5).nan_to_num(0.0).clamp(0, 127)
        if ((ours < (exact - 5e-3).floor()) | (ours > (exact + 5e-3).floor())).any():
            raise RuntimeError("quantized GELU is not torch's")


def _check_affine(kernels: Kernels, generator: torch.Generator) -> None:
    """Try maps that fill no whole block, with more inputs than the kernel reads at a time, and in panels."""
    for rows, inputs, outputs in ((1, 48, 16), (70, 790, 48), (_rows_in_panels(), 48, 16)):
        x, weight, bias, other, norm_weight, norm_bias = (
            torch.randn(*shape, generator=generator).bfloat16()
            for shape in ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs), *[(outputs,)] * 2)
        )
        weight /= inputs**0.5
        sums = F.linear(x.float(), weight.float(), bias.float())
        tiles, whole_bias = to_tiles(weight), filled(bias.float())
        # What this leaves in the kernel's own memory must reach none of the results below.
        kernels.affine(torch.full_like(x, torch.nan), tiles, whole_bias, outputs, "none")
        for finish, expected in _finished(sums, other):
            found = kernels.affine(x, tiles, whole_bias, outputs, finish, other)
            _compare(f"affine map ({finish})", found, expected)
        _check_norm(
            "affine map",
            kernels.affine(x, tiles, whole_bias, outputs, "add", other),
            kernels.affine(x, tiles, whole_bias, outputs, "add", other, (norm_weight, norm_bias, EPSILON)),
            norm_weight,
            norm_bias,
        )
        x[-1, -1] = torch.nan
        broken = kernels.affine(x, tiles, whole_bias, outputs, "gelu").isnan()
        if not broken[-1].all() or broken[:-1].any():
            raise RuntimeError("an affine map of NaN is not torch's")


def _check_affine_int8(kernels: Kernels, generator: torch.Generator) -> None:
    """Try maps of 8-bit integers as those of bfloat16, the largest sums among them.

    The last one has too many weights for L2, so a thread takes all of its panels together.
    """
    in_panels = _rows_in_panels()
    for rows, inputs, outputs in ((1, 48, 16), (70, 1584, 48), (in_panels, 48, 16), (in_panels, 2048, 400)):
        x = torch.randint(0, 256, (rows, inputs), generator=generator).to(torch.uint8)
        weight = torch.randint(-127, 128, (outputs, inputs), generator=generator).to(torch.int8)
        x[0], weight[0] = 255, 127
        scale, bias = (torch.rand(outputs, generator=generator) for _ in range(2))
        scale /= 10_000 * inputs**0.5
        other = torch.randn(rows, outputs, generator=generator).bfloat16()
        start = torch.arange(outputs, dtype=torch.int32)
        sums = F.linear(x.double(), weight.double(), start.double()) * scale + bias
        tiles, factors = to_tiles(weight), (filled(start), filled(scale), filled(bias))
        for finish, expected in _finished(sums, other):
            found = kernels.affine_int8(x, tiles, factors, outputs, finish, other)
            _compare(f"affine map of integers ({finish})", found, expected)
        for name in ("gelu", "gelu_tanh"):
            found = kernels.affine_int8(x, tiles, factors, outputs, f"quantized_{name}", None, (25.0, 9.5))
            exact = activate(sums, name) * 25 + 9.5
            low, high = ((exact + by).floor().clamp(0, 255) for by in (-1e-2, 1e-2))
            if ((found < low) | (found > high)).any():
                raise RuntimeError(f"quantized affine map ({name}) is not torch's")
        _check_affine_of_floats(kernels, inputs, (tiles, factors, outputs), other, generator)


def _check_affine_of_floats(
    kernels: Kernels,
    inputs: int,
    integers: tuple[Tensor, tuple[Tensor, Tensor, Tensor], int],
    other: Tensor,
    generator: torch.Generator,
) -> None:
    """Try an integer map of floats, and its norm, against that of integers by `Kernels.quantize`.

    integers: tiles, factors and number of outputs, as `affine_int8` takes them.
    """
    tiles, factors, outputs = integers
    x = (torch.randn(len(other), inputs, generator=generator) * 50).bfloat16()
    x[0, 7], x[-1, -1] = torch.nan, torch.inf
    multiplier, shift = torch.rand(2, inputs, generator=generator).mul_(9).unbind()
    weight, bias = torch.randn(2, other.shape[1], generator=generator).bfloat16().unbind()
    for source in ((None, None, 128.5), (multiplier, shift, 128.5)):
        quantized, broken = kernels.quantize(x, *source)
        whole = torch.ones(len(x), dtype=torch.bool) if broken is None else ~broken
        expected = kernels.affine_int8(quantized, tiles, factors, outputs, "add", other)[whole]
        found = kernels.affine_int8(x, tiles, factors, outputs, "add", other, source=source)
        if not torch.equal(found.isfinite().all(1), whole):
            raise RuntimeError("affine map of integers: rows with NaN are not torch's")
        _compare("affine map of integers (of floats)", found[whole], expected)
        how: dict[str, Any] = {"source": source, "norm": (weight, bias, EPSILON)}
        found = kernels.affine_int8(x, tiles, factors, outputs, "add", other, **how)
        _check_norm("affine map of integers", expected, found[whole], weight, bias)


def _check_norm(what: str, plain: Tensor, found: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Compare a map's normalised rows with the norm of its rows."""
    _compare(f"{what} (normalised)", found, F.layer_norm(plain, weight.shape, weight, bias, EPSILON))


def _rows_in_panels() -> int:
    """Return so many rows that the kernel gives each thread panels of its own (native/affine.h)."""
    return 128 * torch.get_num_threads() + 6


def _finished(sums: Tensor, other: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what both kinds of affine maps do with their sums, and what comes of it by torch."""
    for name in ("none", "gelu", "gelu_tanh"):
        yield name, activate(sums, name)
    yield "add", sums + other
    yield "multiply", sums * other


def _compare(what: str, ours: Tensor, expected: Tensor) -> None:
    """Raise RuntimeError unless two results agree to their dtype's rounding."""
    tolerance = 1e-5 if ours.dtype == torch.float32 else 5e-2
    if not torch.allclose(ours.float(), expected.float(), rtol=tolerance, atol=tolerance):
        raise RuntimeError(f"{what}: results in {ours.dtype} are not torch's")
