"""The families whose network is BERT's: what their config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.checkpoint.config import ModelConfig
from models.checkpoint.family import Family
from models.checkpoint.fields import activation, need, positive_float, positive_int
from models.checkpoint.shapes import Shapes, bert_shapes


@dataclass(frozen=True, kw_only=True)
class LikeBert(Family):
    """A family whose network is BERT's.

    fields: BERT's names in config.json → theirs.
    embedding_size: the default width of the embeddings, which a linear map widens; None: the layers' width.
    token_types: the fewest that a checkpoint may have; 0: the family has none.
    skips_pad: positions begin at pad_token_id + 1; the rows of the position table before that are dropped.
    head: the activation of the classifier's dense layer.
    layer_norm_eps: LayerNorm's epsilon if config.json has no say in it.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    embedding_size: int | None = None
    skips_pad: bool = False
    token_types: int = 2
    head: str = "tanh"
    layer_norm_eps: float | None = None
    network: str = "bert"

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""

        def size(name: str, default: int | None = None) -> int:
            return positive_int(raw, self.fields.get(name, name), default)

        hidden, heads = size("hidden_size"), size("num_attention_heads")
        need(
            hidden % heads == 0,
            "hidden_size",
            hidden,
            f"it must be a multiple of num_attention_heads {heads}",
        )
        skipped = self._skipped(raw)
        positions = size("max_position_embeddings", 512) - skipped
        wanted = f"it must be at least {skipped + 1}, because positions begin after pad_token_id"
        need(positions >= 1, "max_position_embeddings", positions + skipped, wanted)
        types = positive_int(raw, "type_vocab_size", 2) if self.token_types else 0
        wanted = "a query-title classifier needs two segments"
        need(types >= self.token_types, "type_vocab_size", types, wanted)
        return ModelConfig(
            vocab_size=size("vocab_size"),
            hidden_size=hidden,
            embedding_size=size("embedding_size", self.embedding_size) if self.embedding_size else hidden,
            num_layers=size("num_hidden_layers"),
            num_heads=heads,
            intermediate_size=size("intermediate_size"),
            max_positions=positions,
            skipped_positions=skipped,
            type_vocab_size=types,
            layer_norm_eps=self.layer_norm_eps
            or positive_float(raw.get("layer_norm_eps", 1e-12), "layer_norm_eps"),
            activation=activation(raw, self.fields.get("hidden_act", "hidden_act")),
            head_activation=self.head,
        )

    def expected(self, config: ModelConfig) -> Shapes:
        """Return every float tensor of the network with its shape."""
        return bert_shapes(config)

    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say how many layers and units there are."""
        sizes = {"num_hidden_layers": config.num_layers, "intermediate_size": config.intermediate_size}
        return {self.fields.get(name, name): size for name, size in sizes.items()}

    def _skipped(self, raw: Mapping[str, Any]) -> int:
        if not self.skips_pad:
            return 0
        pad = raw.get("pad_token_id", 1)
        is_right = type(pad) is int and pad >= 0
        need(is_right, "pad_token_id", pad, "positions begin after it, so it must be ≥ 0")
        return int(pad) + 1
