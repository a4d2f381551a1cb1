"""Batches of labelled pairs: which pairs an epoch puts together, and how much each pair weighs."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from models.checkpoint.tokenizer import EncodedPair
from models.quality.labelled import LabelledPair
from models.training.batches import Batch, grouped
from models.training.data import graded_target
from models.training.job import Options
from models.training.plan import Plan


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


def targets(pairs: Sequence[LabelledPair], options: Options) -> tuple[torch.Tensor, torch.Tensor]:
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


def padded_batch(pairs: Sequence[EncodedPair], labels: torch.Tensor, weights: torch.Tensor) -> Batch:
    """Return encoded pairs as a batch. Padding is masked, so its id does not matter."""
    shape = (len(pairs), max(len(pair) for pair in pairs))
    ids, segments, mask = (np.zeros(shape, np.int64) for _ in range(3))
    for row, pair in enumerate(pairs):
        ids[row, : len(pair)] = pair.ids
        segments[row, pair.first_segment : len(pair)] = 1
        mask[row, : len(pair)] = 1
    return Batch(torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(mask), labels, weights)
