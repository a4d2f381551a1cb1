"""Pre-trains a masked language model on pairs of neighbouring lines.

The second line of a pair often says what the first one says (a title and its description, a word and its
definition). So the model learns to fill gaps by looking across [SEP], which relevance needs too.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.training.batches import Batch, Ids, grouped, padded
from models.training.network import Model
from models.training.vocabulary import MASK, SPECIAL_TOKENS


class MaskedLanguageModel(nn.Module):
    """A classifier's encoder with a word-prediction head on it, tied to the embeddings."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden = model.config.hidden_size
        self.encoder: Any = model.bert
        self.transform = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.bias = nn.Parameter(torch.zeros(model.config.vocab_size))

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean cross-entropy over the masked positions, in nats."""
        states = self.encoder.embeddings(input_ids=batch.ids, token_type_ids=batch.segments)  # (B, n, D)
        blocked = (1.0 - batch.mask[:, None, None, :].to(states.dtype)) * torch.finfo(states.dtype).min
        states = self.encoder.encoder(states, attention_mask=blocked).last_hidden_state
        asked = batch.labels >= 0  # (B, n)
        states = self.norm(F.gelu(self.transform(states[asked])))  # (M, D)
        logits = F.linear(states, self.encoder.embeddings.word_embeddings.weight, self.bias)  # (M, vocab)
        return F.cross_entropy(logits.float(), batch.labels[asked])


def masked_round(
    text: Sequence[Sequence[Ids]],
    *,
    index: int,
    pairs: int,
    max_tokens: int,
    batch_tokens: int,
    vocab_size: int,
) -> list[Batch]:
    """Return a round of masked batches; larger sources give more. It depends on `index` alone."""
    rng = np.random.default_rng([1, index])
    shares = np.array([len(lines) for lines in text], dtype=float)
    picks = rng.choice(len(text), size=pairs, p=shares / shares.sum())
    sequences = []
    for source in picks:
        lines = text[source]
        first = int(rng.integers(len(lines) - 1))
        room = max_tokens - 3
        left = lines[first][: room // 2]
        right = lines[first + 1][: room - len(left)]
        sequences.append((left, right))
    batches = [
        _mask(padded([sequences[place] for place in places]), rng, vocab_size)
        for places in grouped(
            [len(left) + len(right) + 3 for left, right in sequences], batch_tokens=batch_tokens
        )
    ]
    return [batches[place] for place in rng.permutation(len(batches))]


def _mask(padded: tuple[Tensor, Tensor, Tensor], rng: np.random.Generator, vocab_size: int) -> Batch:
    """Mask 15 % of the tokens: 80 % become [MASK], 10 % a random piece, 10 % stay (Devlin et al. 2019)."""
    ids, segments, mask = padded
    draw = torch.from_numpy(rng.random(ids.shape))
    asked = (draw < 0.15) & (ids >= len(SPECIAL_TOKENS))
    labels = torch.where(asked, ids, -100)
    shown = torch.where(asked & (draw < 0.12), MASK, ids)
    random = torch.from_numpy(rng.integers(len(SPECIAL_TOKENS), vocab_size, ids.shape))
    shown = torch.where(asked & (draw >= 0.135), random, shown)
    return Batch(shown, segments, mask, labels, torch.ones(len(ids)))
