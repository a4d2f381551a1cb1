"""One forward pass of a batch under many head masks: what two masks have in common is computed once.

The masks are the leaves of a tree whose level L is the masks' row L. Two masks with the same rows 0 to L − 1
share the hidden states that enter layer L, and the heads' outputs in it; only what comes after differs.
Masks that switch off one head each thus start where their head is, and share the layers below.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.attention import MultiHeadAttention
from models.encoder import Encoder, Layer
from models.live_heads import slice_heads
from models.packing import PackedBatch

WORTH_SLICING = 0.25
"""Where at least this share of a layer's heads is dead, weights without them save more than it costs to cut
them."""


def logits_under(encoder: Encoder, batch: PackedBatch, masks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits of a packed batch under each mask.

    masks: (masks, layers, heads) float32 in the numbering of the unpruned model; any finite weights.
    Returns (masks, rows, labels) float32, rows in the caller's order, labels as in the checkpoint. A
    deterministic encoder gives the same bits as a pass for each mask would.
    """
    out = np.empty((len(masks), batch.rows, len(encoder.config.labels)), np.float32)
    with torch.inference_mode():
        _Tree(encoder, batch, masks, out).descend(0, encoder.embed(batch), range(len(masks)))
    return out


class _Tree:
    def __init__(
        self, encoder: Encoder, batch: PackedBatch, masks: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None:
        self.encoder, self.batch, self.masks, self.out = encoder, batch, masks, out

    def descend(self, number: int, x: Tensor, masks: Sequence[int]) -> None:
        """Fills `out` for masks that agree below layer `number`. x: (T, D), what enters that layer."""
        if number == len(self.encoder.layers):
            logits = self.encoder.classify(x)[: self.batch.rows].numpy(force=True)
            self.out[np.asarray(masks)[:, None], self.batch.order] = logits
            return
        branches = self.branches(number, masks)
        layer = self.encoder.layers[number]
        last = number == len(self.encoder.layers) - 1  # the score reads its first tokens only
        residual = x[self.batch.first_token] if last else x
        joined = self.shared(layer, x, [weights for weights, _ in branches])
        for weights, below in branches:
            attended = self.attend(layer, x, residual, weights, joined)
            self.descend(number + 1, layer.feed_forward(layer.attention_norm(attended)), below)

    def branches(self, number: int, masks: Sequence[int]) -> list[tuple[NDArray[np.float32], list[int]]]:
        """The distinct rows `number` of these masks, over the heads that the layer holds, and who has
        them."""
        held = list(self.encoder.config.kept_heads[number])
        found: dict[bytes, tuple[NDArray[np.float32], list[int]]] = {}
        for mask in masks:
            weights = self.masks[mask, number, held]
            found.setdefault(weights.tobytes(), (weights, []))[1].append(mask)
        return list(found.values())

    def shared(self, layer: Layer, x: Tensor, rows: Sequence[NDArray[np.float32]]) -> Tensor | None:
        """All heads' outputs, (T, h·d_head), where more than one branch needs them."""
        if layer.attention is None or sum(bool(weights.any()) for weights in rows) < 2:
            return None
        return layer.attention.joined(x, self.batch)

    def attend(
        self, layer: Layer, x: Tensor, residual: Tensor, weights: NDArray[np.float32], joined: Tensor | None
    ) -> Tensor:
        """x + attention under one row of weights, for the tokens that `residual` holds: all, or the first
        ones."""
        module = layer.attention
        if module is None or not weights.any():
            return residual + layer.attention_bias
        if joined is None:
            module, weights = self.cut(module, weights)
            joined = module.joined(x, self.batch)
        if residual is not x:
            joined = joined[self.batch.first_token]
        if (weights != 1).any():
            scale = torch.from_numpy(weights).to(x.device, x.dtype).repeat_interleave(module.head_size)
            joined = joined * scale
        return module.output(joined, residual=residual)

    def cut(
        self, module: MultiHeadAttention, weights: NDArray[np.float32]
    ) -> tuple[MultiHeadAttention, NDArray[np.float32]]:
        """The module without its dead heads, where that pays."""
        live = np.flatnonzero(weights)
        if self.encoder.deterministic or len(live) > (1 - WORTH_SLICING) * module.heads:
            return module, weights
        return slice_heads(module, tuple(live.tolist())), weights[live]
