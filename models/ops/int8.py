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
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.cores import cpu_flags
from models.ops.cpu import CHECKED_TORCH, FUSED, fits
from models.ops.kernels import Kernels, filled, from_tiles, to_tiles
from models.ops.torch import FUNCTIONS, SIZE_MULTIPLE, Linear, Norm, Tensors, normed

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
        weight, scale, bias = integers
        self.activation, self.dtype = activation, dtype
        self.source, self.target, self._kernels = source, target, kernels
        self._shape, self._scale, self._bias = weight.shape, scale.contiguous(), bias.contiguous()
        # The kernel reads 16 numbers at a time, so with another width it would read into the next row.
        whole = weight.shape[1] % SIZE_MULTIPLE == 0
        self._quantize = kernels.quantize if kernels is not None and whole else quantize_by_torch
        bits = input_bits()
        self._merged = 2 ** (8 - bits) if bits else 1
        """How many neighbouring 8-bit values the products see as one: 1, or 2 if their inputs have 7 bits."""
        self._largest = 256 // self._merged - 1
        own = source if isinstance(source, TensorScale) else TensorScale(1.0, ZERO_POINT)
        self._input_scale, self._zero_point = self._of_products(own)
        self._multiplier, self._shift = self._factors()
        self._of_tiles: tuple[Tensor, Tensor, Tensor] | None = None
        """Start, scale and bias of the sums on tiles."""
        self._weight_zero_points: Tensor | None = None
        """Of oneDNN's products."""
        is_gelu = activation in ("gelu", "gelu_tanh")
        if bits == 8 and fits(kernels, dtype, activation) and (target is None or is_gelu):
            start = -self._zero_point * weight.sum(1, dtype=torch.int32)
            self._of_tiles = filled(start), filled(scale * self._input_scale), filled(self._bias)
            self._weight = to_tiles(weight)
        elif bits:
            self._weight_zero_points = torch.zeros(len(weight), dtype=torch.int64)
            self._weight = torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)
        else:
            self._weight = weight.float()
        # Without AVX-512, oneDNN's GELU takes as long as the whole product of a small model.
        self._rounds_gelu = self._merged > 1 and kernels is not None and target is not None and is_gelu
        self._takes_input_as_it_is = isinstance(source, TensorScale) or (self._of_tiles is not None and whole)
        self.bias = self._bias
        if isinstance(source, ChannelScale):
            self.bias = self._bias - self.weight @ source.midpoint

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map as `Linear` does. x: (T, in) floats, or uint8 if `source` is TensorScale."""
        return self._compute(x)

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Compute sum and norm as `Linear` does."""
        return self._compute(x, residual, norm)

    def _compute(self, x: Tensor, residual: Tensor | None = None, norm: Norm | None = None) -> Tensor:
        not_finite = None
        if not self._takes_input_as_it_is:
            x, not_finite = self.quantize(x)
        y = self._multiply(x, residual, norm)
        if not_finite is not None and self.target is None:  # 8 bits cannot hold NaN; the residual can
            y.masked_fill_(not_finite[:, None], torch.nan)
        return y

    def times(self, other: Linear, x: Tensor) -> Tensor:
        """Compute the product of this map and another as `Linear` does; their input is quantized once."""
        assert isinstance(other, Int8Linear)
        quantized, not_finite = self.quantize(x)
        y = other._multiply(quantized).mul_(self._multiply(quantized))
        return y if not_finite is None else y.masked_fill_(not_finite[:, None], torch.nan)

    def weighted(self, x: Tensor, weights: Tensor) -> Tensor:
        """Weight an input as `Linear` does; one that is quantized already takes weights of 0 and 1 alone."""
        if not isinstance(self.source, TensorScale):
            return super().weighted(x, weights)
        off = (weights == 0).to(torch.uint8)  # 1 becomes the zero point
        return x.bitwise_and_((1 - off) * 255).bitwise_or_(off * self._zero_point)

    def _multiply(self, x: Tensor, residual: Tensor | None = None, norm: Norm | None = None) -> Tensor:
        """Compute the map of 8-bit integers, and the norm of it and a residual; tiles quantize floats
        themselves."""
        if self._kernels is None or self._of_tiles is None:
            y = self._product(x, residual)
            return y if residual is None else normed(y, norm)
        how = x, self._weight, self._of_tiles, self._shape[0]
        source = self._multiplier, self._shift, MIDDLE
        if self.target is not None:
            scale, zero_point = self._of_products(self.target)
            target = 1 / scale, zero_point + 0.5
            return self._kernels.affine(*how, f"quantized_{self.activation}", None, target, source=source)
        if residual is None:
            return self._kernels.affine(*how, self.activation, source=source)
        return self._kernels.affine(*how, "add", residual, source=source, norm=norm)

    def _product(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """Compute the map of 8-bit integers by oneDNN or torch."""
        scale, zero_point = (1.0, 0) if self.target is None else self._of_products(self.target)
        product, inputs = torch.ops.onednn.qlinear_pointwise, (x, self._input_scale, self._zero_point)
        weight = self._weight, self._scale, self._weight_zero_points
        y: Tensor
        if self._weight_zero_points is None:
            products = F.linear(x.float().sub_(self._zero_point), self._weight)
            y = torch.addcmul(self._bias, products, self._scale * self._input_scale)
        elif self._rounds_gelu or self.activation not in FUSED:
            y = product(*inputs, *weight, self._bias, 1.0, 0, torch.float32, "none", [], "")
        elif residual is not None:
            sums: tuple[Any, ...] = "sum", 1.0, "none", [], ""  # written into the residual
            y = product.binary(*inputs, *weight, residual, self._bias, 1.0, 0, self.dtype, 1.0, 0, *sums)
            return y
        else:
            name, algorithm = FUSED[self.activation]
            dtype = self.dtype if self.target is None else torch.uint8
            y = product(*inputs, *weight, self._bias, scale, zero_point, dtype, name, [], algorithm)
            return y if self.target is None or self._merged == 1 else y.clamp_(max=self._largest)
        if self._rounds_gelu and self._kernels is not None:
            how, by_tanh = (1 / scale, zero_point + 0.5, self._largest), self.activation == "gelu_tanh"
            return self._kernels.quantize_gelu(y, *how, by_tanh=by_tanh)
        y = FUNCTIONS[self.activation](y)
        if self.target is None:
            return (y if residual is None else y.add_(residual)).to(self.dtype)
        return y.div_(scale).round_().add_(zero_point).clamp_(0, self._largest).to(torch.uint8)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Quantize an input, (T, in) → (T, in) uint8, and say which rows hold NaN or an infinity.

        The second value is (T,) bool; None if there is no such row.
        """
        return self._quantize(x, self._multiplier, self._shift, MIDDLE, self._largest)

    def _factors(self) -> tuple[Tensor | None, Tensor | None]:
        """Return multiplier and shift of `quantize`, (in,) each; None if only ZERO_POINT is added."""
        middle = ZERO_POINT / self._merged + 0.5
        if isinstance(self.source, ChannelScale):
            multiplier = self.source.scale.reciprocal() / self._merged
            return multiplier, middle - self.source.midpoint * multiplier
        if self._merged == 1 or self.source is not None:
            return None, None
        return torch.full(self._shape[1:], 1 / self._merged), torch.full(self._shape[1:], middle)

    @property
    def weight(self) -> Tensor:
        """Return the float weight that the integers stand for, (out, in); a copy."""
        scale = self.source.scale if isinstance(self.source, TensorScale) else 1.0
        weight = self._integers().float() * (self._scale * scale)[:, None]
        return weight / self.source.scale if isinstance(self.source, ChannelScale) else weight

    @property
    def nbytes(self) -> int:
        """Return the bytes of weight, scales and bias."""
        parts = self._weight, self._scale, self._bias, self._multiplier, self._shift, *(self._of_tiles or ())
        return sum(part.nbytes for part in parts if part is not None)

    def rows(self, index: Tensor) -> Int8Linear:
        """Return the map with only the outputs `index`, (n,) int64."""
        integers = QuantizedMap(self._integers()[index], self._scale[index], self._bias[index])
        return self._with(integers, self.source)

    def columns(self, index: Tensor) -> Int8Linear:
        """Return the map of only the inputs `index`, (n,) int64, as if the others were 0."""
        integers, bias, source = self._integers()[:, index], self._bias, self.source
        if isinstance(source, ChannelScale):
            # The integers' bias includes the midpoints of all inputs; now those of the chosen ones alone.
            source = ChannelScale(source.scale[index], source.midpoint[index])
            bias = self.bias + self.weight[:, index] @ source.midpoint
        return self._with(QuantizedMap(integers, self._scale, bias), source)

    def _with(self, integers: QuantizedMap, source: Source) -> Int8Linear:
        same: dict[str, Any] = {"dtype": self.dtype, "target": self.target}
        return Int8Linear(integers, self.activation, source=source, kernels=self._kernels, **same)

    def _of_products(self, tensor: TensorScale) -> tuple[float, int]:
        """Return scale and zero point of as many bits as the products take."""
        return tensor.scale * self._merged, round(tensor.zero_point / self._merged)

    def _integers(self) -> Tensor:
        """Return the weight's integers, (out, in) int8."""
        if self._of_tiles is not None:
            outputs, inputs = self._shape
            return from_tiles(self._weight)[:outputs, :inputs].contiguous()
        return (
            self._weight.to(torch.int8) if self._weight_zero_points is None else self._weight.to_dense().t()
        )


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
    scale, zeros = torch.ones(48), torch.zeros(48, dtype=torch.int64)
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
    x: Tensor, multiplier: Tensor | None, shift: Tensor | None, zero_point: float, largest: int = 255
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
    """Return an int8 checkpoint's affine map as `models.weights.Weights.map` does, on the CPU.

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
    """Return how the input of a map is quantized (`models.checkpoint.shapes.int8_shapes`)."""
    scale, midpoint, zero_point = (
        tensors.get(f"{name}.input_{part}") for part in ("scale", "offset", "zero_point")
    )
    if scale is not None and zero_point is not None:
        return TensorScale(scale.item(), int(zero_point))
    return None if scale is None or midpoint is None else ChannelScale(scale, midpoint)
