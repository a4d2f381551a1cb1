"""BERT over packed sequences, with a weight for each head of each sequence.

    x = norm(word + position + segment embeddings)                       (T, D)
    for each layer:
        head_i = softmax(q_i k_iᵀ/√d)·v_i · weight_i                     (T, d) of h heads
        x = norm(x + concat(head_1 … head_h)·W^O)
        x = norm(x + down(activation(up(x))))
    logits = classifier(activation(pooler(x of each first token)))       (B, labels)

Devlin et al. 2019, https://arxiv.org/abs/1810.04805; the tests hold it to transformers' BertModel. A head's
weight multiplies its output before W^O, which equals multiplying its attention probabilities. What differs
between processors is in `models.ops`; which heads a batch needs is found in `models.live_heads`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.batch import PackedBatch
from models.checkpoint.config import ModelConfig
from models.checkpoint.like_bert import layer_prefix
from models.checkpoint.tensors import expected_shapes
from models.live_heads import AttentionHeads, Live, LiveHeads
from models.ops import choose
from models.ops.torch import Linear, Norm, TorchOps, activate, attention_probabilities

_WIDEN = "bert.embeddings_project"


@dataclass(frozen=True, slots=True)
class Layer:
    """One post-norm transformer layer. `attention` is None if pruning left no head."""

    attention: AttentionHeads | None
    attention_bias: Tensor
    attention_norm: Norm
    up: Linear
    down: Linear
    norm: Norm


class Bert:
    """A classifier's network, its weights laid out for one device.

    tensors: what `models.checkpoint.tensors.read_tensors` returns.
    dtype: of weights and activations; pooler and classifier always compute in float32.
    deterministic: float32 results that are the same bits in any batch; heads are then never cut out.
    ops: default: the fastest that the device has.
    parameters, nbytes: the number of weights, and the bytes that they take up here.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: torch.device,
        dtype: torch.dtype,
        deterministic: bool = False,
        ops: TorchOps | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self.deterministic = deterministic
        self.ops = ops = ops or choose(config, device, dtype, deterministic=deterministic)

        def norm(name: str) -> Norm:
            weight, bias = (ops.get(tensors, f"{name}.{part}") for part in ("weight", "bias"))
            return ops.norm(weight, bias, config.layer_norm_eps)

        def float32_map(name: str) -> Linear:
            weight, bias = (ops.get(tensors, f"{name}.{p}", torch.float32) for p in ("weight", "bias"))
            return ops.linear(weight, bias)

        embeddings = "bert.embeddings."
        self.word_embeddings = ops.get(tensors, f"{embeddings}word_embeddings.weight")
        self.position_embeddings = ops.get(tensors, f"{embeddings}position_embeddings.weight")
        self.segment_embeddings: Tensor | None = None
        if config.type_vocab_size:
            self.segment_embeddings = ops.get(tensors, f"{embeddings}token_type_embeddings.weight")
        self.embedding_norm = norm(f"{embeddings}LayerNorm")
        self.widen: Linear | None = None
        if config.embedding_size != config.hidden_size:
            weight, bias = (ops.get(tensors, f"{_WIDEN}.{part}") for part in ("weight", "bias"))
            self.widen = ops.linear(weight, bias)
        self.layers: list[Layer] = []
        for number, kept in enumerate(config.kept_heads):
            prefix = layer_prefix(number)
            attention = None
            if kept:
                attention = AttentionHeads(len(kept), config.head_size, *ops.attention_maps(tensors, prefix))
            self.layers.append(
                Layer(
                    attention,
                    ops.get(tensors, f"{prefix}attention.output.dense.bias"),
                    norm(f"{prefix}attention.output.LayerNorm"),
                    *ops.feed_forward_maps(tensors, prefix, config.activation),
                    norm(f"{prefix}output.LayerNorm"),
                )
            )
        self.pooler = float32_map("bert.pooler.dense")
        self.classifier = float32_map("classifier")
        names = [name for name, _ in expected_shapes(config)]
        self.parameters = sum(tensors[name].numel() for name in names)
        self.nbytes = sum(tensors[name].numel() * _itemsize(name, tensors[name], dtype) for name in names)
        attention_of_layers = [layer.attention for layer in self.layers]
        self.live_heads = LiveHeads(config, attention_of_layers, device, cuts=not deterministic)
        ops.synchronize()  # from here on, other threads' streams may use the weights

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

    def forward(
        self, batch: PackedBatch, head_weights: np.ndarray | None = None, *, sliced: bool = False
    ) -> Tensor:
        """Return the logits of a packed batch.

        head_weights: (rows, layers, heads) float32 in the caller's order of rows, or (layers, heads) for all
            rows; 1 keeps a head, 0 removes it; None keeps all.
        sliced: the mask belongs to a sliced variant, so exactly its live heads are computed.
        Returns (rows, labels) float32 in the caller's order, labels as in the checkpoint.
        """
        if head_weights is not None and head_weights.ndim == 3:
            head_weights = head_weights[batch.order]
        with torch.inference_mode():
            live = self.live_heads.of(head_weights, sliced=sliced)

            def compute(batch: PackedBatch, weights: Sequence[Tensor | None]) -> Tensor:
                held = [replace(one, weights=weight) for one, weight in zip(live, weights, strict=True)]
                return self.logits(batch, held)

            weights = [one.weights for one in live]
            logits = self.ops.run(compute, batch, weights, tuple(one.cut for one in live))[: batch.rows]
            restored = torch.empty_like(logits)
            restored[torch.from_numpy(batch.order).to(self.device)] = logits
            self.ops.synchronize()  # only then may another stream reuse the memory of `live`
            return restored

    def logits(self, batch: PackedBatch, live: Sequence[Live]) -> Tensor:
        """Return the logits of a pack's first tokens, (B or more, labels) float32, in the pack's order."""
        x = self.embed(batch)
        for output in self.layer_outputs(x, batch, live, first_only=True):
            x = output
        return self.classify(x)

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return word + position + segment embeddings, normalised (and widened): (T, D)."""
        x = F.embedding(batch.ids, self.word_embeddings)
        if self.segment_embeddings is not None:
            one = self.config.type_vocab_size == 1
            x = x + (self.segment_embeddings if one else F.embedding(batch.segments, self.segment_embeddings))
        x = x + F.embedding(batch.positions, self.position_embeddings)
        x = self.embedding_norm(x)
        return x if self.widen is None else self.widen(x)

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
        first_only: the network's last layer computes first tokens only, (B, D), as the classifier needs.
        keep: the caller keeps x and what is yielded, so no layer may overwrite its input.
        """
        for number in range(start, len(self.layers) if stop is None else stop):
            first = first_only and number == len(self.layers) - 1
            residual = x[batch.first_token] if first else x
            context = self.context(number, x, batch, live[number], first_only=first)
            x = self.after_attention(number, residual, context, live[number], overwrite=not keep)
            x = self.feed_forward(number, x)
            yield x

    def context(  # `number` is for networks that normalise before attention
        self,
        number: int,  # noqa: ARG002
        x: Tensor,
        batch: PackedBatch,
        live: Live,
        *,
        first_only: bool = False,
    ) -> Tensor | None:
        """Return concat(head_1 … head_h) of layer `number`, (T, h·d) or (B, h·d), the input of W^O; None if
        no head is live."""
        if live.attention is None:
            return None
        projected = live.attention.query_key_value(x)  # (T, 3·h·d)
        heads = live.attention.heads
        return self.ops.attention(projected, batch, heads, live.weights, first_only=first_only)

    def after_attention(
        self, number: int, residual: Tensor, context: Tensor | None, live: Live, *, overwrite: bool = False
    ) -> Tensor:
        """Return norm(residual + context·W^O), (T, D). overwrite: the residual's memory may be used."""
        layer = self.layers[number]
        if context is None or live.attention is None:  # only the bias of W^O remains
            return layer.attention_norm(residual + layer.attention_bias)
        return layer.attention_norm(live.attention.output(context, residual=residual, overwrite=overwrite))

    def feed_forward(self, number: int, x: Tensor) -> Tensor:
        """Compute the feed-forward half of layer `number`. x: (T, D), may be overwritten → (T, D)."""
        layer = self.layers[number]
        return layer.norm(layer.down(layer.up(x), residual=x, overwrite=True))

    def classify(self, first: Tensor) -> Tensor:
        """Apply pooler and classifier to first tokens. (n, D) → (n, labels) float32."""
        return self.classifier(activate(self.pooler(first.float()), self.config.head_activation))

    def attention_maps(
        self, batch: PackedBatch, heads: Sequence[tuple[int, int]], head_weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Return what some heads attend to in a batch of one pair of n tokens.

        heads: (layer, head) in the numbering of the unpruned model; head_weights: (layers, heads).
        A head that is pruned or has weight w < 1 shows its probabilities times w (zeros if it is off).
        Returns (len(heads), n, n) float32; row i is what token i attends to.
        """
        length = int(batch.lengths[0])
        maps = np.zeros((len(heads), length, length), np.float32)
        with torch.inference_mode():
            x = self.embed(batch)
            live = self.live_heads.of(head_weights)
            stop = max(layer for layer, _ in heads) + 1
            inputs = [x, *self.layer_outputs(x, batch, live, stop=stop - 1, keep=True)]
            for number in sorted({layer for layer, _ in heads}):
                attention, kept = self.layers[number].attention, self.config.kept_heads[number]
                if attention is None:
                    continue
                projected = attention.query_key_value(inputs[number][:length]).float()
                query, key, _ = projected.view(length, 3, attention.heads, -1).permute(
                    1, 2, 0, 3
                )  # (h, n, d)
                probabilities = attention_probabilities(query, key).numpy(force=True)  # (h, n, n)
                for i, (layer, head) in enumerate(heads):
                    if layer == number and head in kept:
                        weight = 1.0 if head_weights is None else head_weights[number, head]
                        maps[i] = probabilities[kept.index(head)] * weight
        return maps

    def in_plain_torch(self) -> Bert:
        """Return the same network in float32 on `TorchOps`: slower, and differentiable."""
        return Bert(
            replace(self.config, int8=False),
            self.tensors(),
            device=self.device,
            dtype=torch.float32,
            deterministic=True,
            ops=TorchOps(self.device, torch.float32),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return float32 weights under a checkpoint's names; int8 weights as the floats they stand for."""
        linears = {"bert.pooler.dense": self.pooler, "classifier": self.classifier}
        norms = {"bert.embeddings.LayerNorm": self.embedding_norm}
        tensors = {
            "bert.embeddings.word_embeddings.weight": self.word_embeddings,
            "bert.embeddings.position_embeddings.weight": self.position_embeddings,
        }
        if self.segment_embeddings is not None:
            tensors["bert.embeddings.token_type_embeddings.weight"] = self.segment_embeddings
        if self.widen is not None:
            linears[_WIDEN] = self.widen
        for number, layer in enumerate(self.layers):
            prefix = layer_prefix(number)
            norms |= {f"{prefix}attention.output.LayerNorm": layer.attention_norm}
            norms |= {f"{prefix}output.LayerNorm": layer.norm}
            linears |= {f"{prefix}intermediate.dense": layer.up, f"{prefix}output.dense": layer.down}
            tensors[f"{prefix}attention.output.dense.bias"] = layer.attention_bias
            if layer.attention is not None:
                linears[f"{prefix}attention.output.dense"] = layer.attention.output
                projection = layer.attention.query_key_value
                weights, biases = projection.weight.chunk(3), projection.bias.chunk(3)
                for i, name in enumerate(("query", "key", "value")):
                    tensors[f"{prefix}attention.self.{name}.weight"] = weights[i]
                    tensors[f"{prefix}attention.self.{name}.bias"] = biases[i]
        for name, module in (linears | norms).items():
            tensors |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
        empty = {name: torch.zeros(shape) for name, shape in expected_shapes(self.config)}  # of pruned layers
        return empty | {name: tensor.float() for name, tensor in tensors.items()}


def _itemsize(name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the bytes per number of a checkpoint's tensor once it is loaded."""
    if not tensor.is_floating_point():
        return tensor.itemsize
    return 4 if name.startswith(("bert.pooler", "classifier")) else dtype.itemsize
