"""Decoders as rerankers: Qwen3, Qwen2 and Gemma over packed prompts, with a weight for each head of queries.

    x = word·scale                                    (T, D)
    for each layer:
        x = x + heads(norm(x))·W^O                    (models.ops.causal)
        y = norm(x);  x = x + down(act(up(y)) · gate(y))
    classifier(norm(last token of x))                 (B, labels)

norm(x) = x / √(mean(x²) + ε)·w. What the classifier of a language model is says `models.checkpoint.decoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from models.batch import PackedBatch
from models.checkpoint.shapes import PROJECTIONS, layer_prefix
from models.layer import MultiHeadAttention, head_rows
from models.network import Network
from models.ops.causal import Causal
from models.ops.torch import Norm, Tensors, attention_probabilities


@dataclass(frozen=True, slots=True)
class GroupedAttention(MultiHeadAttention):
    """The weights of h heads of queries, several of which share a head of keys and values.

    query_key_value: d_model → (h + 2·groups)·d_head.
    """

    causal: Causal = field(kw_only=True)

    def only(self, heads: Sequence[int]) -> GroupedAttention:
        """Return a copy of some heads, and of the keys and values that they read."""
        causal, groups = self.causal.only(heads)
        columns, read = head_rows(heads, self.head_size), head_rows(groups, self.head_size)
        keys = self.count * self.head_size
        rows = torch.cat([columns, keys + read, keys + self.causal.groups * self.head_size + read])
        return GroupedAttention(
            *(len(heads), self.head_size, self.query_key_value.rows(rows), self.output.columns(columns)),
            causal=causal,
        )

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the attention probabilities within one sequence, (n, d_model) → (h, n, n)."""
        query, key, _ = self.causal.parts(self.query_key_value(x).float())
        bias = query.new_full((len(x), len(x)), -torch.inf).triu_(1)  # 0 for each key that is seen
        return attention_probabilities(query, self.causal.grouped(key), bias)


class DecoderNetwork(Network):
    """A decoder with a classifier on the last token."""

    reads = "last"

    def lay_out(self, tensors: Tensors) -> None:
        """Make the embeddings, layers and classifier."""
        how = self.config.decoder
        assert how is not None
        self.how = how
        self.word_embeddings = self.table(tensors, "bert.embeddings.word_embeddings.weight")
        self.layers = [self.layer(tensors, number) for number in range(self.config.num_layers)]
        self.final_norm = self.norm(tensors, "bert.final_norm")
        self.classifier = self.table(tensors, "classifier.weight", torch.float32)

    def norm(self, tensors: Tensors, name: str, dtype: torch.dtype | None = None) -> Norm:  # noqa: ARG002
        """Lay out a normalisation by the root mean square."""
        weight = self.table(tensors, f"{name}.weight")
        return self.ops.rms_norm(weight, self.config.layer_norm_eps, self.how.norm_offset)

    def heads(self, tensors: Tensors, number: int, norm: Norm | None = None) -> GroupedAttention | None:
        """Lay out the heads of a layer; None if pruning left none."""
        kept, prefix = self.config.kept_heads[number], layer_prefix(number)
        query_norm = key_norm = None
        if self.how.head_norms:
            query_norm, key_norm = (
                self.table(tensors, f"{prefix}attention.self.{name}_norm.weight").float()
                for name in ("query", "key")
            )
        if not kept:
            return None
        borders = tuple(range(0, self.config.num_heads + 1, self.config.num_heads // self.how.key_heads))
        rotation = self.rotations[self.config.ropes[number]]
        whole = Causal(borders, rotation, query_norm, key_norm, self.config.layer_norm_eps)
        projections = [f"{prefix}{name}" for name in PROJECTIONS]
        return GroupedAttention(
            len(kept),
            self.config.head_size,
            self.map(tensors, *projections, reads=f"{prefix}attention.self"),
            self.map(tensors, f"{prefix}attention.output.dense", norm=norm),
            causal=whole.only(kept)[0],
        )

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return word embeddings, scaled: (T, D)."""
        x = F.embedding(batch.ids, self.word_embeddings)
        scale = self.how.embedding_scale
        return x if scale == 1 else x * torch.tensor(scale, dtype=x.dtype, device=x.device)

    def attend(
        self, heads: MultiHeadAttention, x: Tensor, batch: PackedBatch, weights: Tensor | None
    ) -> Tensor:
        """Return concat(head_1 … head_h), the input of W^O, as `Network.attend` does."""
        assert isinstance(heads, GroupedAttention)
        return self.ops.causal(heads.query_key_value(x), batch, heads.causal, weights)

    def classify(self, pooled: Tensor) -> Tensor:
        """Apply the classifier. (n, D) → (n, labels) float32."""
        return F.linear(pooled.float(), self.classifier)
