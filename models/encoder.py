"""The shared part of the networks: the loop over the layers, heads under weights, and the pass of a batch.

A network says how tokens enter it (`embed`), what its layers are, and what its classifier reads (`pool`,
`classify`). A head's weight multiplies its output before W^O, which equals multiplying its attention
probabilities. What differs between processors is in `models.ops`; which heads a batch needs is found in
`models.live_heads`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from models.batch import PackedBatch, to_device
from models.checkpoint.config import ModelConfig
from models.checkpoint.tensors import expected_shapes
from models.layer import Layer
from models.live_heads import Live, LiveHeads
from models.masks.rows import Masks, RowMasks, rows_of
from models.ops import choose
from models.ops.torch import (
    Tensors,
    TorchOps,
    attention_probabilities,
    rotated,
    visibility_bias,
)
from models.weights import Weights


class Encoder(Weights):
    """A classifier's network, its weights laid out for one device.

    tensors: what `models.checkpoint.tensors.read_tensors` returns.
    dtype: of weights and activations; the classifier and what it reads always compute in float32.
    deterministic: float32 results that are the same bits in any batch; heads are then never cut out.
    ops: default: the fastest that the device has.
    parameters, nbytes: the number of weights, and the bytes that they take up here.
    """

    reads_first_tokens = True
    """Whether the classifier reads first tokens alone; the last layer then computes no others."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Tensors,
        *,
        device: torch.device,
        dtype: torch.dtype,
        deterministic: bool = False,
        ops: TorchOps | None = None,
    ) -> None:
        super().__init__(config, ops or choose(config, device, dtype))
        self.device = device
        self.dtype = dtype
        self.deterministic = deterministic
        self.lay_out(tensors)
        is_stored = replace(config, int8=False).is_stored
        names = [name for name, _ in expected_shapes(config) if is_stored(name)]
        self.parameters = sum(tensors[name].numel() for name in names)
        self.nbytes = sum(tensors[name].numel() * _itemsize(name, tensors[name], dtype) for name in names)
        heads, units = ([getattr(layer, part) for layer in self.layers] for part in ("attention", "units"))
        self.live_heads = LiveHeads(config, heads, units, self.ops, cuts=not deterministic)
        self.ops.synchronize()  # from here on, other threads' streams may use the weights

    @abstractmethod
    def lay_out(self, tensors: Tensors) -> None:
        """Make `layers` and everything else that holds weights."""

    @abstractmethod
    def embed(self, batch: PackedBatch) -> Tensor:
        """Return what enters the first layer: (T, D)."""

    def pool(self, x: Tensor, batch: PackedBatch) -> Tensor:  # noqa: ARG002 - for networks that pool
        """Return what `classify` reads, (B, D), of what leaves the last layer: (B, D) if that computes first
        tokens only, else (T, D)."""
        return x

    @abstractmethod
    def classify(self, pooled: Tensor) -> Tensor:
        """Return logits. pooled: (n, D) → (n, labels) float32."""

    @property
    def max_pack_tokens(self) -> int | None:
        """Return the tokens of the largest pack that the device computes well; None for any number."""
        if self.ops.max_pack_bytes is None:
            return None
        inner = self.config.intermediate_size * (1 if self.config.int8 else self.dtype.itemsize)
        projected = 3 * self.config.num_heads * self.config.head_size * self.dtype.itemsize
        return self.ops.max_pack_bytes // max(inner, projected)

    @property
    def number_format(self) -> str:
        """Return the number format of the layers' products: int8, or the name of the weights' dtype."""
        return "int8" if self.config.int8 else str(self.dtype).removeprefix("torch.")

    def forward(self, batch: PackedBatch, masks: Masks = None, *, sliced: bool = False) -> Tensor:
        """Return the logits of a packed batch.

        masks: in the caller's order of rows, or one for all rows: weights of heads alone, (rows, layers,
            heads) or (layers, heads) float32, 1 keeps a head and 0 removes it; or whole masks; None: all on.
        sliced: the mask belongs to a sliced variant, so exactly its live heads and units are computed.
        Returns (rows, labels) float32 in the caller's order, labels as in the checkpoint.
        """
        with torch.inference_mode():
            live = self.live_heads.of(rows_of(masks, batch.order), sliced=sliced)
            logits = self.logits(batch, live)[: batch.rows]
            restored = torch.empty_like(logits)
            (order,) = to_device([batch.order], self.device)
            restored[order] = logits
            self.ops.synchronize()  # only then may another stream reuse the memory of `live`
            return restored

    def logits(self, batch: PackedBatch, live: Sequence[Live]) -> Tensor:
        """Return the logits of a pack's sequences, (B or more, labels) float32, in the pack's order."""
        x = self.embed(batch)
        for output in self.layer_outputs(x, batch, live, first_only=True):
            x = output
        return self.classify(x)

    def layer_outputs(
        self,
        x: Tensor,
        batch: PackedBatch,
        live: Sequence[Live],
        *,
        start: int = 0,
        stop: int | None = None,
        first_only: bool = False,
        keep: bool = False,
    ) -> Iterator[Tensor]:
        """Yield what leaves each of the layers start … stop − 1, (T, D) each.

        x: (T, D), what enters layer `start`. live: what each layer of the network computes of its attention.
        first_only: of the network's last layer, compute and yield only what `classify` reads, (B, D).
        keep: the caller keeps x and what is yielded, so no layer may overwrite its input.
        """
        for number in range(start, len(self.layers) if stop is None else stop):
            last = first_only and number == len(self.layers) - 1
            first = last and self.reads_first_tokens
            x = self.layer_output(number, x, batch, live[number], first_only=first, overwrite=not keep)
            if last:
                x = self.pool(x, batch)
            yield x

    def layer_output(
        self,
        number: int,
        x: Tensor,
        batch: PackedBatch,
        live: Live,
        *,
        first_only: bool = False,
        overwrite: bool = False,
    ) -> Tensor:
        """Return what leaves layer `number`, (T, D), or of first tokens only, (B, D).

        Rows that skip the layer leave it as they entered. x: (T, D), what enters. overwrite: x's memory may
        be used.
        """
        if live.rows is None:
            residual = x[batch.first_token] if first_only else x
            context = self.context(number, x, batch, live, first_only=first_only)
            x = self.after_attention(number, residual, context, live, overwrite=overwrite)
            sequences = None if live.unit_weights is None else batch.sequences(first_only=first_only)
            return self.feed_forward(number, x, live, sequences)
        unchanged = x[batch.first_token] if first_only else x
        if not len(live.rows):
            return unchanged
        part = batch.part(live.rows)
        whole = replace(live, rows=None)
        y = self.layer_output(
            number, x[part.tokens], part.batch, whole, first_only=first_only, overwrite=True
        )
        index = part.rows if first_only else part.tokens[: int(part.batch.lengths.sum())]
        if torch.is_grad_enabled() or not (overwrite or first_only):
            return unchanged.index_copy(0, index, y[: len(index)])
        return unchanged.index_copy_(0, index, y[: len(index)])

    def context(
        self, number: int, x: Tensor, batch: PackedBatch, live: Live, *, first_only: bool = False
    ) -> Tensor | None:
        """Return concat(head_1 … head_h) of layer `number`, the input of W^O; None if no head is live.

        x: (T, D), what enters the layer. Returns (T, h·d) or (B, h·d).
        """
        if live.attention is None:
            return None
        layer = self.layers[number]
        projected = live.attention.query_key_value(layer.attention_input(x))  # (T, 3·h·d)
        return self.ops.attention(
            *(projected, batch, live.attention.heads, live.weights),
            first_only=first_only,
            rotation=layer.rotation,
            window=layer.window,
        )

    def after_attention(
        self, number: int, residual: Tensor, context: Tensor | None, live: Live, *, overwrite: bool = False
    ) -> Tensor:
        """Return what enters the feed-forward half of layer `number`, (T, D).

        residual: what entered the layer. overwrite: its memory may be used.
        """
        layer = self.layers[number]
        if context is None or live.attention is None:  # only the bias of W^O remains
            return layer.after_attention(residual + layer.attention_bias)
        return live.attention.output(
            context, residual=residual, overwrite=overwrite, norm=layer.attention_norm
        )

    def feed_forward(
        self, number: int, x: Tensor, live: Live | None = None, sequences: Tensor | None = None
    ) -> Tensor:
        """Compute the feed-forward half of layer `number`. x: (T, D), may be overwritten → (T, D).

        live: which units; None: all. sequences: (T,) int64, the sequence of each token.
        """
        if live is None:
            return self.layers[number].feed_forward(x)
        which = None
        if live.unit_weights is not None and len(live.unit_weights) > 1:
            which = sequences if live.unit_rows is None or sequences is None else live.unit_rows[sequences]
        return self.layers[number].feed_forward(x, live.units, live.unit_weights, which)

    def attention_maps(
        self, batch: PackedBatch, heads: Sequence[tuple[int, int]], masks: Masks = None
    ) -> np.ndarray:
        """Return what some heads attend to in a batch of one pair of n tokens.

        heads: (layer, head) in the numbering of the unpruned model; masks: one mask, as `forward` takes it.
        A head that is pruned or has weight w < 1 shows its probabilities times w (zeros if it is off).
        Returns (len(heads), n, n) float32; row i is what token i attends to.
        """
        length = int(batch.lengths[0])
        maps = np.zeros((len(heads), length, length), np.float32)
        with torch.inference_mode():
            x = self.embed(batch)
            live = self.live_heads.of(masks)
            stop = max(layer for layer, _ in heads) + 1
            inputs = [x, *self.layer_outputs(x, batch, live, stop=stop - 1, keep=True)]
            probabilities = {
                number: self._probabilities(self.layers[number], inputs[number][:length])
                for number in {layer for layer, _ in heads}
            }
            self.ops.synchronize()  # as in `forward`
            weights = masks.weights if isinstance(masks, RowMasks) else masks
            for i, (layer, head) in enumerate(heads):
                kept = self.config.kept_heads[layer]
                if head in kept:
                    weight = 1.0 if weights is None else weights[layer, head]
                    maps[i] = probabilities[layer][kept.index(head)].numpy(force=True) * weight
        return maps

    @staticmethod
    def _probabilities(layer: Layer, x: Tensor) -> Tensor:
        """Return the attention probabilities of a layer's heads for one sequence, (n, D) → (h, n, n)."""
        attention, length = layer.attention, len(x)
        if attention is None:
            return x.new_zeros(0, length, length)
        projected = attention.query_key_value(layer.attention_input(x)).float()
        parts = projected.view(length, 3, attention.heads, -1)
        if layer.rotation is not None:
            parts = rotated(parts, layer.rotation[:length])
        query, key, _ = parts.permute(1, 2, 0, 3)  # (h, n, d) each
        return attention_probabilities(query, key, visibility_bias(query, layer.window))

    def in_plain_torch(self) -> Self:
        """Return the same network in float32 on `TorchOps`: slower, and differentiable."""
        return type(self)(
            replace(self.config, int8=False),
            self.tensors(),
            device=self.device,
            dtype=torch.float32,
            deterministic=True,
            ops=TorchOps(self.device, torch.float32),
        )


def _itemsize(name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the bytes per number of a checkpoint's tensor once it is loaded."""
    if not tensor.is_floating_point():
        return tensor.itemsize
    return 4 if name.startswith(("bert.pooler", "classifier")) else dtype.itemsize
