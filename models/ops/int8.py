"""Affine maps of 8-bit inputs and weights, by AMX's tiles or oneDNN's integer products if they work here.

An input x is quantized to q = clamp(round(x·multiplier + shift), 0, 255). The weight is int8 with one scale
for each row of W. Sums are exact in int32. The output is bfloat16 or float32, or quantized again if the next
consumer is a product; LayerNorm, softmax and residuals never see 8 bits.

With VNNI (of AVX-512, or AVX-VNNI without it), oneDNN sums four products of an unsigned and a signed byte
exactly. Without VNNI, it first sums two of them in 16 bits: 255·127·2 does not fit, 127·127·2 does. So inputs
get 7 bits there, and every sum is exact: two neighbouring values of q become one, scales are twice as large,
zero points half. Without integer products, float32 products of the same integers give the same answers,
slower. So it is on ARM, where oneDNN has fast code for some kinds of integer products and processors only;
the rest takes a hundred times as long (https://github.com/uxlfoundation/oneDNN/pull/1885, /pull/3684).

`torch.ops.onednn.qlinear_pointwise` is private to torch. It is used only on the torch release on which it was
checked, and after a self-test with the largest sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.cores import cpu_flags
from headroom.models.ops.cpu import CHECKED_TORCH, FUSED, fits, sum_on_tiles
from headroom.models.ops.kernels import SIZE_MULTIPLE, Kernels, filled, from_tiles, to_tiles
from headroom.models.ops.torch import FUNCTIONS, Linear, Norm, Tensors, normed

ZERO_POINT = 128
"""The quantized value that stands for the midpoint of a channel."""

MIDDLE = ZERO_POINT + 0.5
"""What is added to an input without scales before it is truncated to an integer."""

ROWS = (1, 3, 16, 70)
"""Rows of the products that are tried: oneDNN has other code for few of them."""


@dataclass(frozen=True, slots=True)
class ChannelScale:
    """Quantization of an input channel by channel: x ≈ scale·(q − 128) + midpoint. Both: (in,) float32."""

    scale: Tensor
    midpoint: Tensor


@dataclass(frozen=True, slots=True)
class TensorScale:
    """Quantization of a whole tensor: x ≈ scale·(q − zero_point). A product can write it itself."""

    scale: float
    zero_point: int

    def merged(self, values: int) -> Self:
        """Return the quantization in which so many neighbouring values of q are one."""
        return replace(self, scale=self.scale * values, zero_point=round(self.zero_point / values))


Source = ChannelScale | TensorScale | None
"""How a map's input is quantized. TensorScale: it already is. None: with scale 1 and midpoint 0."""


class QuantizedMap(NamedTuple):
    """The integers of an affine map: y = weight_scale·((q − zero point)·weightᵀ) + bias.

    weight: (out, in) int8; weight_scale: (out,) float32, the value of one unit of a row's integer sum;
    bias: (out,) float32, which includes the effect of the input's midpoint.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Format:
    """The number formats of a product of 8-bit integers: of its input and of its result.

    input, output: how they are quantized, in as many bits as the products take; output: None for floats.
    largest: the largest quantized value. dtype: of an output that is not quantized.
    kernels: those that quantize here; None if torch does.
    """

    activation: str
    input: TensorScale
    output: TensorScale | None
    largest: int
    dtype: torch.dtype
    kernels: Kernels | None

    @property
    def is_quantized_gelu(self) -> bool:
        """Return whether the output is a quantized GELU, which our kernels compute."""
        return self.output is not None and self.activation in ("gelu", "gelu_tanh")


class FloatProduct:
    """An affine map of 8-bit integers, computed in float32."""

    def __init__(self, integers: QuantizedMap, format: Format) -> None:  # noqa: A002
        self.format = format
        self.scale = integers.weight_scale.contiguous()
        self.bias = integers.bias.contiguous()
        self.lay_out(integers.weight)

    def lay_out(self, weight: Tensor) -> None:
        """Store the weight, (out, in) int8, as the product reads it."""
        self.weight = weight.float()

    def integers(self) -> Tensor:
        """Return the weight, (out, in) int8."""
        return self.weight.to(torch.int8)

    @property
    def nbytes(self) -> int:
        """Return the bytes of weight, scales and bias."""
        return self.weight.nbytes + self.scale.nbytes + self.bias.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map, x: (T, in) uint8 → (T, out)."""
        return self.finished(FUNCTIONS[self.format.activation](self.sums(x)))

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Compute sum and norm as `Linear` does."""
        return normed(self.finished(self.sums(x).add_(residual)), norm)

    def sums(self, x: Tensor) -> Tensor:
        """Return the float32 result before activation and rounding."""
        source = self.format.input
        products = F.linear(x.float().sub_(source.zero_point), self.weight)
        return torch.addcmul(self.bias, products, self.scale * source.scale)

    def finished(self, y: Tensor) -> Tensor:
        """Round a float32 result to the output's format; its memory may become the result."""
        target = self.format.output
        if target is None:
            return y.to(self.format.dtype)
        y = y.div_(target.scale).round_().add_(target.zero_point)
        return y.clamp_(0, self.format.largest).to(torch.uint8)


class OneDnnProduct(FloatProduct):
    """The same by oneDNN's integer products, with the activation or the residual fused."""

    def lay_out(self, weight: Tensor) -> None:
        """Store the weight as oneDNN reads it."""
        self.weight = torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)
        self.zero_points = torch.zeros(len(weight), dtype=torch.int64)
        # Without AVX-512, oneDNN's GELU takes as long as the whole product of a small model.
        by_kernels = self.format.largest < 255 and self.format.is_quantized_gelu
        self.gelu_kernels = self.format.kernels if by_kernels else None

    def integers(self) -> Tensor:
        """Return the weight, (out, in) int8."""
        return self.weight.to_dense().t()

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map, x: (T, in) uint8 → (T, out)."""
        activation = self.format.activation
        target = self.format.output
        if self.gelu_kernels is not None and target is not None:
            return self.gelu_kernels.quantize_gelu(
                self.sums(x),
                1 / target.scale,
                target.zero_point + 0.5,
                self.format.largest,
                by_tanh=activation == "gelu_tanh",
            )
        if activation not in FUSED:
            return super().__call__(x)
        if target is None:
            return self._product(x, TensorScale(1.0, 0), self.format.dtype, activation)
        y = self._product(x, target, torch.uint8, activation)
        return y if self.format.largest == 255 else y.clamp_(max=self.format.largest)

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Compute sum and norm as `Linear` does."""
        source = self.format.input
        y = torch.ops.onednn.qlinear_pointwise.binary(
            x,
            source.scale,
            source.zero_point,
            self.weight,
            self.scale,
            self.zero_points,
            other=residual,
            bias=self.bias,
            output_scale=1.0,
            output_zero_point=0,
            output_dtype=self.format.dtype,
            other_scale=1.0,
            other_zp=0,
            binary_post_op="sum",  # written into the residual
            binary_alpha=1.0,
            unary_post_op="none",
            unary_post_op_args=[],
            unary_post_op_algorithm="",
        )
        return normed(y, norm)

    def sums(self, x: Tensor) -> Tensor:
        """Return the float32 result before activation and rounding."""
        return self._product(x, TensorScale(1.0, 0), torch.float32, "none")

    def _product(self, x: Tensor, target: TensorScale, dtype: torch.dtype, activation: str) -> Tensor:
        source = self.format.input
        name, algorithm = FUSED[activation]
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            x,
            source.scale,
            source.zero_point,
            self.weight,
            self.scale,
            self.zero_points,
            bias=self.bias,
            output_scale=target.scale,
            output_zero_point=target.zero_point,
            output_dtype=dtype,
            post_op_name=name,
            post_op_args=[],
            post_op_algorithm=algorithm,
        )
        return y


class TileProduct(FloatProduct):
    """The same by our kernel on AMX's tiles, which also quantizes inputs, and normalises.

    source: multiplier, shift and middle of `quantize`, for inputs that are floats.
    """

    source: tuple[Tensor | None, Tensor | None, float] = (None, None, MIDDLE)

    def lay_out(self, weight: Tensor) -> None:
        """Store the weight as tiles, and start, scale and bias of their sums."""
        source = self.format.input
        self.shape = weight.shape
        self.weight = to_tiles(weight)
        start = filled(-source.zero_point * weight.sum(1, dtype=torch.int32))
        self.factors = start, filled(self.scale * source.scale), filled(self.bias)

    def integers(self) -> Tensor:
        """Return the weight, (out, in) int8."""
        outputs, inputs = self.shape
        return from_tiles(self.weight)[:outputs, :inputs].contiguous()

    @property
    def nbytes(self) -> int:
        """Return the bytes of weight, scales and bias."""
        return super().nbytes + sum(factor.nbytes for factor in self.factors)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map, x: (T, in) uint8, or bfloat16 without NaN or infinities that reach others."""
        target = self.format.output
        if target is None:
            return self._map(x, self.format.activation)
        return self._map(
            x, f"quantized_{self.format.activation}", target=(1 / target.scale, target.zero_point + 0.5)
        )

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Compute sum and norm as `Linear` does."""
        return sum_on_tiles(self._map, x, residual, norm)

    def _map(self, x: Tensor, finish: str, *options: Any, **named: Any) -> Tensor:
        assert self.format.kernels is not None
        return self.format.kernels.map_int8(
            x, self.weight, self.factors, self.shape[0], finish, *options, source=self.source, **named
        )


class Int8Linear(Linear):
    """One affine map of 8-bit inputs and weights.

    dtype: of an output that is not quantized. target: how to quantize the output; None for floats. Source and
    target are of 8 bits, whatever the products take. kernels: those that quantize here; None for torch.
    `weight` and `bias` are those of the float map that this one stands for.
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
        inputs = integers.weight.shape[1]
        # The kernel reads 16 numbers at a time, so with another width it would read into the next row.
        whole = inputs % SIZE_MULTIPLE == 0
        self._quantize = kernels.quantize if kernels is not None and whole else quantize_by_torch
        bits = input_bits()
        # How many neighbouring 8-bit values the products see as one: 2 if their inputs have 7 bits.
        merged = 2 ** (8 - bits) if bits else 1
        self._multiplier, self._shift = _factors(source, merged, inputs)
        given = source if isinstance(source, TensorScale) else TensorScale(1.0, ZERO_POINT)
        layout = Format(
            activation=activation,
            input=given.merged(merged),
            output=None if target is None else target.merged(merged),
            largest=256 // merged - 1,
            dtype=dtype,
            kernels=kernels,
        )
        on_tiles = bits == 8 and fits(kernels, dtype, activation)
        product = OneDnnProduct if bits else FloatProduct
        if on_tiles and (target is None or layout.is_quantized_gelu):
            product = TileProduct
        self._product = product(integers, layout)
        self._takes_input_as_it_is = isinstance(source, TensorScale)
        if isinstance(self._product, TileProduct) and whole:
            self._takes_input_as_it_is = True
            self._product.source = self._multiplier, self._shift, MIDDLE
        self.bias = self._product.bias
        if isinstance(source, ChannelScale):
            self.bias = self.bias - self.weight @ source.midpoint

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map as `Linear` does. x: (T, in) floats, or uint8 if `source` is TensorScale."""
        x, not_finite = self._given(x)
        return self._restored(self._product(x), not_finite)

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Compute sum and norm as `Linear` does."""
        x, not_finite = self._given(x)
        return self._restored(self._product.add_norm(x, residual, norm), not_finite)

    def times(self, other: Linear, x: Tensor) -> Tensor:
        """Compute the product of this map and another as `Linear` does; their input is quantized once."""
        assert isinstance(other, Int8Linear)
        quantized, not_finite = self.quantize(x)
        return self._restored(other._product(quantized).mul_(self._product(quantized)), not_finite)

    def mask_inputs(self, x: Tensor, weights: Tensor) -> Tensor:
        """Weight an input as `Linear` does; one that is quantized already takes weights of 0 and 1 alone."""
        if not isinstance(self.source, TensorScale):
            return super().mask_inputs(x, weights)
        off = (weights == 0).to(torch.uint8)  # 1 becomes the zero point
        zero_point = self._product.format.input.zero_point
        return x.bitwise_and_((1 - off) * 255).bitwise_or_(off * zero_point)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Quantize an input, (T, in) → (T, in) uint8, and say which rows hold NaN or an infinity.

        The second value is (T,) bool; None if there is no such row.
        """
        return self._quantize(x, self._multiplier, self._shift, MIDDLE, self._product.format.largest)

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
        factors = self._multiplier, self._shift
        return self._product.nbytes + sum(factor.nbytes for factor in factors if factor is not None)

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


def _factors(source: Source, merged: int, inputs: int) -> tuple[Tensor | None, Tensor | None]:
    """Return multiplier and shift of `quantize`, (inputs,) each; None if only ZERO_POINT is added."""
    middle = ZERO_POINT / merged + 0.5
    if isinstance(source, ChannelScale):
        multiplier = source.scale.reciprocal() / merged
        return multiplier, middle - source.midpoint * multiplier
    if merged == 1 or source is not None:
        return None, None
    return torch.full((inputs,), 1 / merged), torch.full((inputs,), middle)


@functools.cache
def input_bits() -> int:
    """Return how many bits of an input oneDNN's products take here: 8, 7, or 0 if they cannot be used."""
    if not torch.__version__.startswith(CHECKED_TORCH) or not torch.backends.mkldnn.enabled:
        return 0
    features = cpu_flags()
    if not features.isdisjoint({"avx512_vnni", "avx_vnni"}) and is_exact(8):
        return 8
    return 7 if "avx2" in features and is_exact(7) else 0


def is_exact(bits: int) -> bool:
    """Try the largest sums of inputs of `bits` bits: any that does not fit is wrong by half."""
    largest = 2**bits - 1
    signs = torch.tensor([127, -127]).repeat(24)[:, None]
    weight = (signs * torch.ones(48, 160, dtype=torch.int64)).to(torch.int8)
    scale = torch.ones(48)
    zeros = torch.zeros(48, dtype=torch.int64)
    plain: tuple[Any, ...] = 1.0, 0, torch.float32, "none", [], ""
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        for rows in ROWS:
            x = torch.full((rows, 160), largest, dtype=torch.uint8)
            sums = torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, packed, scale, zeros, None, *plain)
            if not torch.equal(sums, F.linear(x.float(), weight.float())):
                return False
    except (RuntimeError, AttributeError):
        return False
    return True


def quantize_by_torch(
    x: Tensor, multiplier: Tensor | None, shift: Tensor | None, zero_point: float, largest: int
) -> tuple[Tensor, Tensor]:
    """Return x·multiplier + shift (or x + zero_point without them), clamped to 0 … largest and truncated.

    x: (T, D); multiplier, shift: (D,) float32, both or neither.
    Returns (T, D) uint8, and which rows hold NaN or an infinity, (T,) bool.
    """
    x = x.float()
    y = x + zero_point if multiplier is None or shift is None else torch.addcmul(shift, x, multiplier)
    return y.clamp_(0, largest).to(torch.uint8), ~(x * 0).sum(1).isfinite()


def read_map(
    tensors: Tensors, names: Sequence[str], *, reads: str, feeds: str | None, **how: Any
) -> Int8Linear:
    """Return an int8 checkpoint's affine map as `headroom.models.weights.Weights.map` does, on the CPU.

    how: what else `Int8Linear` takes.
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
