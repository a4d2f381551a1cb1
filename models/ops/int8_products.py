"""Products of 8-bit integers: on AMX's tiles, by oneDNN, or in float32, whichever works here (`product_of`).

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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.cores import cpu_flags
from headroom.models.ops.cpu import CHECKED_TORCH, FUSED, fits, sum_on_tiles
from headroom.models.ops.kernels import SIZE_MULTIPLE, Kernels, filled, from_tiles, to_tiles
from headroom.models.ops.torch import FUNCTIONS, Norm, normed

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


def is_whole(width: int) -> bool:
    """Return whether our kernels quantize rows of this width: they read 16 numbers at a time."""
    return width % SIZE_MULTIPLE == 0


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Quantizes floats: q = x·multiplier + shift, clamped to 0 … largest and truncated.

    multiplier, shift: (in,) float32; both None: MIDDLE is added. kernels: those that compute it; None: torch.
    """

    multiplier: Tensor | None
    shift: Tensor | None
    largest: int
    kernels: Kernels | None

    @classmethod
    def of(cls, source: Source, merged: int, width: int, kernels: Kernels | None) -> Self:
        """Return the quantizer of inputs of this width. merged: how many 8-bit values are one."""
        largest = 256 // merged - 1
        middle = ZERO_POINT / merged + 0.5
        kernels = kernels if is_whole(width) else None
        if isinstance(source, ChannelScale):
            multiplier = source.scale.reciprocal() / merged
            return cls(multiplier, middle - source.midpoint * multiplier, largest, kernels)
        if merged == 1 or source is not None:
            return cls(None, None, largest, kernels)
        return cls(torch.full((width,), 1 / merged), torch.full((width,), middle), largest, kernels)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return an input, (T, in), as (T, in) uint8, and which rows hold NaN or an infinity: (T,) bool.

        The second value is None if no row holds any.
        """
        quantize = quantize_by_torch if self.kernels is None else self.kernels.quantize
        return quantize(x, self.multiplier, self.shift, MIDDLE, self.largest)

    @property
    def nbytes(self) -> int:
        """Return the bytes of multiplier and shift."""
        return sum(factor.nbytes for factor in (self.multiplier, self.shift) if factor is not None)


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


@dataclass(frozen=True, slots=True)
class Formats:
    """The number formats of a product of 8-bit integers: of its input and of its result.

    input, output: how they are quantized, in as many bits as the products take; output: None for floats.
    largest: the largest quantized value. dtype: of an output that is not quantized.
    kernels: those that compute here; None if torch does.
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
    """An affine map of 8-bit integers, computed in float32.

    quantizer: that of inputs which are floats. takes_floats: whether the product quantizes them itself.
    """

    takes_floats = False

    def __init__(self, integers: QuantizedMap, formats: Formats, quantizer: Quantizer) -> None:
        self.formats = formats
        self.quantizer = quantizer
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
        return self.finished(FUNCTIONS[self.formats.activation](self.sums(x)))

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Return norm(residual + the map of x), (T, out)."""
        return normed(self.finished(self.sums(x).add_(residual)), norm)

    def sums(self, x: Tensor) -> Tensor:
        """Return the float32 result before activation and rounding."""
        source = self.formats.input
        products = F.linear(x.float().sub_(source.zero_point), self.weight)
        return torch.addcmul(self.bias, products, self.scale * source.scale)

    def finished(self, y: Tensor) -> Tensor:
        """Round a float32 result to the output's format; its memory may become the result."""
        target = self.formats.output
        if target is None:
            return y.to(self.formats.dtype)
        y = y.div_(target.scale).round_().add_(target.zero_point)
        return y.clamp_(0, self.formats.largest).to(torch.uint8)


class OneDnnProduct(FloatProduct):
    """The same by oneDNN's integer products, with the activation or the residual fused."""

    def lay_out(self, weight: Tensor) -> None:
        """Store the weight as oneDNN reads it."""
        self.weight = torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)
        self.zero_points = torch.zeros(len(weight), dtype=torch.int64)
        # Without AVX-512, oneDNN's GELU takes as long as the whole product of a small model.
        by_kernels = self.formats.largest < 255 and self.formats.is_quantized_gelu
        self.gelu_kernels = self.formats.kernels if by_kernels else None

    def integers(self) -> Tensor:
        """Return the weight, (out, in) int8."""
        return self.weight.to_dense().t()

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map, x: (T, in) uint8 → (T, out)."""
        activation = self.formats.activation
        target = self.formats.output
        if self.gelu_kernels is not None and target is not None:
            return self.gelu_kernels.quantize_gelu(
                self.sums(x),
                1 / target.scale,
                target.zero_point + 0.5,
                self.formats.largest,
                by_tanh=activation == "gelu_tanh",
            )
        if activation not in FUSED:
            return super().__call__(x)
        if target is None:
            return self._product(x, TensorScale(1.0, 0), self.formats.dtype, activation)
        y = self._product(x, target, torch.uint8, activation)
        return y if self.formats.largest == 255 else y.clamp_(max=self.formats.largest)

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Return norm(residual + the map of x), (T, out)."""
        source = self.formats.input
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
            output_dtype=self.formats.dtype,
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
        source = self.formats.input
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
    """The same by our kernel on AMX's tiles, which also quantizes inputs, and normalises."""

    def lay_out(self, weight: Tensor) -> None:
        """Store the weight as tiles, and start, scale and bias of their sums."""
        source = self.formats.input
        self.shape = weight.shape
        self.takes_floats = is_whole(weight.shape[1])
        self.weight = to_tiles(weight)
        start = filled(-source.zero_point * weight.sum(1, dtype=torch.int32))
        self.factors = start, filled(self.scale * source.scale), filled(self.bias)
        quantizer = self.quantizer
        self._source: tuple[Tensor | None, Tensor | None, float] = (None, None, MIDDLE)
        if self.takes_floats:
            self._source = (quantizer.multiplier, quantizer.shift, MIDDLE)

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
        target = self.formats.output
        if target is None:
            return self._map(x, self.formats.activation)
        return self._map(
            x, f"quantized_{self.formats.activation}", target=(1 / target.scale, target.zero_point + 0.5)
        )

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Return norm(residual + the map of x), (T, out)."""
        return sum_on_tiles(self._map, x, residual, norm)

    def _map(self, x: Tensor, finish: str, *options: Any, **named: Any) -> Tensor:
        assert self.formats.kernels is not None
        return self.formats.kernels.map_int8(
            x, self.weight, self.factors, self.shape[0], finish, *options, source=self._source, **named
        )


def product_of(
    integers: QuantizedMap,
    activation: str,
    *,
    dtype: torch.dtype,
    source: Source,
    target: TensorScale | None,
    kernels: Kernels | None,
) -> FloatProduct:
    """Return the fastest product for a map on this processor.

    dtype: of an output that is not quantized. source: how the input is quantized. target: how the output is;
    None for floats. kernels: those that compute here; None: torch does.
    """
    bits = input_bits()
    # How many neighbouring 8-bit values the products see as one: 2 if their inputs have 7 bits.
    merged = 2 ** (8 - bits) if bits else 1
    given = source if isinstance(source, TensorScale) else TensorScale(1.0, ZERO_POINT)
    formats = Formats(
        activation=activation,
        input=given.merged(merged),
        output=None if target is None else target.merged(merged),
        largest=256 // merged - 1,
        dtype=dtype,
        kernels=kernels,
    )
    quantizer = Quantizer.of(source, merged, integers.weight.shape[1], kernels)
    on_tiles = bits == 8 and fits(kernels, dtype, activation)
    if on_tiles and (target is None or formats.is_quantized_gelu):
        return TileProduct(integers, formats, quantizer)
    return OneDnnProduct(integers, formats, quantizer) if bits else FloatProduct(integers, formats, quantizer)


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
