"""Affine maps of bfloat16 and of 8-bit integers by our kernel on AMX's tiles (`native/affine.h`).

oneDNN's products are about as fast, but not what it fuses into them: GELU more than doubles the time of the
shipped model's feed-forward map. Our kernel computes it while the tiles add up the next sums.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from models.ops.kernels import AS_IT_IS, Kernels, Normalisation, Quantization
from models.ops.torch import Linear, Norm, nbytes, normed

BLOCK, STEP = 32, 64
"""Outputs, and bytes of the inputs, that the kernel reads together; other sizes are filled up with zeros."""

ACTIVATIONS = ("none", "gelu", "gelu_tanh")
"""Those that the kernel computes."""


class TileLinear(Linear):
    """An affine map whose weight is laid out for tiles; GELU, a residual and norm, or a product are fused."""

    def __init__(
        self, weight: Tensor, bias: Tensor, activation: str, norm: Norm | None, kernels: Kernels
    ) -> None:
        """Lay out a map. activation: none, gelu or gelu_tanh. kernels: with `multiplies`."""
        super().__init__(weight, bias, activation, norm)
        self._kernels = kernels
        self._inputs = weight.shape[1]
        self._filled_bias = filled(self.bias.float())
        self._weight = to_tiles(self._weight)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Compute the map as `Linear` does."""
        if residual is None:
            return self._computed(x, self.activation)
        inside = None if self.norm is None else self.norm.in_kernels
        y = self._computed(x, "add", residual, inside)
        return y if inside else normed(y, self.norm)

    def times(self, other: Linear, x: Tensor) -> Tensor:
        """Compute the product of this map and another as `Linear` does."""
        return self._computed(x, "multiply", other(x))

    def _computed(
        self, x: Tensor, finish: str, other: Tensor | None = None, norm: Normalisation | None = None
    ) -> Tensor:
        return self._kernels.affine(x, self._weight, self._filled_bias, len(self.bias), finish, other, norm)

    @property
    def weight(self) -> Tensor:
        """Return the weight in its plain layout, (out, in); a copy."""
        return from_tiles(self._weight)[: len(self.bias), : self._inputs].contiguous()

    @property
    def nbytes(self) -> int:
        """Return the bytes of weight and bias."""
        return nbytes(self._weight, self.bias, self._filled_bias)

    def _alike(self, weight: Tensor, bias: Tensor) -> TileLinear:
        return TileLinear(weight, bias, self.activation, self.norm, self._kernels)


class IntegerTiles:
    """Products of 8-bit inputs with an int8 weight laid out for tiles, and what precedes and follows them."""

    def __init__(
        self, weight: Tensor, scale: Tensor, bias: Tensor, zero_point: int, kernels: Kernels
    ) -> None:
        """Lay out a weight. weight: (out, in) int8; scale, bias: (out,) float32, of its sums."""
        self._kernels, self._shape = kernels, weight.shape
        self.tiles = to_tiles(weight)
        start = -zero_point * weight.sum(1, dtype=torch.int32)
        self.factors = filled(start), filled(scale), filled(bias)

    def floats(
        self,
        x: Tensor,
        activation: str,
        residual: Tensor | None = None,
        norm: Norm | None = None,
        *,
        source: Quantization = AS_IT_IS,
    ) -> Tensor:
        """Return the map's activation, or the norm of the map plus a residual: (T, out) bfloat16.

        x: (T, in) uint8, or bfloat16 that is quantized as `source` says.
        """
        how = x, self.tiles, self.factors, self._shape[0], activation if residual is None else "add", residual
        return with_norm(lambda inside: self._kernels.affine_int8(*how, source=source, norm=inside), norm)

    def quantized(
        self, x: Tensor, activation: str, scale: float, zero_point: int, *, source: Quantization = AS_IT_IS
    ) -> Tensor:
        """Return the map's GELU in units of `scale`, plus `zero_point`: (T, out) uint8.

        x, source: as for `floats`.
        """
        return self._kernels.affine_int8(
            *(x, self.tiles, self.factors, self._shape[0], f"quantized_{activation}", None),
            (1 / scale, zero_point + 0.5),
            source=source,
        )

    @property
    def weight(self) -> Tensor:
        """Return the integers in their plain layout, (out, in) int8; a copy."""
        outputs, inputs = self._shape
        return from_tiles(self.tiles)[:outputs, :inputs].contiguous()


def with_norm(compute: Callable[[Normalisation | None], Tensor], norm: Norm | None) -> Tensor:
    """Return the norm of what a kernel computes: by that kernel if it can, else after it.

    compute: takes the norm that the kernel is to compute.
    """
    inside = None if norm is None else norm.in_kernels
    y = compute(inside)
    return y if inside else normed(y, norm)


def fits(kernels: Kernels | None, dtype: torch.dtype, activation: str) -> bool:
    """Return whether these kernels compute maps whose results are of this dtype, with this activation."""
    return (
        kernels is not None and kernels.multiplies and dtype == torch.bfloat16 and activation in ACTIVATIONS
    )


def filled(numbers: Tensor) -> Tensor:
    """Return one number for each output, filled up to whole blocks with zeros."""
    return F.pad(numbers, (0, -len(numbers) % BLOCK))


def to_tiles(weight: Tensor) -> Tensor:
    """Return a weight, (out, in) bfloat16 or int8, as the kernel reads it: (out/32, bytes/64, 2, 16, n).

    Per 32 outputs and 64 bytes of inputs, both rounded up, these are two tiles of 16 outputs; a tile's row
    is n numbers, four bytes of each output.
    """
    outputs, inputs = weight.shape
    units = F.pad(weight, (0, -inputs % (STEP // weight.itemsize), 0, -outputs % BLOCK)).view(torch.int32)
    tiles = units.reshape(len(units) // BLOCK, 2, 16, -1, 16).permute(0, 3, 1, 4, 2)
    return tiles.contiguous().view(weight.dtype)


def from_tiles(tiles: Tensor) -> Tensor:
    """Return the weight that `to_tiles` laid out, with the zeros that fill it up."""
    units = tiles.view(torch.int32).permute(0, 2, 4, 1, 3)
    return units.reshape(len(tiles) * BLOCK, -1).view(tiles.dtype)
