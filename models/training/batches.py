"""Puts pairs into batches of about equal cost, with the targets that they are trained on."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from models.device import autocast
from models.learner import Learner
from models.quality.labelled import LabelledPair
from models.training.data import graded_target
from models.training.loop import Batch
from models.training.plan import grouped


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


def epoch_of(
    encoded: Sequence[EncodedPair], labels: Tensor, weights: Tensor, *, batch_tokens: int, seed: Sequence[int]
) -> list[Batch]:
    """Return one pass over the pairs in shuffled batches of similar length. labels, weights: of `Batch`."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(encoded)).tolist()  # pairs of equal length meet others in each epoch
    batches = []
    for positions in grouped([len(encoded[i]) for i in shuffled], batch_tokens=batch_tokens):
        rows = [shuffled[position] for position in positions]
        batches.append(Batch([encoded[i] for i in rows], labels[rows], weights[rows]))
    return [batches[position] for position in rng.permutation(len(batches))]


def targets(pairs: Sequence[LabelledPair], count: int) -> tuple[Tensor, Tensor]:
    """Return the target distribution of each pair, (n, count) float32, and its weight, (n,) float32.

    count: the number of grades.
    """
    grades = [pair.grade for pair in pairs]
    by_grade = torch.tensor([graded_target(grade, grades=count) for grade in range(count)])
    return by_grade[grades], torch.tensor(grade_weights(grades, count))[grades]


def grade_weights(grades: Sequence[int], count: int) -> list[float]:
    """Return the weight of a pair by its grade: the inverse square root of the grade's frequency, mean 1.

    Without weights the common grades would decide; with the inverse itself, the noise of the rare ones would.
    """
    common = Counter(grades)
    raw = [common[grade] ** -0.5 if common[grade] else 0.0 for grade in range(count)]
    mean = sum(raw[grade] * common[grade] for grade in range(count)) / len(grades)
    return [weight / mean for weight in raw]
