"""BERT with other positions: rotated queries and keys (GTE "new"), or ALiBi's slopes (JinaBERT)."""

from __future__ import annotations

import math

import torch

from models.network import Bert
from models.ops.relative import Relative, alibi_slopes
from models.ops.torch import Linear, Positions, Tensors, rotations


class RotaryBert(Bert):
    """BERT that rotates queries and keys by their positions, with or without NTK scaling."""

    def lay_out(self, tensors: Tensors) -> None:
        """Make the angles, embeddings, layers and classifier.

        With a factor f, the base θ becomes θ·f, and angles shrink by f^(2/d) (https://kexue.fm/archives/9706);
        with an exponent b ("mixed") they keep θ, and the i-th one shrinks by exp(ln f · (2i/d)^b), i from 1.
        """
        assert self.config.rotary is not None
        theta, factor, mixed = self.config.rotary
        size, positions = self.config.head_size, self.config.max_positions
        divisor = torch.tensor(factor ** (2 / size))
        if mixed is not None:
            divisor = (math.log(factor) * (torch.arange(1, size // 2 + 1) * 2 / size) ** mixed).exp()
        base = theta * factor if mixed is None else theta
        self.rotation = rotations(base, positions, size, self.device, divisor)
        super().lay_out(tensors)

    def positions(self, tensors: Tensors, number: int, projection: Linear) -> Positions:  # noqa: ARG002
        """Return the rotation, the same in each layer."""
        return Positions(self.rotation)


class AlibiBert(Bert):
    """BERT whose heads lower their scores by distance, each by a slope of its own."""

    def positions(self, tensors: Tensors, number: int, projection: Linear) -> Positions:  # noqa: ARG002
        """Return the slopes of the heads that a layer has."""
        kept = list(self.config.kept_heads[number])
        slopes = torch.tensor(alibi_slopes(self.config.num_heads))[kept].to(self.device)
        return Positions(relative=Relative(slopes=slopes))
