"""The layer that every network has: attention heads, feed-forward units, and the norms around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.attention import MultiHeadAttention
from models.ops.torch import PLAIN_POSITIONS, Linear, Norm, Positions


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Units of a layer, all or some: up (with the activation), gate if there is one, and down."""

    up: Linear
    down: Linear
    gate: Linear | None = None

    @property
    def count(self) -> int:
        """Return the number of units."""
        return len(self.up.bias)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weights."""
        return self.up.nbytes + self.down.nbytes + (0 if self.gate is None else self.gate.nbytes)

    def only(self, units: Sequence[int]) -> FeedForward:
        """Return a copy of some units, at least one. units: their positions."""
        index = torch.tensor(units, dtype=torch.int64, device=self.up.bias.device)
        gate = None if self.gate is None else self.gate.rows(index)
        return FeedForward(self.up.rows(index), self.down.columns(index), gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One transformer layer.

    Norms are those of the residual stream after each half (BERT: `heads.output.norm`, `units.down.norm`), or
    of what each half reads of the stream (ModernBERT); None where there is none.

    heads: None if pruning left no head. attention_bias, attention_norm: of W^O, if no head is computed.
    """

    heads: MultiHeadAttention | None
    attention_bias: Tensor
    units: FeedForward
    positions: Positions = PLAIN_POSITIONS
    attention_input_norm: Norm | None = None
    attention_norm: Norm | None = None
    feed_forward_input_norm: Norm | None = None
