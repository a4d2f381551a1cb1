"""The scales of 8-bit inputs with the least error of a product, and the integers of its weight."""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.ops.int8 import ZERO_POINT, QuantizedMap

SEARCHED = 1_024
"""Tokens that the search for the best scales looks at; the extremes are those of all tokens."""

COVERED = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Shares of the range around the midpoint that the scales may cover; values beyond are clamped."""

BALANCE = (0.0, 0.25, 0.5, 0.75, 1.0)
"""A channel's scale follows its own range (1), the inverse of its weights' range (0), or a mix: SmoothQuant's
exponents 1 − α and α. One scale for all channels is tried too."""


def quantized_map(
    weight: Tensor, bias: Tensor, input_scale: Tensor | None = None, input_offset: Tensor | None = None
) -> QuantizedMap:
    """Return the int8 form of x·weightᵀ + bias for inputs x ≈ input_scale·(q − 128) + input_offset.

    weight: (out, in) float32; bias: (out,); input_scale, input_offset: (in,) float32, None: 1 and 0.
    """
    if input_offset is not None:
        bias = bias + weight @ input_offset
    if input_scale is not None:
        weight = weight * input_scale
    scale = (weight.abs().amax(1) / 127).clamp_(min=1e-12)
    return QuantizedMap(torch.round(weight / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale, bias)


def channel_scales(x: Tensor, weight: Tensor, *, midpoints: bool = True) -> tuple[Tensor, Tensor]:
    """Return the scale and midpoint of each input channel with the least error of x·weightᵀ in 8 bits.

    x: (T, in) float32, weight: (out, in). midpoints: False keeps them at 0. Returns two of (in,) float32.
    """
    high, low = x.amax(0), x.amin(0)
    offset = (high + low) / 2 if midpoints else torch.zeros_like(high)
    reach = torch.maximum(high - offset, offset - low).clamp_(min=1e-6)
    columns = weight.abs().amax(0).clamp_(min=1e-6)
    centred = _sample(x) - offset
    exact = centred @ weight.T

    def error(scale: Tensor) -> float:
        quantized = torch.round(centred / scale).clamp_(-ZERO_POINT, ZERO_POINT - 1)
        return _error(quantized, quantized_map(weight, torch.zeros(len(weight)), scale), exact)

    balanced = []
    for balance in BALANCE:
        shape = reach**balance / columns ** (1 - balance)
        balanced.append(shape * ((reach / shape).amax() / (ZERO_POINT - 1)))
    best = min([reach.amax().expand_as(reach) / (ZERO_POINT - 1), *balanced], key=error)
    return min((best * share for share in COVERED), key=error), offset


def tensor_scale(x: Tensor, weight: Tensor) -> tuple[float, int]:
    """Return the scale and zero point of the inputs with the least error of x·weightᵀ in 8 bits."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 1e-6)
    sample = _sample(x)
    exact = sample @ weight.T
    rounded = quantized_map(weight, torch.zeros(len(weight)))

    def parameters(share: float) -> tuple[float, int]:
        scale = (high * share - low) / 255
        return scale, round(-low / scale)

    def error(choice: tuple[float, int]) -> float:
        scale, zero_point = choice
        quantized = torch.round(sample / scale + zero_point).clamp_(0, 255).sub_(zero_point)
        return _error(quantized, rounded, exact, scale)

    return min(map(parameters, COVERED), key=error)


def _error(quantized: Tensor, rounded: QuantizedMap, exact: Tensor, scale: float = 1.0) -> float:
    """Return the mean squared error of an int8 product.

    quantized: (T, in), the inputs minus their zero point; exact: (T, out), the product in floats.
    """
    product = F.linear(quantized, rounded.weight.float()).mul_(rounded.weight_scale * scale)
    return float(product.sub_(exact).square_().mean())


def _sample(x: Tensor) -> Tensor:
    """Return about SEARCHED of the rows, evenly spread."""
    return x[:: -(-x.shape[0] // SEARCHED)]
