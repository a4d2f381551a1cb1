"""Puts pairs into padded batches of about equal cost, and chooses which pairs an epoch puts together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from models.device import autocast
from models.quality.labelled import LabelledPair
from models.training.data import graded_target
from models.training.job import Options
from models.training.plan import Plan, grouped

Model: TypeAlias = PreTrainedModel
"""A sequence classifier of transformers, of any family."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded sequences and their targets.

    ids, segments, mask: (B, n) int64; mask is 1 on tokens and 0 on padding.
    labels: target distributions, (B, grades) float32. weights: (B,) float32.
    groups: (B,) int64, the same number for pairs of one query that are ranked; None if none are.
    """

    ids: Tensor
    segments: Tensor
    mask: Tensor
    labels: Tensor
    weights: Tensor
    groups: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the same object if it is there already."""
        if self.ids.device == device:
            return self
        present = {part.name: getattr(self, part.name) for part in fields(self)}
        return Batch(**{name: part.to(device) for name, part in present.items() if part is not None})


def logits_of_batch(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of a transformers classifier for a batch: (B, labels).

    Only a model with several token types gets any: DistilBERT takes none, and RoBERTa's one type is 0.
    """
    types = {}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        types["token_type_ids"] = batch.segments
    logits: Tensor = model(input_ids=batch.ids, attention_mask=batch.mask, **types).logits
    return logits


def logits_of(model: Model, tokenizer: PairTokenizer, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Return the logits of (query, title) pairs without dropout, (n, labels) float64, in their order."""
    encoded = tokenizer.encode(list(pairs))
    logits = np.zeros((len(pairs), model.config.num_labels))
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad(), autocast(device):
        for rows in grouped([len(pair) for pair in encoded], batch_tokens=8192):
            batch = padded_batch([encoded[i] for i in rows], torch.empty(0), torch.empty(0)).to(device)
            logits[rows] = logits_of_batch(model, batch).double().cpu().numpy()
    model.train()
    return logits


def padded_batch(
    pairs: Sequence[EncodedPair], labels: Tensor, weights: Tensor, groups: Tensor | None = None
) -> Batch:
    """Return encoded pairs as a batch. Padding is masked, so its id does not matter."""
    shape = (len(pairs), max(len(pair) for pair in pairs))
    ids, segments, mask = (np.zeros(shape, np.int64) for _ in range(3))
    for row, pair in enumerate(pairs):
        ids[row, : len(pair)] = pair.ids
        segments[row, pair.first_segment : len(pair)] = 1
        mask[row, : len(pair)] = 1
    return Batch(
        torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(mask), labels, weights, groups
    )


def epoch_of(
    encoded: Sequence[EncodedPair], training: Sequence[LabelledPair], options: Options, plan: Plan, epoch: int
) -> list[Batch]:
    """Return one pass over the training pairs in batches of similar length, shuffled by seed and epoch."""
    rng = np.random.default_rng([options.seed, epoch])
    shuffled = rng.permutation(len(training)).tolist()  # pairs of equal length meet others in each epoch
    labels, weights = targets(training, options)
    batches = []
    for positions in grouped([len(encoded[i]) for i in shuffled], batch_tokens=plan.batch_tokens):
        rows = [shuffled[position] for position in positions]
        batches.append(padded_batch([encoded[i] for i in rows], labels[rows], weights[rows]))
    return [batches[position] for position in rng.permutation(len(batches))]


def targets(pairs: Sequence[LabelledPair], options: Options) -> tuple[Tensor, Tensor]:
    """Return the target distribution of each pair, (n, grades) float32, and its weight, (n,) float32."""
    grades = [pair.grade for pair in pairs]
    count = len(options.labels)
    weights = torch.tensor(grade_weights(grades, count))
    by_grade = torch.tensor([graded_target(grade, grades=count) for grade in range(count)])
    return by_grade[grades], weights[grades]


def grade_weights(grades: Sequence[int], count: int) -> list[float]:
    """Return the weight of a pair by its grade: the inverse square root of the grade's frequency, mean 1.

    Without weights the common grades would decide; with the inverse itself, the noise of the rare ones would.
    """
    common = Counter(grades)
    raw = [common[grade] ** -0.5 if common[grade] else 0.0 for grade in range(count)]
    mean = sum(raw[grade] * common[grade] for grade in range(count)) / len(grades)
    return [weight / mean for weight in raw]
