"""Makes a BERT that can match terms before any training and that can grow from few layers to many."""

import copy
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from models.training.data import GRADES

Model: TypeAlias = PreTrainedModel
"""A sequence classifier of transformers, of any family."""


def new_model(
    *,
    vocab_size: int,
    layers: int,
    heads: int,
    hidden: int,
    feed_forward: int,
    max_tokens: int,
    vectors: Tensor,
    seed: int,
    labels: Sequence[str] = GRADES,
) -> Model:
    """Return an untrained classifier of grades. vectors: (vocab_size, hidden), unit vectors of the pieces."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocab_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        max_position_embeddings=max_tokens,
        hidden_dropout_prob=0.0,  # made-up pairs never repeat; each stage sets its own
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(labels)),
        label2id={name: grade for grade, name in enumerate(labels)},
    )
    config._attn_implementation = "eager"  # trains twice as fast as sdpa on a CPU under bf16 autocast
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        _start_embeddings(model, vectors)
        for layer in model.bert.encoder.layer:
            _start_by_matching(layer, model.bert.embeddings.token_type_embeddings.weight, heads)
    return model


def _start_embeddings(model: Model, vectors: Tensor) -> None:
    """Start pieces at their vectors plus some noise, and the two segments in opposite directions."""
    embeddings = model.bert.embeddings
    hidden = vectors.shape[1]
    noise = nn.functional.normalize(torch.randn_like(vectors), dim=1)
    embeddings.word_embeddings.weight.copy_(0.8 * vectors + 0.6 * noise)
    embeddings.position_embeddings.weight.copy_(
        0.3 * _sinusoids(embeddings.position_embeddings.num_embeddings, hidden)
    )
    side = 0.5 * nn.functional.normalize(torch.randn(hidden), dim=0)
    embeddings.token_type_embeddings.weight.copy_(torch.stack([side, -side]))


def _start_by_matching(layer: Any, segments: Tensor, heads: int) -> None:
    """Let heads start by attending to equal content; every second one prefers it in the other segment.

    Trockman and Kolter 2023, "Mimetic Initialization of Self-Attention Layers": WqWk^T near the identity,
    WvWo too. Flipping the segment direction in Wk turns "the same piece" into "the same piece across [SEP]".
    """
    attention, output = layer.attention.self, layer.attention.output.dense
    hidden = segments.shape[1]
    look, carry = (torch.linalg.qr(torch.randn(hidden, hidden)).Q for _ in range(2))
    side = nn.functional.normalize(segments[0], dim=0)
    other_side = torch.eye(hidden) - 2 * torch.outer(side, side)
    across = (torch.arange(hidden) // (hidden // heads) % 2 == 0).unsqueeze(
        1
    )  # (hidden, 1): rows of even heads
    attention.query.weight.copy_(1.3 * look)
    attention.key.weight.copy_(1.3 * torch.where(across, look @ other_side, look))
    attention.value.weight.copy_(carry)
    output.weight.copy_(0.5 * carry.T)


def _sinusoids(positions: int, hidden: int) -> Tensor:
    """Return unit vectors, (positions, hidden), in which a shift is a rotation (Vaswani et al. 2017, 3.5)."""
    frequency = torch.exp(torch.arange(0, hidden, 2) * (-math.log(1e4) / hidden))
    angle = torch.arange(positions).unsqueeze(1) * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1) / math.sqrt(hidden / 2)


def stacked(model: Model, layers: int, *, added_output: float = 0.15) -> Model:
    """Return the model grown to `layers`, a multiple of its layers, by copying its whole stack on top.

    Gong et al. 2019, "Efficient Training of BERT by Progressively Stacking". Added layers' outputs are scaled
    by `added_output`, so that the grown model starts out nearly as good as the small one.
    """
    few = model.config.num_hidden_layers
    if layers % few:
        raise ValueError(f"{layers} layers are no multiple of {few}")
    grown = copy.deepcopy(model)
    stack = [copy.deepcopy(model.bert.encoder.layer[index % few]) for index in range(layers)]
    with torch.no_grad():
        for layer in stack[few:]:
            for output in (layer.attention.output.dense, layer.output.dense):
                output.weight.mul_(added_output)
                output.bias.mul_(added_output)
    grown.bert.encoder.layer = nn.ModuleList(stack)
    grown.config.num_hidden_layers = layers
    return grown
