"""Decoders as rerankers: Qwen3, Qwen2 and Gemma over packed prompts, with a weight for each head of queries.

    x = word·scale                                    (T, D)
    for each layer:
        x = x + heads(norm(x))·W^O                    (headroom.models.ops.causal)
        y = norm(x);  x = x + down(act(up(y)) · gate(y))
    classifier(norm(last token of x))                 (B, labels)

norm(x) = x / √(mean(x²) + ε)·w. `headroom.models.checkpoint.decoder` says what the classifier of a language
model is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.batch import PackedBatch
from headroom.models.checkpoint.shapes import layer_prefix
from headroom.models.network import Network
from headroom.models.ops.causal import Causal
from headroom.models.ops.torch import Linear, Norm, Tensors


class DecoderNetwork(Network):
    """A decoder with a classifier on the last token."""

    reads = "last"
    parts = "causal", "maps"

    def lay_out(self, tensors: Tensors) -> None:
        """Make the embeddings, layers and classifier."""
        spec = self.config.decoder
        assert spec is not None
        self.spec = spec
        self.word_embeddings = self.table(tensors, "bert.embeddings.word_embeddings.weight")
        parts = ("query", "key") if spec.head_norms else ()
        self.head_norms = [
            [
                self.table(tensors, f"{layer_prefix(number)}attention.self.{part}_norm.weight").float()
                for part in parts
            ]
            for number in range(self.config.num_layers)
        ]
        self.layers = [self.layer(tensors, number) for number in range(self.config.num_layers)]
        self.final_norm = self.norm(tensors, "bert.final_norm")
        self.classifier = self.table(tensors, "classifier.weight", torch.float32)

    def norm(self, tensors: Tensors, name: str, dtype: torch.dtype | None = None) -> Norm:  # noqa: ARG002
        """Lay out a normalisation by the root mean square."""
        weight = self.table(tensors, f"{name}.weight")
        return self.ops.rms_norm(weight, self.config.layer_norm_eps, self.spec.norm_offset)

    def positions(self, number: int, projection: Linear) -> Causal:  # noqa: ARG002
        """Return which of a layer's heads share keys and values, their norms and rotation."""
        config = self.config
        borders = tuple(range(0, config.num_heads + 1, config.num_heads // self.spec.key_heads))
        rotation = self.rotations[config.ropes[number]]
        whole = Causal(borders, rotation, config.layer_norm_eps, *self.head_norms[number])
        return whole.only(config.kept_heads[number])[0]

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return word embeddings, scaled: (T, D)."""
        x = F.embedding(batch.ids, self.word_embeddings)
        scale = self.spec.embedding_scale
        return x if scale == 1 else x * torch.tensor(scale, dtype=x.dtype).item()  # rounded, on the host

    def classify(self, pooled: Tensor) -> Tensor:
        """Apply the classifier. (n, D) → (n, labels) float32."""
        return F.linear(pooled.float(), self.classifier)
