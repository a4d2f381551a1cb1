"""Affine maps whose inputs and weights have 8 bits, and how an int8 checkpoint holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headroom.models.ops.int8_products import (
    ChannelScale,
    QuantizedMap,
    Source,
    TensorScale,
    product_of,
)
from headroom.models.ops.kernels import Kernels
from headroom.models.ops.torch import Linear, Norm, Tensors


class Int8Linear(Linear):
    """One affine map of 8-bit inputs and weights.

    dtype: number format of an output that is not quantized. source: how the input is quantized. target: how
    to quantize the output; None for floats. Both have 8 bits, whatever the products take. kernels: those that
    compute here; None: torch does. `weight` and `bias` are those of the float map that this one stands for.
    """

    def __init__(
        self,
        integers: QuantizedMap,
        activation: str = "none",
        *,
        dtype: torch.dtype,
        source: Source,
        target: TensorScale | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.activation = activation
        self.dtype = dtype
        self.source = source
        self.target = target
        self._kernels = kernels
        self._product = product_of(
            integers, activation, dtype=dtype, source=source, target=target, kernels=kernels
        )
        self._takes_input_as_it_is = isinstance(source, TensorScale) or self._product.takes_floats
        self.bias = self._product.bias
        if isinstance(source, ChannelScale):
            self.bias = self.bias - self.weight @ source.midpoint

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map. x: (T, in) floats, or uint8 if `source` is TensorScale."""
        x, not_finite = self._given(x)
        return self._restored(self._product(x), not_finite)

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Return norm(residual + the map of x), (T, out)."""
        x, not_finite = self._given(x)
        return self._restored(self._product.add_norm(x, residual, norm), not_finite)

    def times(self, other: Linear, x: Tensor) -> Tensor:
        """Return this map of x times the other one's, (T, out); their input is quantized once."""
        assert isinstance(other, Int8Linear)
        quantized, not_finite = self.quantize(x)
        return self._restored(other._product(quantized).mul_(self._product(quantized)), not_finite)

    def mask_inputs(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted input; one that is quantized already takes weights of 0 and 1 alone."""
        if not isinstance(self.source, TensorScale):
            return super().mask_inputs(x, weights)
        off = (weights == 0).to(torch.uint8)  # 1 becomes the zero point
        zero_point = self._product.formats.input.zero_point
        return x.bitwise_and_((1 - off) * 255).bitwise_or_(off * zero_point)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Quantize an input, (T, in) → (T, in) uint8, and say which rows hold NaN or an infinity.

        The second value is (T,) bool; None if there is no such row.
        """
        return self._product.quantizer(x)

    def _given(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return an input as the product takes it, and which rows hold NaN or an infinity if that is lost."""
        return (x, None) if self._takes_input_as_it_is else self.quantize(x)

    def _restored(self, y: Tensor, not_finite: Tensor | None) -> Tensor:
        """Return a result whose rows are NaN again if 8 bits lost it; those of 8 bits cannot be."""
        if not_finite is None or self.target is not None:
            return y
        return y.masked_fill_(not_finite[:, None], torch.nan)

    @property
    def weight(self) -> Tensor:
        """Return the float weight that the integers stand for, (out, in); a copy."""
        scale = self.source.scale if isinstance(self.source, TensorScale) else 1.0
        weight = self._product.integers().float() * (self._product.scale * scale)[:, None]
        return weight / self.source.scale if isinstance(self.source, ChannelScale) else weight

    @property
    def nbytes(self) -> int:
        """Return the bytes of weight, scales and bias."""
        return self._product.nbytes + self._product.quantizer.nbytes

    def rows(self, index: Tensor) -> Int8Linear:
        """Return the map with only the outputs `index`, (n,) int64."""
        product = self._product
        integers = QuantizedMap(product.integers()[index], product.scale[index], product.bias[index])
        return self._with(integers, self.source)

    def columns(self, index: Tensor) -> Int8Linear:
        """Return the map of only the inputs `index`, (n,) int64, as if the others were 0."""
        product = self._product
        bias = product.bias
        source = self.source
        if isinstance(source, ChannelScale):
            # The integers' bias includes the midpoints of all inputs; now those of the chosen ones alone.
            source = ChannelScale(source.scale[index], source.midpoint[index])
            bias = self.bias + self.weight[:, index] @ source.midpoint
        return self._with(QuantizedMap(product.integers()[:, index], product.scale, bias), source)

    def _with(self, integers: QuantizedMap, source: Source) -> Int8Linear:
        return Int8Linear(
            integers,
            self.activation,
            dtype=self.dtype,
            source=source,
            target=self.target,
            kernels=self._kernels,
        )


def read_map(
    tensors: Tensors, names: Sequence[str], *, reads: str, feeds: str | None, **how: Any
) -> Int8Linear:
    """Return an affine map of an int8 checkpoint, on the CPU.

    names: of the maps that are one, row by row. reads, feeds: names of what it reads and of the map that its
    output feeds, whose scales the checkpoint has. how: what else `Int8Linear` takes.
    """
    weight, scale, bias = (
        torch.cat([tensors[f"{name}.{part}"] for name in names]) for part in QuantizedMap._fields
    )
    target = None if feeds is None else _quantization(tensors, feeds)
    assert target is None or isinstance(target, TensorScale)
    integers = QuantizedMap(weight, scale, bias.float())
    return Int8Linear(integers, source=_quantization(tensors, reads), target=target, **how)


def _quantization(tensors: Tensors, name: str) -> Source:
    """Return how the input of a map is quantized (`headroom.models.checkpoint.shapes.int8_shapes`)."""
    scale, midpoint, zero_point = (
        tensors.get(f"{name}.input_{part}") for part in ("scale", "offset", "zero_point")
    )
    if scale is not None and zero_point is not None:
        return TensorScale(scale.item(), int(zero_point))
    return None if scale is None or midpoint is None else ChannelScale(scale, midpoint)
