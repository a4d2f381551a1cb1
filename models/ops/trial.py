"""Compares operators with torch's plain ones before they are used: a compiler may get them wrong."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headroom.models.batch import Beginning, pack
from headroom.models.checkpoint.texts import ID_BYTES
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.ops.causal import Causal
from headroom.models.ops.int8 import Int8Linear
from headroom.models.ops.int8_products import QuantizedMap, TensorScale
from headroom.models.ops.positions import PLAIN_POSITIONS, Positions, rotations
from headroom.models.ops.relative import Relative, alibi_slopes, log_buckets
from headroom.models.ops.torch import TorchOps

LENGTHS = (1, 16, 37, 70)
HEADS = 3
SPAN = 16
"""Tokens of the sequences that are tried: less and more than a vector, a tile, and a block of queries."""


PARTS = ("attention", "tables", "slopes", "causal", "maps")
"""What may be tried: methods of `_Trial`. On a GPU each kind of attention is several kernels to compile."""


def disagreement(ops: TorchOps, head_size: int, parts: Sequence[str] = PARTS) -> str | None:
    """Return what these operators compute unlike torch's plain ones; None if they agree to their rounding.

    parts: of PARTS. Raises what a kernel, its compiler or a driver raises.
    """
    plain = TorchOps(ops.device, torch.float32)
    bound = 1e-5 if ops.dtype == torch.float32 else 5e-2
    compiled = ops.kernels is not None
    results = (_Trial(each, head_size, ops.dtype, compiled=compiled).results(parts) for each in (ops, plain))
    for (what, ours), (_, exact) in zip(*results, strict=True):
        if not torch.allclose(ours.float(), exact, rtol=bound, atol=bound):
            return f"{what} in {ops.dtype} is not what plain torch computes"
    return None


def _pairs(*lengths: int) -> list[EncodedPair]:
    """Return pairs of these numbers of tokens."""
    return [EncodedPair(bytes(length * ID_BYTES), 1, 0, False) for length in lengths]


class _Trial:
    """The results of some operators on the same random numbers, which are rounded to `dtype`.

    compiled: our compiled kernels are tried, which compute maps of 8-bit integers too.
    """

    def __init__(self, ops: TorchOps, size: int, dtype: torch.dtype, *, compiled: bool) -> None:
        self.ops = ops
        self.size = size
        self.dtype = dtype
        self.compiled = compiled
        self.generator = torch.Generator().manual_seed(0)
        self.batch = pack(_pairs(*LENGTHS), device=ops.device)
        self.angles = rotations(100.0, 2 * max(LENGTHS), size, ops.device)

    def random(self, *shape: int) -> Tensor:
        """Return the next random numbers."""
        numbers = torch.randn(*shape, generator=self.generator).to(self.dtype)
        return numbers.to(self.ops.device, self.ops.dtype)

    def results(self, parts: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield results and their names."""
        for part in parts:
            yield from getattr(self, part)()

    def attention(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the attention of encoders whose scores are of queries and keys alone."""
        yield from self.attended(None, PLAIN_POSITIONS)
        yield from self.attended(self.head_weights(), Positions(window=9))
        yield from self.attended(self.head_weights(), Positions(self.angles, 9))

    def tables(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the attention of encoders that add scores of distances from tables, as DeBERTa does."""
        single_distances = self.of_tables(2 * max(LENGTHS))
        for head_weights in (None, self.head_weights()):
            for relative in (self.of_tables(SPAN), single_distances):
                yield from self.attended(head_weights, Positions(relative=relative))

    def slopes(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the attention of encoders that lower scores by distance, as ALiBi does."""
        slopes = torch.tensor(alibi_slopes(HEADS), device=self.ops.device)
        for head_weights in (None, self.head_weights()):
            yield from self.attended(head_weights, Positions(relative=Relative(slopes=slopes)))

    def attended(self, head_weights: Tensor | None, positions: Positions) -> Iterator[tuple[str, Tensor]]:
        """Yield the attention of all tokens, and of first tokens alone."""
        projected = self.random(len(self.batch.ids), 3 * HEADS * self.size)
        whole = self.ops.attention(projected, self.batch, HEADS, head_weights, positions)
        yield "attention", whole[: sum(LENGTHS)]
        only_first = replace(self.batch, read="first")
        first = self.ops.attention(projected, only_first, HEADS, head_weights, positions)
        yield "attention of first tokens", first[: self.batch.rows]

    def head_weights(self) -> Tensor:
        """Return a random weight of each head of each sequence."""
        return self.random(self.batch.rows, HEADS).float()

    def of_tables(self, buckets: int) -> Relative:
        """Return scores of distances, of random tables."""
        order = log_buckets(buckets, 4 * buckets, max(LENGTHS) - 1).to(self.ops.device)
        keys, queries = self.random(2, HEADS, 2 * buckets, self.size)
        return Relative((keys, queries, order), buckets // 2)

    def causal(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the attention of decoders, with norms and prefixes and without them."""
        projected = self.random(len(self.batch.ids), (HEADS + 4) * self.size)
        weights = self.head_weights()
        query_norm, key_norm = self.random(2, self.size).float()
        shortest, single, beginning, longest = LENGTHS
        pairs = _pairs(beginning + shortest, beginning + longest, single)
        beginnings = [Beginning("shared", beginning)] * 2 + [Beginning("alone", 1)]
        shared = pack(pairs, device=self.ops.device, beginnings=beginnings)  # sequences of LENGTHS too
        plain = Causal((0, 1, HEADS), self.angles, 1e-6)
        for batch, spec in (
            (self.batch, plain),
            (shared, replace(plain, query_norm=query_norm, key_norm=key_norm)),
            (shared, replace(plain, borders=(0, HEADS))),  # as many heads to each head of keys
        ):
            width = (HEADS + 2 * spec.groups) * self.size
            some = projected[:, :width].contiguous()
            whole = self.ops.causal(some, batch, spec, weights)
            yield "causal attention", whole[: sum(LENGTHS)]
            last = self.ops.causal(some, replace(batch, read="last"), spec, weights)
            yield "causal attention of last tokens", last[: batch.rows]

    def maps(self) -> Iterator[tuple[str, Tensor]]:
        """Yield affine maps and normalisations."""
        ops = self.ops
        width = HEADS * self.size
        x, other = self.random(2, sum(LENGTHS), width)
        weight = self.random(width, width) / 8
        bias = self.random(width)
        scale = self.random(width)
        norm = ops.norm(scale, bias, 1e-12)
        yield "layer normalisation", norm(x)
        yield "normalisation by the root mean square", ops.rms_norm(scale, 1e-6, 0.0)(x)
        if self.compiled:
            weight_8 = torch.randint(-127, 128, (width, width), generator=self.generator).to(torch.int8)
            integers = QuantizedMap(weight_8, torch.full((width,), 4e-5), bias.float())
            whole = Int8Linear(integers, dtype=ops.dtype, source=None, kernels=ops.kernels)
            yield "map of 8-bit integers", whole(x * 32)
            if self.dtype is torch.float32:
                return  # the kernels compute no maps of floats in it
            target = TensorScale(1 / 16, 100)
            up = Int8Linear(
                integers, "gelu", dtype=ops.dtype, source=None, target=target, kernels=ops.kernels
            )
            yield "quantized GELU", up(x * 32) / 64
        for activation in ("none", "gelu", "gelu_tanh", "silu"):
            yield f"affine map, {activation},", ops.linear(weight, bias, activation)(x)
        yield "affine map, normalised,", ops.linear(weight, bias).add_norm(x, other, norm)
