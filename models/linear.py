"""y = act(x·Wᵀ + b) [+ residual], with oneDNN's prepacked weights where the machine has them.

`torch.ops.mkldnn._linear_pointwise` is private to torch: it is used only on the torch release it was
checked on, after a self-test at first use; everywhere else plain `linear` gives the same answers.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

CHECKED_TORCH = "2.13."
"""The torch releases on which the private oneDNN operators were checked."""

_FUSED = {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class Linear:
    """One affine map, its weight laid out for the processor.

    weight: (out, in); bias: (out,); both of the dtype and on the device of the inputs to come.
    activation: none, gelu (erf), gelu_tanh or relu, fused into the product where possible.
    """

    __slots__ = ("_packed", "_weight", "activation", "bias")

    def __init__(self, weight: Tensor, bias: Tensor, activation: str = "none") -> None:
        self.activation = activation
        self.bias = bias.contiguous()
        self._packed = weight.device.type == "cpu" and can_prepack(weight.dtype)
        self._weight = weight.contiguous()
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, None)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        *,
        overwrite: bool = False,  # noqa: ARG002 - for Int8Linear
    ) -> Tensor:
        """x: (T, in) → (T, out); `residual` (T, out) is added after the activation. With `overwrite` it may
        become the result, which saves integer products a copy."""
        y: Tensor
        if not self._packed:
            y = activate(F.linear(x, self._weight, self.bias), self.activation)
            return y if residual is None else y.add_(residual)
        if residual is not None and self.activation == "none":
            y = _op().binary(x, residual, self._weight, self.bias, "add")
            return y
        name, algorithm = _FUSED[self.activation]
        y = _op()(x, self._weight, self.bias, name, [], algorithm)
        return y if residual is None else y.add_(residual)

    @property
    def weight(self) -> Tensor:
        """The weight in its plain layout, (out, in); a copy where it is prepacked."""
        return self._weight.to_dense() if self._packed else self._weight

    def rows(self, index: Tensor) -> Linear:
        """The map with only the outputs `index`, (n,) int64."""
        return Linear(self.weight[index], self.bias[index], self.activation)

    def columns(self, index: Tensor) -> Linear:
        """The map of only the inputs `index`, (n,) int64; the others count as 0."""
        return Linear(self.weight[:, index], self.bias, self.activation)

    @property
    def nbytes(self) -> int:
        """Bytes that weight and bias take up."""
        return sum(t.numel() * t.element_size() for t in (self._weight, self.bias))


def activate(x: Tensor, activation: str) -> Tensor:
    """The activation by its name among the values of models.config.ACTIVATIONS, element by element."""
    if activation == "gelu":
        return F.gelu(x)
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    return F.relu(x) if activation == "relu" else x


@functools.cache
def can_prepack(dtype: torch.dtype) -> bool:
    """Whether prepacked oneDNN products of this dtype work here and agree with plain `linear`."""
    if not torch.__version__.startswith(CHECKED_TORCH) or not torch.backends.mkldnn.enabled:
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, residual = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((16, 48), (32, 48), (32,), (16, 32))
    )
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        plain = F.linear(x, weight, bias)
        added = _op().binary(x, residual, packed, bias, "add")
        agree = torch.equal(packed.to_dense(), weight)
        agree &= torch.allclose(added, plain + residual, rtol=tolerance, atol=tolerance * 10)
        for activation, (name, algorithm) in _FUSED.items():
            fused = _op()(x, packed, bias, name, [], algorithm)
            agree &= torch.allclose(fused, activate(plain, activation), rtol=tolerance, atol=tolerance * 10)
    except (RuntimeError, AttributeError):
        return False
    return agree


@functools.cache
def _op() -> torch._ops.OpOverloadPacket:
    return torch.ops.mkldnn._linear_pointwise
