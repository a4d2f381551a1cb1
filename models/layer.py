"""The layer that every network has: attention heads, and the order of norms and halves around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from models.live_heads import AttentionHeads
from models.live_units import FeedForward, NoUnits
from models.ops.torch import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(ABC):
    """One transformer layer.

    attention: None if pruning left no head. attention_bias: the bias of W^O. up (with the activation), gate
    and down: the maps of the feed-forward network; gate: None if it has none. rotation, window: as in
    `TorchOps.attention`.
    """

    attention: AttentionHeads | None
    attention_bias: Tensor
    up: Linear
    down: Linear
    gate: Linear | None = None
    rotation: Tensor | None = None
    window: int | None = None

    @property
    def units(self) -> FeedForward:
        """Return the feed-forward network."""
        return FeedForward(self.up, self.down, self.gate)

    @abstractmethod
    def attention_input(self, x: Tensor) -> Tensor:
        """Return what W^Q, W^K and W^V read of the layer's input. (T, D) → (T, D)."""

    @abstractmethod
    def after_attention(self, x: Tensor) -> Tensor:
        """Return what the feed-forward half gets. x: the layer's input + context·W^O, (T, D) → (T, D)."""

    @abstractmethod
    def feed_forward_input(self, x: Tensor) -> Tensor:
        """Return what the first feed-forward map reads of `after_attention`'s result. (T, D) → (T, D)."""

    @abstractmethod
    def after_feed_forward(self, x: Tensor) -> Tensor:
        """Return what leaves the layer. x: `after_attention`'s result + down(…), (T, D) → (T, D)."""

    def feed_forward(
        self,
        x: Tensor,
        units: FeedForward | NoUnits | None = None,
        weights: Tensor | None = None,
        which: Tensor | None = None,
    ) -> Tensor:
        """Compute the feed-forward half of the layer. x: (T, D), may be overwritten → (T, D).

        units: those of the layer's that are computed; None: all. weights, which: as `FeedForward` takes them.
        """
        y = (units or self.units)(self.feed_forward_input(x), x, weights, which)
        return self.after_feed_forward(y)
