"""The layer that every network has: attention heads, and the order of norms and halves around them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from models.live_heads import AttentionHeads


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(ABC):
    """One transformer layer.

    attention: None if pruning left no head. attention_bias: the bias of W^O. rotation, window: as in
    `TorchOps.attention`.
    """

    attention: AttentionHeads | None
    attention_bias: Tensor
    rotation: Tensor | None = None
    window: int | None = None

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
    def feed_forward(self, x: Tensor) -> Tensor:
        """Compute the feed-forward half of the layer. x: (T, D), may be overwritten → (T, D)."""
