"""The model families: what each one's checkpoints are, in the terms of a network of ours.

BERT's names are the canonical ones inside. A checkpoint of another family is translated when it is read, and
back when it is written; what is between knows nothing of families.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from models.checkpoint.config import ModelConfig
from models.checkpoint.like_bert import LikeBert, Shapes
from models.checkpoint.modernbert import ModernBertFamily

if TYPE_CHECKING:  # errors are reported before torch is imported
    from torch import Tensor


class Family(Protocol):
    """A model family, as the rest of the program sees it.

    network: names its network class, in `models.network`.
    """

    @property
    def network(self) -> str: ...

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the shape of the network that a config.json describes; `parse_config` adds the rest.

        Raises UnsupportedCheckpoint for what the network would not compute exactly.
        """

    def of_layers(self, config: ModelConfig, layers: Sequence[int]) -> ModelConfig:
        """Return the shape of a network of only these layers; `kept_heads` and `widths` stay as they are."""

    def check_removable(self, layers: Collection[int]) -> None:
        """Raise ModelError if the family's checkpoints cannot say that these layers are gone."""

    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say which layers there are, and how many units they have."""

    def expected(self, config: ModelConfig) -> Shapes:
        """Return every float tensor of the network with its shape; narrower attention where it is pruned."""

    def ours(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return a checkpoint's tensors as our network takes them, other tasks' tensors perhaps too."""

    def theirs(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return our network's tensors as the family's checkpoints hold them."""

    def their_name(self, name: str) -> str:
        """Return the name of one of our tensors in a checkpoint, for messages."""


_DENSE_HEAD = {"bert.pooler.dense.": "classifier.dense.", "classifier.": "classifier.out_proj."}
_ROBERTA = LikeBert(
    encoder="roberta.",
    names=_DENSE_HEAD,
    token_types=1,
    skips_pad=True,
)

FAMILIES: dict[str, Family] = {
    # Devlin et al. 2019. [CLS] q [SEP] t [SEP], types 0 and 1, WordPiece; the head reads tanh(pooler(first)).
    "bert": LikeBert(encoder="bert."),
    # Liu et al. 2019. <s> q </s></s> t </s>, byte-level BPE; no pooler: the head has its own dense layer.
    "roberta": _ROBERTA,
    # Conneau et al. 2020. RoBERTa with Unigram pieces of 100 languages.
    "xlm-roberta": _ROBERTA,
    # Martin et al. 2020. RoBERTa with French Unigram pieces.
    "camembert": _ROBERTA,
    # Clark et al. 2020. BERT's pairs, RoBERTa's head with GELU; embeddings of 128 in the small ones.
    "electra": LikeBert(
        encoder="electra.",
        names=_DENSE_HEAD,
        embedding_size=128,
        head="gelu",
    ),
    # Sanh et al. 2019. BERT's pairs without token types; ReLU in the head.
    "distilbert": LikeBert(
        encoder="distilbert.",
        names={"bert.pooler.dense.": "pre_classifier."},
        layer="transformer.layer.",
        in_layer={
            "attention.self.query.": "attention.q_lin.",
            "attention.self.key.": "attention.k_lin.",
            "attention.self.value.": "attention.v_lin.",
            "attention.output.dense.": "attention.out_lin.",
            "attention.output.LayerNorm.": "sa_layer_norm.",
            "intermediate.dense.": "ffn.lin1.",
            "output.dense.": "ffn.lin2.",
            "output.LayerNorm.": "output_layer_norm.",
        },
        fields={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        token_types=0,
        head="relu",
        layer_norm_eps=1e-12,
    ),
    # Warner et al. 2024. Pre-norm, rotary positions, GeGLU, local attention; byte-level BPE, BERT's pairs.
    "modernbert": ModernBertFamily(),
}
