"""BERT over packed sequences, with a weight for each head of each sequence.

    x = norm(word + position + segment embeddings)                       (T, D)
    for each layer:
        head_i = softmax(q_i k_iᵀ/√d)·v_i · weight_i                     (T, d) of h heads
        x = norm(x + concat(head_1 … head_h)·W^O)
        x = norm(x + down(activation(up(x))))
    logits = classifier(activation(pooler(x of each first token)))       (B, labels)

Devlin et al. 2019, https://arxiv.org/abs/1810.04805; the tests hold it to transformers' BertModel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.batch import PackedBatch
from models.checkpoint.like_bert import layer_prefix
from models.encoder import Encoder
from models.layer import Layer
from models.ops.torch import Linear, Tensors, activate


class Bert(Encoder):
    """BERT with a classifier on the first token, and the families whose network is the same."""

    layers: list[Layer]

    def lay_out(self, tensors: Tensors) -> None:
        """Make embeddings, layers and classifier."""
        config, ops, embeddings = self.config, self.ops, "bert.embeddings."
        self.word_embeddings = self.table(tensors, f"{embeddings}word_embeddings.weight")
        self.position_embeddings = self.table(tensors, f"{embeddings}position_embeddings.weight")
        self.segment_embeddings: Tensor | None = None
        if config.type_vocab_size:
            self.segment_embeddings = self.table(tensors, f"{embeddings}token_type_embeddings.weight")
        self.embedding_norm = self.norm(tensors, f"{embeddings}LayerNorm")
        self.widen: Linear | None = None
        if config.embedding_size != config.hidden_size:
            self.widen = self.linear(tensors, "bert.embeddings_project")
        self.layers = []
        for number in range(config.num_layers):
            prefix = layer_prefix(number)
            up, down = ops.feed_forward_maps(tensors, prefix, config.activation)
            self.layers.append(
                Layer(
                    attention=self.attention(tensors, number),
                    attention_bias=ops.get(tensors, f"{prefix}attention.output.dense.bias"),
                    attention_norm=self.norm(tensors, f"{prefix}attention.output.LayerNorm"),
                    up=self.part(f"{prefix}intermediate.dense", up),
                    down=self.part(f"{prefix}output.dense", down),
                    feed_forward_norm=self.norm(tensors, f"{prefix}output.LayerNorm"),
                )
            )
        self.pooler = self.linear(tensors, "bert.pooler.dense", torch.float32)
        self.classifier = self.linear(tensors, "classifier", torch.float32)

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return word + position + segment embeddings, normalised (and widened): (T, D)."""
        x = F.embedding(batch.ids, self.word_embeddings)
        if self.segment_embeddings is not None:
            one = self.config.type_vocab_size == 1
            x = x + (self.segment_embeddings if one else F.embedding(batch.segments, self.segment_embeddings))
        x = x + F.embedding(batch.positions, self.position_embeddings)
        x = self.embedding_norm(x)
        return x if self.widen is None else self.widen(x)

    def classify(self, pooled: Tensor) -> Tensor:
        """Apply pooler and classifier to first tokens. (n, D) → (n, labels) float32."""
        return self.classifier(activate(self.pooler(pooled.float()), self.config.head_activation))
