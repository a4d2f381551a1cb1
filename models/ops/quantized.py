"""How 8-bit integers stand for the inputs and the weights of an affine map."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ZERO_POINT = 128
"""The quantized value that stands for the midpoint of a channel."""


@dataclass(frozen=True, slots=True)
class ChannelScale:
    """Quantization of an input channel by channel: x ≈ scale·(q − 128) + midpoint.

    scale, midpoint: (in,) float32; None: scale 1 and midpoint 0.
    """

    scale: Tensor | None = None
    midpoint: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TensorScale:
    """Quantization of a whole tensor: x ≈ scale·(q − zero_point). A product can write it itself."""

    scale: float
    zero_point: int


class QuantizedMap(NamedTuple):
    """The integers of an affine map: y = weight_scale·((q − zero point)·weightᵀ) + bias.

    weight: (out, in) int8; weight_scale: (out,) float32, the value of one unit of a row's integer sum;
    bias: (out,) float32, which includes the effect of the input's midpoint.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor


def quantize_by_torch(
    x: Tensor, multiplier: Tensor | None, shift: Tensor | None, zero_point: float, largest: int = 255
) -> tuple[Tensor, Tensor]:
    """Return x·multiplier + shift (or x + zero_point without them), clamped to 0 … largest and truncated.

    x: (T, D); multiplier, shift: (D,) float32, both or neither.
    Returns (T, D) uint8, and which rows hold NaN or an infinity, (T,) bool.
    """
    y = x.float()
    not_finite = ~(y * 0).sum(1).isfinite()
    if multiplier is None or shift is None:
        y = torch.add(y, zero_point, out=None if y is x else y)
    else:
        y = torch.addcmul(shift, y, multiplier, out=None if y is x else y)
    y.clamp_(0, largest)  # the conversion truncates
    return (y.to(torch.int8).view(torch.uint8) if _wraps() else y.to(torch.uint8)), not_finite


@functools.cache
def _wraps() -> bool:
    """Return whether converting up to 255 to int8 keeps the last 8 bits; that conversion is vectorised."""
    values = torch.arange(256, dtype=torch.float32).repeat(3) + 0.25
    return torch.equal(values.to(torch.int8).view(torch.uint8), values.to(torch.uint8))
