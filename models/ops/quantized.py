"""How 8-bit integers stand for the inputs and the weights of an affine map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
