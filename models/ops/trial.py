"""Compares operators with torch's plain ones before they are used: a compiler may get them wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.batch import pack
from models.checkpoint.tokenizer import EncodedPair
from models.ops.causal import Causal
from models.ops.int8 import Int8Linear, QuantizedMap, TensorScale
from models.ops.positions import PLAIN_POSITIONS, Positions, rotations
from models.ops.relative import Relative, alibi_slopes, log_buckets
from models.ops.torch import TorchOps

LENGTHS = (1, 16, 37, 70)
HEADS = 3
SPAN = 16
"""Tokens of the sequences that are tried: less and more than a vector, a tile, and a block of queries."""


def disagreement(ops: TorchOps, head_size: int) -> str | None:
    """Return what these operators compute unlike torch's plain ones; None if they agree to their rounding.

    Raises what a kernel, its compiler or a driver raises.
    """
    plain = TorchOps(ops.device, torch.float32)
    bound = 1e-5 if ops.dtype == torch.float32 else 5e-2
    compiled = ops.kernels is not None
    results = (_results(each, head_size, ops.dtype, compiled=compiled) for each in (ops, plain))
    for (what, ours), (_, exact) in zip(*results, strict=True):
        if not torch.allclose(ours.float(), exact, rtol=bound, atol=bound):
            return f"{what} in {ops.dtype} is not what plain torch computes"
    return None


def _results(ops: TorchOps, size: int, dtype: torch.dtype, *, compiled: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield what these operators compute of the same random numbers, which are rounded to `dtype`.

    compiled: our compiled kernels are tried, which compute maps of 8-bit integers too.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(ops.device, ops.dtype)

    pairs = [EncodedPair(np.zeros(length, np.int32), 1, 0, False) for length in LENGTHS]
    batch = pack(pairs, device=ops.device)
    tokens = sum(LENGTHS)
    width = HEADS * size
    angles = rotations(100.0, 2 * max(LENGTHS), size, ops.device)
    order = log_buckets(SPAN, 60, max(LENGTHS) - 1).to(ops.device)
    slopes = torch.tensor(alibi_slopes(HEADS), device=ops.device)
    tables = random(2, HEADS, 2 * SPAN, size)
    relative = Relative((tables[0], tables[1], order), SPAN // 2, slopes)
    projected = random(len(batch.ids), 3 * width)
    weights = random(batch.rows, HEADS).float()
    for some, positions in (
        (None, PLAIN_POSITIONS),
        (weights, Positions(window=9)),
        (weights, Positions(angles, 9)),
        (None, Positions(relative=relative)),
    ):
        yield "attention", ops.attention(projected, batch, HEADS, some, positions)[:tokens]
        first = ops.attention(projected, replace(batch, read="first"), HEADS, some, positions)
        yield "attention of first tokens", first[: batch.rows]

    projected = random(len(batch.ids), (HEADS + 4) * size)
    norms = random(2, size).float()
    fill = [-1] * (len(batch.first_token) - batch.rows)
    shared = replace(batch, prefixes=np.array([2, -1, -1, 2, *fill], np.int32))
    for view, (query_norm, key_norm) in ((batch, (None, None)), (shared, norms)):
        how = Causal((0, 1, HEADS), angles, 1e-6, query_norm, key_norm)
        yield "causal attention", ops.causal(projected, view, how, weights)[:tokens]
        last = ops.causal(projected, replace(view, read="last"), how, weights)
        yield "causal attention of last tokens", last[: batch.rows]

    x, other = random(2, tokens, width)
    weight = random(width, width) / 8
    bias = random(width)
    scale = random(width)
    norm = ops.norm(scale, bias, 1e-12)
    yield "layer normalisation", norm(x)
    yield "normalisation by the root mean square", ops.rms_norm(scale, 1e-6, 0.0)(x)
    if compiled:
        weights_8 = torch.randint(-127, 128, (width, width), generator=generator).to(torch.int8)
        integers = QuantizedMap(weights_8, torch.full((width,), 4e-5), bias.float())
        same: dict[str, Any] = {"dtype": ops.dtype, "source": None, "kernels": ops.kernels}
        yield "map of 8-bit integers", Int8Linear(integers, **same)(x * 32)
        if dtype is torch.float32:
            return  # the kernels compute no maps of floats in it
        up = Int8Linear(integers, "gelu", target=TensorScale(1 / 16, 100), **same)
        yield "quantized GELU", up(x * 32) / 64
    for activation in ("none", "gelu", "gelu_tanh", "silu"):
        yield f"affine map, {activation},", ops.linear(weight, bias, activation)(x)
    yield "affine map, normalised,", ops.linear(weight, bias).add_norm(x, other, norm)
