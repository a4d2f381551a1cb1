"""The network's operators on a CPU: oneDNN's prepacked products and our own compiled kernels.

`torch.ops.mkldnn._linear_pointwise` is private to torch. It is used only on the torch release on which it was
checked, and after a self-test; everywhere else plain `linear` gives the same answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from headroom.models.batch import PackedBatch
from headroom.models.ops.causal import Causal
from headroom.models.ops.kernels import SIZE_MULTIPLE, Kernels, NormWeights, filled, from_tiles, to_tiles
from headroom.models.ops.positions import Positions
from headroom.models.ops.torch import FUNCTIONS, Linear, Norm, TorchOps, normed

CHECKED_TORCH = "2.13."
"""The torch releases on which the private oneDNN operators were checked."""

LARGEST_ACTIVATION = 12 << 20
"""Bytes of the largest activation of a pass. With it, a pack of BERT-base holds 2,048 tokens. With AMX,
BERT-base scored 77 documents of 128 tokens a second in packs of 4,096 tokens, and 98 in packs of 2,048;
without AMX it makes no difference. From 32 MiB on, glibc returns memory to the system at once, and every
layer pays for new pages (63 documents a second)."""

FUSED = {
    "none": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}
"""Our activations as oneDNN's fused operators name them: (name, algorithm). Others follow the product."""


ON_TILES = ("none", "gelu", "gelu_tanh", "silu")
"""The activations that our kernel on tiles computes."""


class CpuOps(TorchOps):
    """oneDNN products and compiled kernels (None: there are none here)."""

    max_pack_bytes = LARGEST_ACTIVATION

    def __init__(self, dtype: torch.dtype, kernels: Kernels | None) -> None:
        super().__init__(torch.device("cpu"), dtype)
        self.kernels = kernels

    def linear(self, weight: Tensor, bias: Tensor, activation: str = "none") -> Linear:
        """Lay out an affine map for our kernel on tiles, or for oneDNN if its products of this dtype work."""
        if self.kernels is not None and fits(self.kernels, weight.dtype, activation):
            return TileLinear(weight, bias, activation, self.kernels)
        return (PrepackedLinear if can_prepack(weight.dtype) else Linear)(weight, bias, activation)

    def causal(self, projected: Tensor, batch: PackedBatch, spec: Causal, weights: Tensor | None) -> Tensor:
        """Return a decoder's attention, by the kernel if it takes this head size."""
        if self.kernels is None or spec.rotation.shape[1] % SIZE_MULTIPLE:
            return super().causal(projected, batch, spec, weights)
        prefixes = None if batch.prefixes is None else torch.from_numpy(batch.prefixes)
        return self.kernels.causal(
            projected, batch.offsets, spec, weights, prefixes=prefixes, last_only=batch.read == "last"
        )

    def attention(
        self, projected: Tensor, batch: PackedBatch, heads: int, weights: Tensor | None, positions: Positions
    ) -> Tensor:
        """Return an encoder's attention, by the kernel, which reads the pack sequence by sequence."""
        if self.kernels is None or projected.shape[1] // (3 * heads) % SIZE_MULTIPLE:
            return super().attention(projected, batch, heads, weights, positions)
        return self.kernels.attention(
            projected, batch.offsets, heads, weights, positions, first_only=batch.read == "first"
        )


class TileLinear(Linear):
    """An affine map by our kernel on AMX's tiles, with GELU, a residual and norm, or a product fused.

    oneDNN's products are about as fast, but not what it fuses into them: GELU more than doubles the time of
    the shipped model's feed-forward map. Our kernel computes it while the tiles add up the next sums.
    """

    def __init__(self, weight: Tensor, bias: Tensor, activation: str, kernels: Kernels) -> None:
        """Lay out a map. activation: one of ON_TILES. kernels: with `multiplies`."""
        super().__init__(weight, bias, activation)
        self._kernels = kernels
        self._inputs = weight.shape[1]
        self._filled_bias = filled(self.bias.float())
        self._weight = to_tiles(self._weight)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map. x: (T, in)."""
        return self._map(x, self.activation)

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Return norm(residual + the map of x), (T, out)."""
        return sum_on_tiles(self._map, x, residual, norm)

    def times(self, other: Linear, x: Tensor) -> Tensor:
        """Return this map of x times the other one's, (T, out)."""
        return self._map(x, "multiply", other(x))

    def _map(
        self, x: Tensor, finish: str, other: Tensor | None = None, norm: NormWeights | None = None
    ) -> Tensor:
        return self._kernels.map_bfloat16(
            x, self._weight, self._filled_bias, len(self.bias), finish, other, norm
        )

    @property
    def weight(self) -> Tensor:
        """Return the weight in its plain layout, (out, in); a copy."""
        return from_tiles(self._weight)[: len(self.bias), : self._inputs].contiguous()

    @property
    def nbytes(self) -> int:
        """Return the bytes of weight and bias."""
        return self._weight.nbytes + self.bias.nbytes + self._filled_bias.nbytes

    def _alike(self, weight: Tensor, bias: Tensor) -> TileLinear:
        return TileLinear(weight, bias, self.activation, self._kernels)


def sum_on_tiles(product: Callable[..., Tensor], x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
    """Return norm(residual + product), normalised by the kernel if it computes the norm.

    product: calls a kernel with x, the finish, what is added, and `Norm.fused`.
    """
    fused = None if norm is None else norm.fused
    y = product(x, "add", residual, fused)
    return normed(y, norm) if fused is None else y


class PrepackedLinear(Linear):
    """An affine map whose weight is laid out for oneDNN, with the activation or the residual fused."""

    def __init__(self, weight: Tensor, bias: Tensor, activation: str = "none") -> None:
        super().__init__(weight, bias, activation)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map. x: (T, in)."""
        name, algorithm = FUSED.get(self.activation, FUSED["none"])
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, name, [], algorithm)
        return y if self.activation in FUSED else FUNCTIONS[self.activation](y)

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Return norm(residual + the map of x), (T, out)."""
        product = torch.ops.mkldnn._linear_pointwise
        return normed(product.binary(x, residual, self._weight, self.bias, "add"), norm)

    def times(self, other: Linear, x: Tensor) -> Tensor:
        """Return this map of x times the other one's, (T, out)."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other(x), self._weight, self.bias, "mul")
        return y

    @property
    def weight(self) -> Tensor:
        """Return the weight in its plain layout, (out, in); a copy."""
        return self._weight.to_dense()


@functools.cache
def can_prepack(dtype: torch.dtype) -> bool:
    """Return whether oneDNN's prepacked products of this dtype work here and agree with plain `linear`."""
    if not torch.__version__.startswith(CHECKED_TORCH) or not torch.backends.mkldnn.enabled:
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, residual = (torch.randn(16, 16, generator=generator).to(dtype) for _ in range(3))
    plain = Linear(weight, weight[0])
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    try:
        packed = PrepackedLinear(weight, weight[0])
        results = [(each(x), each.add_norm(x, residual, None)) for each in (packed, plain)]
        return all(
            torch.allclose(ours, exact, rtol=tolerance, atol=tolerance * 10)
            for ours, exact in zip(*results, strict=True)
        )
    except (RuntimeError, AttributeError):
        return False


def fits(kernels: Kernels | None, dtype: torch.dtype, activation: str) -> bool:
    """Return whether these kernels compute maps whose results are of this dtype, with this activation."""
    return kernels is not None and kernels.multiplies and dtype == torch.bfloat16 and activation in ON_TILES
