"""y = act(x·Wᵀ + b) [+ residual] with 8-bit inputs and weights, by oneDNN's integer products where they work.

An input x is rounded to one of 256 steps, q = clamp(round(x·multiplier + shift), 0, 255); the weight is int8
with one scale for each row of W; sums are exact in int32, and what comes out is bfloat16 or float32, or again
8-bit steps where the next consumer is a product (q·kᵀ, norms and residuals never see 8 bits).

`torch.ops.onednn.qlinear_pointwise` is private to torch: it is used only on the torch release and the
processors it was checked on (VNNI: without it, oneDNN's 16-bit sums may overflow), after a self-test at first
use; everywhere else float32 products of the same integers give the same answers, slower.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models import kernels
from models.linear import CHECKED_TORCH, Linear, activate

MIDDLE = 128
"""The step that stands for an input's midpoint."""

_FUSED = {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


@dataclass(frozen=True, slots=True)
class Steps:
    """How a product's input becomes 8-bit steps: x ≈ scale·(q − 128) + offset.

    scale, offset: (in,) float32, one for each input channel; None: scale 1 and offset 0.
    """

    scale: Tensor | None = None
    offset: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TensorSteps:
    """Steps of one size for a whole tensor, x ≈ scale·(q − zero_point), as a product writes them itself."""

    scale: float
    zero_point: int


class Product(NamedTuple):
    """An affine map of steps: y = weight_scale·((q − z)·weightᵀ) + bias, z the step that stands for 0.

    weight: (out, in) int8; weight_scale: (out,) float32, what one unit of a row's integer sum is worth;
    bias: (out,) float32, the effect of the input's offset included.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor


class Int8Linear(Linear):
    """One affine map of 8-bit inputs and weights.

    dtype: of the output, where it is not steps. given: how the input becomes steps; TensorSteps where it
    already is. gives: the steps to write instead of numbers, None for numbers.
    Attributes `weight` and `bias` show the float map of the unrounded input that this one stands for.
    """

    __slots__ = ("_bias", "_multiplier", "_scale", "_shift", "_zeros", "dtype", "given", "gives")

    def __init__(
        self,
        product: Product,
        activation: str = "none",
        *,
        dtype: torch.dtype,
        given: Steps | TensorSteps,
        gives: TensorSteps | None = None,
    ) -> None:
        weight, scale, bias = product
        self.activation = activation
        self.dtype = dtype
        self.given, self.gives = given, gives
        self._scale, self._bias = scale.contiguous(), bias.contiguous()
        self._zeros = torch.zeros(scale.shape[0], dtype=torch.int64, device=weight.device)
        self._multiplier: Tensor | None = None
        self._shift: Tensor | None = None
        if isinstance(given, Steps) and given.scale is not None and given.offset is not None:
            self._multiplier = given.scale.reciprocal()
            self._shift = MIDDLE + 0.5 - given.offset * self._multiplier
        self._packed = weight.device.type == "cpu" and has_integer_products()
        self._weight = (
            torch.ops.onednn.qlinear_prepack(weight.contiguous(), None) if self._packed else weight.float()
        )
        self.bias = self._bias
        if isinstance(given, Steps) and given.offset is not None:
            self.bias = self._bias - self.weight @ given.offset

    def __call__(self, x: Tensor, residual: Tensor | None = None, *, overwrite: bool = False) -> Tensor:
        """x: (T, in) numbers, or uint8 steps where `given` is TensorSteps → (T, out); `residual` (T, out) is
        added after the activation, and with `overwrite` may become the result."""
        if isinstance(self.given, TensorSteps):
            return self.from_steps(x, residual, overwrite=overwrite)
        steps, broken = self.quantize(x)
        y = self.from_steps(steps, residual, overwrite=overwrite)
        if broken is not None and self.gives is None:  # where it gives steps, the residual tells
            y.masked_fill_(broken[:, None], torch.nan)
        return y

    def from_steps(self, steps: Tensor, residual: Tensor | None = None, *, overwrite: bool = False) -> Tensor:
        """The same from an input that is already rounded. steps: (T, in) uint8."""
        scale, middle = self._input
        if not self._packed:
            return self._plain(steps, residual)
        if residual is not None and self.activation == "none":
            # "sum" writes into its argument; copying first is still cheaper than "add", which does not.
            into = residual if overwrite else residual.clone()
            y: Tensor = _op().binary(
                *(steps, scale, middle, self._weight, self._scale, self._zeros, into, self._bias),
                *(1.0, 0, self.dtype, 1.0, 0, "sum", 1.0, "none", [], ""),
            )
            return y
        name, algorithm = _FUSED[self.activation]
        dtype, out_scale, out_zero = self.dtype, 1.0, 0
        if self.gives is not None:
            dtype, out_scale, out_zero = torch.uint8, self.gives.scale, self.gives.zero_point
        y = _op()(
            *(steps, scale, middle, self._weight, self._scale, self._zeros, self._bias),
            *(out_scale, out_zero, dtype, name, [], algorithm),
        )
        return y if residual is None else y.add_(residual)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The steps of an input, (T, in) → (T, in) uint8, and which rows hold what no step can: NaN or an
        infinity. (T,) bool; None where none is known to."""
        ours = kernels.usable(x, x.shape[1])
        if ours is not None:
            return ours.quantize(x, self._multiplier, self._shift, MIDDLE + 0.5)
        broken = ~(x.float() * 0).sum(1).isfinite()  # a number times 0 is 0, and what is not finite is NaN
        y = x.float()
        if self._multiplier is None or self._shift is None:
            y = torch.add(y, MIDDLE + 0.5, out=None if y is x else y)
        else:
            y = torch.addcmul(self._shift, y, self._multiplier, out=None if y is x else y)
        y.clamp_(0, 255)  # cutting off decimals, which the conversion does, then rounds
        return y.to(torch.int8).view(torch.uint8) if _wraps() else y.to(torch.uint8), broken

    @property
    def weight(self) -> Tensor:
        """The float weight that the integers stand for, (out, in); a copy."""
        weight = self._plain_weight().float() * (self._scale * self._input[0])[:, None]
        return weight if self._multiplier is None else weight * self._multiplier

    @property
    def nbytes(self) -> int:
        """Bytes that weight, scales and bias take up."""
        held = (self._weight, self._scale, self._bias, self._multiplier, self._shift)
        return sum(t.numel() * t.element_size() for t in held if t is not None)

    def rows(self, index: Tensor) -> Int8Linear:
        """The map with only the outputs `index`, (n,) int64."""
        return self._like(Product(self._plain_weight()[index], self._scale[index], self._bias[index]))

    def columns(self, index: Tensor) -> Int8Linear:
        """The map of only the inputs `index`, (n,) int64; the others count as 0.

        Raises ValueError where inputs have offsets, which stand in the bias.
        """
        if self._multiplier is not None:
            raise ValueError("inputs with offsets cannot be left out")
        return self._like(Product(self._plain_weight()[:, index], self._scale, self._bias))

    def _like(self, product: Product) -> Int8Linear:
        return Int8Linear(product, self.activation, dtype=self.dtype, given=self.given, gives=self.gives)

    @property
    def _input(self) -> tuple[float, int]:
        """What a step of the input is worth beyond `_scale`, and the step that stands for 0."""
        if isinstance(self.given, TensorSteps):
            return self.given.scale, self.given.zero_point
        return 1.0, MIDDLE

    def _plain_weight(self) -> Tensor:
        """The weight's integers, (out, in) int8."""
        return self._weight.to_dense().t() if self._packed else self._weight.to(torch.int8)

    def _plain(self, steps: Tensor, residual: Tensor | None) -> Tensor:
        scale, middle = self._input
        sums = F.linear(steps.float().sub_(middle), self._weight)
        y = activate(torch.addcmul(self._bias, sums, self._scale * scale), self.activation)
        if self.gives is not None:
            return (
                y.div_(self.gives.scale).round_().add_(self.gives.zero_point).clamp_(0, 255).to(torch.uint8)
            )
        return (y if residual is None else y.add_(residual)).to(self.dtype)


def attention_products(
    tensors: Mapping[str, Tensor], prefix: str, *, device: torch.device, dtype: torch.dtype
) -> tuple[Linear, Linear]:
    """A layer's query_key_value and output products, from the tensors of an int8 checkpoint."""
    parts = [
        _product(tensors, f"{prefix}attention.self.{name}", device) for name in ("query", "key", "value")
    ]
    stacked = Product(*(torch.cat(same) for same in zip(*parts, strict=True)))
    return (
        Int8Linear(stacked, dtype=dtype, given=_steps(tensors, f"{prefix}attention.self", device)),
        Int8Linear(_product(tensors, f"{prefix}attention.output.dense", device), dtype=dtype, given=Steps()),
    )


def feed_forward_products(
    tensors: Mapping[str, Tensor], prefix: str, activation: str, *, device: torch.device, dtype: torch.dtype
) -> tuple[Linear, Linear]:
    """A layer's products up and down, from the tensors of an int8 checkpoint; steps pass between them."""
    up, down = (f"{prefix}{name}.dense" for name in ("intermediate", "output"))
    scale, zero_point = (tensors[f"{down}.input_{what}"].item() for what in ("scale", "zero_point"))
    between = TensorSteps(float(scale), int(zero_point))
    given = _steps(tensors, up, device)
    return (
        Int8Linear(_product(tensors, up, device), activation, dtype=dtype, given=given, gives=between),
        Int8Linear(_product(tensors, down, device), dtype=dtype, given=between),
    )


def _product(tensors: Mapping[str, Tensor], name: str, device: torch.device) -> Product:
    weight, scale, bias = (tensors[f"{name}.{part}"].to(device) for part in Product._fields)
    return Product(weight, scale, bias.float())


def _steps(tensors: Mapping[str, Tensor], name: str, device: torch.device) -> Steps:
    return Steps(*(tensors[f"{name}.input_{part}"].to(device) for part in ("scale", "offset")))


@functools.cache
def has_integer_products() -> bool:
    """Whether oneDNN's fused integer products work here and agree with float products of the integers."""
    if not torch.__version__.startswith(CHECKED_TORCH) or not torch.backends.mkldnn.enabled:
        return False
    if not torch.cpu._is_vnni_supported():
        return False
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 256, (16, 48), generator=generator).to(torch.uint8)
    weight = torch.randint(-127, 128, (32, 48), generator=generator).to(torch.int8)
    scale, bias, residual = (torch.rand(n, generator=generator) for n in ((32,), (32,), (16, 32)))
    scale, zeros = scale / 100, torch.zeros(32, dtype=torch.int64)
    exact = F.linear(steps.float() - MIDDLE, weight.float()) * scale + bias
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        agree = torch.equal(packed.to_dense().t(), weight)
        call = (steps, 1.0, MIDDLE, packed, scale, zeros)
        for dtype in (torch.float32, torch.bfloat16):
            fused = _op().binary(
                *(*call, residual.to(dtype, copy=True), bias, 1.0, 0, dtype),
                *(1.0, 0, "sum", 1.0, "none", [], ""),
            )
            tolerance = 1e-5 if dtype == torch.float32 else 1e-2
            agree &= torch.allclose(fused.float(), exact + residual, rtol=tolerance, atol=tolerance)
        for activation, (name, algorithm) in _FUSED.items():
            fused = _op()(*call, bias, 0.25, 9, torch.uint8, name, [], algorithm)
            expected = torch.round(activate(exact, activation) / 0.25).add_(9).clamp_(0, 255)
            agree &= bool((fused.float() - expected).abs().max() <= 1)
    except (RuntimeError, AttributeError):
        return False
    return agree


@functools.cache
def _wraps() -> bool:
    """Whether numbers up to 255 become int8 by their last 8 bits, which converts many at a time."""
    steps = torch.arange(256, dtype=torch.float32).repeat(3) + 0.25
    return torch.equal(steps.to(torch.int8).view(torch.uint8), steps.to(torch.uint8))


@functools.cache
def _op() -> torch._ops.OpOverloadPacket:
    return torch.ops.onednn.qlinear_pointwise
