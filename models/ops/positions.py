"""How an encoder's attention sees positions: rotated queries and keys, windows, and scores of distances."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from headroom.models.ops.causal import turned
from headroom.models.ops.relative import Relative


@dataclass(frozen=True, slots=True)
class Positions:
    """How a layer's attention sees positions.

    rotation: (positions, d) float32, of `rotations`: queries and keys are rotated by their positions.
    window: a token sees this many tokens to each side; None: all of its sequence.
    relative: scores of distances that are added.
    """

    rotation: Tensor | None = None
    window: int | None = None
    relative: Relative | None = None

    def only(self, heads: Sequence[int]) -> tuple[Self, Sequence[int]]:
        """Return the positions of some heads, and the key heads that they read: those of the same index."""
        relative = None if self.relative is None else self.relative.only(heads)
        return replace(self, relative=relative), heads

    def scored(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor | None, float]:
        """Return what the scores of one sequence are made of.

        projected: (n, 3·h, d), queries, keys and values.
        Returns queries and keys, (h, n, d), what is added to their scaled products, and the scale.
        """
        parts = projected.view(len(projected), 3, -1, projected.shape[-1])
        if self.rotation is not None:
            parts = rotated(parts, self.rotation[: len(parts)])
        query, key, _ = parts.permute(1, 2, 0, 3)
        return query, key, self.bias(query, key), self.scale(query.shape[-1])

    def scale(self, head_size: int) -> float:
        """Return what q·kᵀ is multiplied by."""
        terms = 1 if self.relative is None else self.relative.terms
        return 1 / math.sqrt(head_size * terms)

    def bias(self, query: Tensor, key: Tensor, exists: Tensor | None = None) -> Tensor | None:
        """Return what is added to the scaled scores, broadcastable to (B, h, n, n); None for nothing.

        query, key: (B, h, n, d). exists: (B, n) bool, False for keys that fill up a shorter sequence; its
        queries, whose results nobody reads, see everything.
        """
        keys = key.shape[-2]
        visible = None if exists is None else exists[:, None, None]
        if self.window is not None and self.window < keys - 1:
            position = torch.arange(keys, device=key.device)
            near = (position[:, None] - position).abs() <= self.window
            visible = near if visible is None else near & visible | ~visible.mT
        added = None if self.relative is None else self.relative.bias(query, key)
        if visible is None:
            return added
        hidden = key.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)
        return hidden if added is None else hidden + added


PLAIN_POSITIONS = Positions()
"""Every token sees its whole sequence, and attention knows no positions."""


def rotations(
    theta: float, positions: int, head_size: int, device: torch.device, divisor: Tensor | None = None
) -> Tensor:
    """Return cosines and sines of the angles position·theta^(−2i/d), i < d/2: (positions, d) float32.

    divisor: () or (d/2,), of the angles.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    frequencies = frequencies if divisor is None else frequencies / divisor
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.sin()], -1).to(device)


def rotated(parts: Tensor, rotation: Tensor) -> Tensor:
    """Rotate queries and keys by their positions (RoPE, Su et al. 2021, https://arxiv.org/abs/2104.09864).

    parts: (T, 3, h, d), queries, keys and values; rotation: (T, d), rows of `rotations`.
    """
    return torch.cat([turned(parts[:, :2], rotation[:, None, None]), parts[:, 2:]], 1)
