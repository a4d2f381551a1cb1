"""Linear probes of each layer's output: do they tell where words end, which terms match, how relevant the
title is?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from models.quality.bootstrap import Interval, resample
from models.study.gradients import states
from models.study.study import Study
from models.study.words import Words

PAIRS = 600
TOKENS = 6000
FOLDS = 5
RESAMPLES = 200
RIDGE = 1e-3
"""The ridge penalty, as a share of the mean squared length of the features; fixed, not tuned."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ProbeCurve:
    """One task's score from the embeddings and from each layer's output: (layers + 1,) each.

    values: the score with its 95 % interval over queries. control: the score of the same probe on labels
    that tell nothing about the task (for tokens: drawn once for each word piece, Hewitt and Liang 2019; for
    grades: shuffled).
    """

    values: list[Interval]
    control: list[float]


@dataclass(frozen=True)
class _Task:
    """The answers that a probe has to give.

    rows: rows of the state matrix. labels, control: (n,) each. query: (n,), the query of each row. score:
    takes labels and predictions.
    """

    rows: Ints
    labels: Floats
    control: Floats
    query: Ints
    score: Callable[[Floats, Floats], float]


def curves(study: Study) -> dict[str, ProbeCurve]:
    """Return the curve of every task; a task with only one answer in the data is left out.

    word_end: does the word end with this token? term_overlap: does the other text hold this token's word?
    Both are scored by AUC. grade: which grade has the pair? It is told from the first token and scored by
    Spearman's correlation.
    """
    rng = np.random.default_rng([study.seed, 7])
    layers, tasks = _collect(study, np.sort(rng.permutation(len(study.data))[:PAIRS]), rng)
    fold_of_query = rng.permutation(len(study.data.queries)) % FOLDS
    counts = resample(len(study.data.queries), RESAMPLES, study.seed).astype(np.int64)
    study.progress.start("probes", len(layers) * len(tasks))
    found = {}
    for name, task in tasks.items():
        drawn, control, every = [], [], np.arange(len(task.rows))
        samples = [every, *(np.repeat(every, of_query[task.query]) for of_query in counts)]
        for layer in layers:
            answers = np.stack([task.labels, task.control], 1)
            predicted = _cross_validated(layer[task.rows], answers, fold_of_query[task.query])
            drawn.append([_score(task, task.labels[rows], predicted[rows, 0]) for rows in samples])
            control.append(_score(task, task.control, predicted[:, 1]))
            study.progress.advance()
        found[name] = ProbeCurve([_interval(np.array(scores)) for scores in drawn], control)
    return found


def _score(task: _Task, labels: Floats, predicted: Floats) -> float:
    return task.score(labels, predicted) if len(np.unique(labels)) > 1 else float("nan")


def _interval(values: Floats) -> Interval:
    if np.isnan(values[1:]).all():
        return Interval(float(values[0]), float("nan"), float("nan"))
    low, high = np.nanquantile(values[1:], (0.025, 0.975))
    return Interval(float(values[0]), float(low), float(high))


def _collect(
    study: Study, rows: Ints, rng: np.random.Generator
) -> tuple[list[NDArray[np.float32]], dict[str, _Task]]:
    """Return the states by layer, (words' tokens and first tokens, D), and the tasks on them."""
    tokenizer, data = study.classifier.tokenizer, study.data
    encoded = tokenizer.encode([data.pairs[i] for i in rows])
    words = [Words.of(tokenizer, pair) for pair in encoded]
    share = min(1.0, TOKENS / max(sum(int((split.word_of >= 0).sum()) for split in words), 1))
    keep = [(split.word_of >= 0) & (rng.random(len(split.word_of)) < share) for split in words]
    first = [np.arange(len(pair)) == 0 for pair in encoded]
    wanted = [of_words | one for of_words, one in zip(keep, first, strict=True)]
    order, layers = states(study.classifier.network.in_plain_torch(), encoded, wanted)

    def of_tokens(label: Callable[[int], NDArray[np.generic]]) -> Ints:
        return np.concatenate([label(i)[keep[i]] for i in order]).astype(np.int64)

    def indices(chosen: list[NDArray[np.bool_]]) -> Ints:
        return np.flatnonzero(np.concatenate([chosen[i][wanted[i]] for i in order]))

    def shared(i: int) -> NDArray[np.bool_]:
        return np.isin(words[i].word_of, list({word for pair in words[i].matches for word in pair}))

    ends = of_tokens(lambda i: words[i].word_of != np.append(words[i].word_of[1:], -1))
    overlap = of_tokens(shared)
    piece = of_tokens(lambda i: encoded[i].ids)
    query = of_tokens(lambda i: np.full(len(encoded[i]), data.query_of[rows[i]]))
    tasks = {}
    for name, labels in (("word_end", ends), ("term_overlap", overlap)):
        coin = rng.random(int(piece.max(initial=0)) + 1) < labels.mean()
        control = coin[piece].astype(np.float64)
        tasks[name] = _Task(indices(keep), labels.astype(np.float64), control, query, roc_auc_score)
    grades = data.grade[rows[order]].astype(np.float64)
    of_pair = data.query_of[rows[order]]
    tasks["grade"] = _Task(indices(first), grades, rng.permutation(grades), of_pair, _spearman)
    return layers, {name: task for name, task in tasks.items() if len(np.unique(task.labels)) > 1}


def _cross_validated(x: NDArray[np.float32], targets: Floats, folds: Ints) -> Floats:
    """Return ridge predictions (n, targets), each fold's from the others."""
    predicted = np.zeros(targets.shape)
    for fold in range(FOLDS):
        test = folds == fold
        if test.any() and not test.all():
            train = x[~test].astype(np.float64)
            penalty = RIDGE * train.var(0).sum() * len(train) / train.shape[1] + 1e-12
            predicted[test] = Ridge(penalty).fit(train, targets[~test]).predict(x[test].astype(np.float64))
    return predicted


def _spearman(labels: Floats, predicted: Floats) -> float:
    return float(spearmanr(labels, predicted).statistic) if np.ptp(predicted) > 0 else float("nan")
