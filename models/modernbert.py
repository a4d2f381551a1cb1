"""ModernBERT over packed sequences, with a weight for each head of each sequence.

    x = norm(word embeddings)                                            (T, D)
    for each layer:
        q, k, v = norm(x)·W^QKV, q and k rotated by their positions      norm: not in the first layer
        head_i = softmax(q_i k_iᵀ/√d)·v_i · weight_i                     (T, d) of h heads
        x = x + concat(head_1 … head_h)·W^O
        y = norm(x)
        x = x + down(activation(up(y)) · gate(y))
    logits = classifier(norm(activation(dense(pool(norm(x))))))          (B, labels)

In local layers a token attends to its neighbours alone. `pool` takes the first token or the mean of all.
Warner et al. 2024, https://arxiv.org/abs/2412.13663; the tests hold it to transformers' ModernBertModel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.batch import PackedBatch
from models.checkpoint.like_bert import layer_prefix
from models.checkpoint.modernbert import ModernBertConfig
from models.encoder import Encoder
from models.layer import Layer
from models.ops.torch import Tensors, activate, rotations


class ModernBert(Encoder):
    """ModernBERT with a classifier on the first token or on the mean of all tokens."""

    config: ModernBertConfig
    layers: list[Layer]

    def lay_out(self, tensors: Tensors) -> None:
        """Make the layers, embeddings and classifier."""
        config, ops = self.config, self.ops
        self.reads_first_tokens = not config.pools_mean
        self.word_embeddings = self.table(tensors, "bert.embeddings.word_embeddings.weight")
        self.embedding_norm = self.norm(tensors, "bert.embeddings.LayerNorm")
        turns = {
            theta: rotations(theta, config.max_positions, config.head_size, self.device)
            for theta in set(config.thetas)
        }
        self.layers = []
        for number in range(config.num_layers):
            prefix = layer_prefix(number)
            up, gate, down = ops.gated_maps(tensors, prefix, config.activation)
            # What enters the first layer is normalised already.
            before = self.norm(tensors, f"{prefix}attention.LayerNorm") if number else None
            self.layers.append(
                Layer(
                    attention=self.attention(tensors, number),
                    attention_bias=ops.get(tensors, f"{prefix}attention.output.dense.bias"),
                    rotation=turns[config.thetas[number]],
                    window=config.windows[number],
                    attention_input_norm=before,
                    feed_forward_input_norm=self.norm(tensors, f"{prefix}intermediate.LayerNorm"),
                    up=self.part(f"{prefix}intermediate.dense", up),
                    gate=self.part(f"{prefix}gate.dense", gate),
                    down=self.part(f"{prefix}output.dense", down),
                )
            )
        self.final_norm = self.norm(tensors, "bert.final_norm")
        self.dense = self.linear(tensors, "bert.pooler.dense", torch.float32)
        self.dense_norm = self.norm(tensors, "bert.pooler.LayerNorm", torch.float32)
        self.classifier = self.linear(tensors, "classifier", torch.float32)

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return word embeddings, normalised: (T, D)."""
        return self.embedding_norm(F.embedding(batch.ids, self.word_embeddings))

    def pool(self, x: Tensor, batch: PackedBatch) -> Tensor:
        """Return the normalised first tokens, or the mean of each sequence's: (B, D)."""
        x = self.final_norm(x)
        if self.reads_first_tokens:
            return x
        # The last bag ends with the list, whatever its offset: what fills up the pack must not be in it.
        tokens = torch.arange(int(batch.lengths.sum()), dtype=torch.int32, device=self.device)
        return F.embedding_bag(tokens, x.float(), batch.offsets, mode="mean", include_last_offset=True)

    def classify(self, pooled: Tensor) -> Tensor:
        """Apply the dense layer, its norm and the classifier. (n, D) → (n, labels) float32."""
        dense = activate(self.dense(pooled.float()), self.config.head_activation)
        return self.classifier(self.dense_norm(dense))
