"""Linear probes of each layer's output: do they tell where words end, which terms match, how relevant the
title is?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from models.checkpoint.tokenizer import EncodedPair
from models.quality.bootstrap import resample, with_data
from models.study.gradients import DifferentiableNetwork
from models.study.pair_words import Words
from models.study.study import Study

TASKS = ("word_end", "term_overlap", "grade")
"""Does the word end with this token? Does the other text hold this token's word? Which grade has the pair?

The first two are scored by AUC. The grade is told from [CLS] and scored by Spearman's correlation."""

PAIRS = 600
TOKENS = 6000
FOLDS = 5
RESAMPLES = 500
RIDGE = 1e-3
"""The ridge penalty, as a share of the mean squared length of the features; fixed, not tuned."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ProbeCurve:
    """One task's score from the embeddings and from each layer's output: (layers + 1,) each.

    value: the score; low, high: its 95 % interval over queries. control: the score of the same probe on
    labels that tell nothing about the task (for tokens: drawn once for each word piece, Hewitt and Liang
    2019; for grades: shuffled). rise: the mean score of the layers of the upper half less that of the lower
    half, with its interval: the halves are fixed before, where the best layer would be chosen by chance.
    """

    value: Floats
    low: Floats
    high: Floats
    control: Floats
    rise: tuple[float, float, float]


@dataclass(frozen=True)
class _Labels:
    """The answers that a probe has to give.

    rows: rows of the state matrix. labels, control: (n,) each. query: (n,), the query of each row.
    """

    rows: NDArray[np.int64]
    labels: Floats
    control: Floats
    query: NDArray[np.int64]


def curves(study: Study) -> dict[str, ProbeCurve]:
    """Return the curve of every task; a task with only one answer in the data is left out."""
    rng = np.random.default_rng([study.seed, 7])
    rows = np.sort(rng.permutation(len(study.data))[:PAIRS])
    states, tasks = _collect(study, rows, rng)
    fold_of_query = rng.permutation(len(study.data.queries)) % FOLDS
    counts = with_data(resample(len(study.data.queries), RESAMPLES, study.seed))
    study.progress.start("probes", len(states) * len(tasks))
    scores: dict[str, list[tuple[Floats, float]]] = {name: [] for name in tasks}
    for layer in states:
        for name, task in tasks.items():
            score = _spearman if name == "grade" else _auc
            folds = fold_of_query[task.query]
            predicted = _cross_validated(layer[task.rows], np.stack([task.labels, task.control], 1), folds)
            weights = counts[:, task.query]
            values = score(predicted[:, 0], task.labels, weights)
            control = score(predicted[:, 1], task.control, weights[:1])
            scores[name].append((values, float(control[0])))
            study.progress.advance()
    return {name: _curve(layers) for name, layers in scores.items()}


def _curve(layers: list[tuple[Floats, float]]) -> ProbeCurve:
    drawn = np.stack([values for values, _ in layers], 1)  # (1 + resamples, layers + 1)
    low, high = np.nanquantile(drawn[1:], (0.025, 0.975), axis=0)
    half = (drawn.shape[1] - 1) // 2
    rises = (
        drawn[:, 1 + half :].mean(1) - drawn[:, 1 : 1 + half].mean(1) if half else np.full(len(drawn), np.nan)
    )
    ends = np.nanquantile(rises[1:], (0.025, 0.975)) if half else (np.nan, np.nan)
    rise = (float(rises[0]), float(ends[0]), float(ends[1]))
    return ProbeCurve(drawn[0], low, high, np.array([control for _, control in layers]), rise)


def _collect(
    study: Study, rows: NDArray[np.int64], rng: np.random.Generator
) -> tuple[list[NDArray[np.float32]], dict[str, _Labels]]:
    """Return the states by layer, (tokens kept + pairs, D) each with the [CLS] tokens last, and the tasks."""
    tokenizer, data = study.classifier.tokenizer, study.data
    encoded = tokenizer.encode([data.pairs[i] for i in rows])
    network = DifferentiableNetwork(study.classifier)
    words = [Words.of(tokenizer, pair) for pair in encoded]
    total = sum(int((split.word_of >= 0).sum()) for split in words)
    share = min(1.0, TOKENS / max(total, 1))
    keep = [(split.word_of >= 0) & (rng.random(len(split.word_of)) < share) for split in words]
    tokens: list[list[NDArray[np.float32]]] = []
    firsts: list[list[NDArray[np.float32]]] = []
    order: list[int] = []
    for batch in network.batches(encoded):
        offsets = batch.offsets.numpy(force=True)
        for number, x in enumerate(network.states(batch)):
            if number == len(tokens):
                tokens.append([])
                firsts.append([])
            values = x.numpy(force=True)
            tokens[number] += [
                values[start:stop][keep[i]]
                for i, start, stop in zip(batch.order, offsets, offsets[1:], strict=False)
            ]
            firsts[number].append(values[offsets[: len(batch.order)]])
        order += batch.order.tolist()
    states = [np.concatenate([*a, *b]) for a, b in zip(tokens, firsts, strict=True)]
    return states, _tasks(data.grade[rows], data.query_of[rows], encoded, words, keep, order, rng)


def _tasks(
    grade: NDArray[np.int64],
    query_of: NDArray[np.int64],
    encoded: Sequence[EncodedPair],
    words: Sequence[Words],
    keep: Sequence[NDArray[np.bool_]],
    order: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, _Labels]:
    """Return the labels of each task. keep: the tokens of each pair that take part; order: that of pairs."""
    ends, overlap, ids, query = [], [], [], []
    for i in order:
        split, kept = words[i], keep[i]
        shared = {word for pair in split.matches for word in pair}
        last = split.word_of != np.append(split.word_of[1:], -1)
        ends.append(last[kept])
        overlap.append(np.isin(split.word_of, list(shared))[kept])
        ids.append(encoded[i].ids[kept])
        query.append(np.full(int(kept.sum()), query_of[i]))
    piece, of_query = np.concatenate(ids), np.concatenate(query)
    rows = np.arange(len(piece))
    tasks = {}
    for name, labels in (("word_end", np.concatenate(ends)), ("term_overlap", np.concatenate(overlap))):
        coin = rng.random(int(piece.max(initial=0)) + 1) < labels.mean()
        tasks[name] = _Labels(rows, labels.astype(np.float64), coin[piece].astype(np.float64), of_query)
    grades = grade[order].astype(np.float64)
    tasks["grade"] = _Labels(
        len(rows) + np.arange(len(order)), grades, rng.permutation(grades), query_of[order]
    )
    return {name: task for name, task in tasks.items() if len(np.unique(task.labels)) > 1}


def _cross_validated(x: NDArray[np.float32], targets: Floats, folds: NDArray[np.int64]) -> Floats:
    """Return ridge predictions (n, targets), each fold's from the others."""
    predicted = np.zeros(targets.shape)
    for fold in range(FOLDS):
        test = folds == fold
        if not test.any() or test.all():
            continue
        train_x, train_y = x[~test].astype(np.float64), targets[~test]
        mean, level = train_x.mean(0), train_y.mean(0)
        centred = train_x - mean
        gram = centred.T @ centred
        gram += RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram)) + 1e-12 * np.eye(len(gram))
        weights = np.linalg.solve(gram, centred.T @ (train_y - level))
        predicted[test] = (x[test] - mean) @ weights + level
    return predicted


def _auc(scores: Floats, labels: Floats, weights: Floats) -> Floats:
    """Return the area under the ROC curve with item i counted weights[r, i] times: (resamples,).

    A positive and a negative item of equal score count as half in order.
    """
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))  # of each distinct score
    positive = np.add.reduceat(weights[:, order] * labels[order], starts, axis=1)
    negative = np.add.reduceat(weights[:, order] * (1 - labels[order]), starts, axis=1)
    below = np.cumsum(negative, axis=1) - negative / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((positive * below).sum(1) / (positive.sum(1) * negative.sum(1)))


def _spearman(scores: Floats, labels: Floats, weights: Floats) -> Floats:
    """Return the weighted correlation of the ranks in the data: (resamples,)."""
    a, b = rankdata(scores), rankdata(labels)
    total = weights.sum(1)
    first, second = weights @ a / total, weights @ b / total
    covariance = weights @ (a * b) / total - first * second
    spread = (weights @ a**2 / total - first**2) * (weights @ b**2 / total - second**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(covariance / np.sqrt(spread))
