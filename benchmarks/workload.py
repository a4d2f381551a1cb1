"""Makes the seeded pairs and networks that every engine is measured with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, PreTrainedModel

from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.families import FAMILIES
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.selection import RowMasks

PAIRS = 64
"""Sequences per batch, sorted by length for engines that pad."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a network. family: its model_type in transformers."""

    name: str
    hidden: int
    inner: int
    vocabulary: int
    layers: int = 12
    heads: int = 12
    family: str = "bert"

    @property
    def up_maps(self) -> int:
        """Return the number of maps from hidden to inner; a gated feed-forward network has two."""
        return 2 if self.family == "modernbert" else 1


SHAPES = {
    "base": Shape("BERT-base, 12 × 12 × 768", 768, 3072, 46_000),
    "shipped": Shape("shipped, 12 × 12 × 384", 384, 1536, 46_000),
    "modernbert": Shape("ModernBERT-base, 22 × 12 × 768", 768, 1152, 50_368, layers=22, family="modernbert"),
    "deberta": Shape("DeBERTa-v3-base, 12 × 12 × 768", 768, 3072, 46_000, family="deberta-v2"),
}
"""All are measured with the shipped tokenizer, so they have at least its pieces. ModernBERT-base's shape is
also that of cross-encoder/ettin-reranker-150m-v1."""

BERT_SHAPES = ("base", "shipped")

_OF_FAMILY: dict[str, dict[str, Any]] = {
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    }
}
"""What a family's config.json needs besides a shape, as microsoft/deberta-v3-base has it."""

SAMPLE = Path(__file__).parents[1] / "data" / "sample"


def query_title_lengths(count: int) -> np.ndarray:
    """Return token counts of query–title pairs as in a public product-search set: mean 25, p95 39, p99 48."""
    lengths = np.random.default_rng(0).gamma(9.4, 25 / 9.4, count)
    return np.clip(np.rint(lengths), 8, 128).astype(int)


def document_lengths(count: int) -> np.ndarray:
    """Return token counts of query–document pairs from 96 to 128, of which a third were cut to 128."""
    lengths = np.random.default_rng(0).integers(96, 145, count)
    return np.minimum(lengths, 128)


def random_masks(shape: Shape, rows: int) -> RowMasks:
    """Return a different mask for every row, with a random 20 % of the heads off."""
    rng = np.random.default_rng(0)
    return RowMasks((rng.random((rows, shape.layers, shape.heads)) >= 0.2).astype(np.float32))


def pairs(lengths: np.ndarray, vocabulary: int) -> list[EncodedPair]:
    """Return pairs of random tokens with these lengths; a third of each is the query."""
    rng = np.random.default_rng(0)

    def pair(length: int) -> EncodedPair:
        ids = rng.integers(5, vocabulary, length).astype(np.int32)
        return EncodedPair(ids.tobytes(), max(1, length // 3), unknown_tokens=0, truncated=False)

    return [pair(length) for length in lengths.tolist()]


def network(shape: Shape) -> PreTrainedModel:
    """Return a transformers classifier of this shape with random weights; they do not affect speed."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[shape.family](
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        num_labels=5,
        pad_token_id=0,
        **_OF_FAMILY.get(shape.family, {}),
    )
    return MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)](config).eval()


def encoder(model: PreTrainedModel, dtype: torch.dtype) -> Network:
    """Return our network with the weights of a transformers model, on the CPU."""
    config = parse_config(model.config.to_dict())
    tensors = FAMILIES[config.family].ours(model.state_dict(), config)
    return build(config, tensors, device=torch.device("cpu"), dtype=dtype)


def products(shape: Shape) -> list[tuple[int, int]]:
    """Return outputs and inputs of each matrix product of a layer."""
    hidden = shape.hidden
    inner = shape.inner
    return [(3 * hidden, hidden), (hidden, hidden), *[(inner, hidden)] * shape.up_maps, (hidden, inner)]


def useful_flops(
    shape: Shape,
    lengths: np.ndarray,
    heads_on: float | Sequence[float] = 1.0,
    units_on: float | Sequence[float] = 1.0,
) -> float:
    """Return the multiplications and additions for these sequences: GEMMs and attention products.

    Padding does not count. In the last layer, only keys and values count for all tokens, because the
    classifier reads the first token alone. heads_on, units_on: share of heads and of feed-forward units that
    are on, of all layers or of each.
    """
    tokens = int(lengths.sum())
    rows = len(lengths)
    hidden = shape.hidden
    last = np.arange(shape.layers) == shape.layers - 1
    queries = np.where(last, rows, tokens)
    scores = np.where(last, tokens, (lengths.astype(float) ** 2).sum())
    attention = 4 * (tokens + queries) * hidden**2 + 4 * scores * hidden
    maps = 2 * (shape.up_maps + 1) * queries * hidden * shape.inner  # of the feed-forward network
    return float((np.asarray(heads_on) * attention + np.asarray(units_on) * maps).sum())
