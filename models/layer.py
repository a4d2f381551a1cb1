"""The layer that every network has: attention heads, and the order of norms and halves around them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from models.live_heads import AttentionHeads
from models.live_units import FeedForward, NoUnits
from models.ops.torch import Linear, Norm, normed


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One transformer layer.

    Its norms are those of the residual stream after each half (BERT), or of what each half reads of the
    stream (ModernBERT); None where there is none.

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
    attention_input_norm: Norm | None = None
    attention_norm: Norm | None = None
    feed_forward_input_norm: Norm | None = None
    feed_forward_norm: Norm | None = None

    @property
    def units(self) -> FeedForward:
        """Return the feed-forward network."""
        return FeedForward(self.up, self.down, self.gate)

    def attention_input(self, x: Tensor) -> Tensor:
        """Return what W^Q, W^K and W^V read of the layer's input. (T, D) → (T, D)."""
        return normed(x, self.attention_input_norm)

    def after_attention(self, x: Tensor) -> Tensor:
        """Return what the feed-forward half gets. x: the layer's input + context·W^O, (T, D) → (T, D)."""
        return normed(x, self.attention_norm)

    def feed_forward_input(self, x: Tensor) -> Tensor:
        """Return what the first feed-forward map reads of `after_attention`'s result. (T, D) → (T, D)."""
        return normed(x, self.feed_forward_input_norm)

    def after_feed_forward(self, x: Tensor) -> Tensor:
        """Return what leaves the layer. x: `after_attention`'s result + down(…), (T, D) → (T, D)."""
        return normed(x, self.feed_forward_norm)

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
        compute = units or self.units
        return compute(self.feed_forward_input(x), x, weights, which, norm=self.feed_forward_norm)
