"""Puts pairs into batches of about equal cost, with the targets that they are trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from models.device import autocast
from models.learner import Learner
from models.quality.labelled import LabelledPair


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded pairs and their targets.

    labels: target distributions, (B, grades) float32. weights: (B,) float32. groups: (B,) int64, the same
    number for pairs of one query, which are ranked.
    """

    pairs: Sequence[EncodedPair]
    labels: Tensor
    weights: Tensor
    groups: Tensor

    def split(
        self, spans: Sequence[Sequence[int]], *, batch_tokens: int, rng: np.random.Generator
    ) -> list[Batch]:
        """Return batches of rows of similar length in a random order.

        spans: rows that stay in one batch. batch_tokens: at most so many, unless one span has more.
        """
        lengths = [max(len(self.pairs[row]) for row in span) for span in spans]
        batches = []
        for chosen in grouped(lengths, batch_tokens=batch_tokens, sizes=[len(span) for span in spans]):
            rows = [row for index in chosen for row in spans[index]]
            pairs = [self.pairs[row] for row in rows]
            batches.append(Batch(pairs, self.labels[rows], self.weights[rows], self.groups[rows]))
        return [batches[index] for index in rng.permutation(len(batches))]


def grouped(
    lengths: Sequence[int], *, batch_tokens: int, sizes: Sequence[int] | None = None
) -> list[list[int]]:
    """Group sequences of similar length, so that a group's padded size is at most `batch_tokens`.

    sizes: if each item is several sequences that stay together, their number; `lengths` are of the longest.
    Returns the indices of each group. An item longer than `batch_tokens` is a group of its own.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    sequences = 0
    for index in order:  # ascending, so the newest is the longest of its group
        size = 1 if sizes is None else sizes[index]
        if groups and lengths[index] * (sequences + size) <= batch_tokens:
            groups[-1].append(index)
            sequences += size
        else:
            groups.append([index])
            sequences = size
    return groups


def logits_of(model: Learner, tokenizer: PairTokenizer, pairs: Sequence[LabelledPair]) -> np.ndarray:
    """Return the logits of the pairs without dropout, (n, labels) float64, in their order."""
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in pairs])
    logits = np.zeros((len(pairs), len(model.config.labels)))
    model.eval()
    with torch.no_grad(), autocast(model.device):
        for rows in grouped([len(pair) for pair in encoded], batch_tokens=8192):
            logits[rows] = model([encoded[i] for i in rows]).double().numpy()
    model.train()
    return logits


def graded_target(grade: float, *, smoothing: float = 0.06, grades: int = 5) -> tuple[float, ...]:
    """Return a grade between 0 and grades - 1 as a distribution over the grades.

    A whole grade gets all the mass and 2.25 gets three quarters on 2 and one on 3; then `smoothing` of the
    mass moves to the neighbours, so that a near miss costs less than a far one.
    """
    exact = [max(0.0, 1.0 - abs(grade - at)) for at in range(grades)]
    mass = [(1.0 - smoothing) * share for share in exact]
    for at, share in enumerate(exact):
        mass[max(at - 1, 0)] += smoothing / 2 * share
        mass[min(at + 1, grades - 1)] += smoothing / 2 * share
    return tuple(mass)


def targets(pairs: Sequence[LabelledPair], count: int) -> tuple[Tensor, Tensor]:
    """Return the target distribution of each pair, (n, count) float32, and its weight, (n,) float32.

    The weight is the inverse square root of the grade's frequency, mean 1: without weights the common grades
    would decide; with the inverse itself, the noise of the rare ones would. count: the number of grades.
    """
    grades = [pair.grade for pair in pairs]
    by_grade = torch.tensor([graded_target(grade, grades=count) for grade in range(count)])
    common = Counter(grades)
    mean = sum(common[grade] ** -0.5 * common[grade] for grade in sorted(common)) / len(grades)
    return by_grade[grades], torch.tensor([common[grade] ** -0.5 / mean for grade in grades])
