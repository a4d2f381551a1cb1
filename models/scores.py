"""The scores of query–title pairs: arrays, and a sequence of one result per pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np

from headroom.models.frame import frame
from headroom.models.terminal import table

if TYPE_CHECKING:
    import pandas as pd

    from headroom.models.checkpoint.chunks import Chunk

SHOWN = 10
"""Pairs that `repr` shows."""

SHOWN_CHARACTERS = 40
"""Characters of a text that `repr` shows."""


@dataclass(frozen=True, slots=True, eq=False)
class PairScore:
    """The relevance of one pair.

    query, title: None if the scores were made from logits alone.
    score: in [0, 1], or a logit if the checkpoint asks for raw scores.
    raw_score: what ranks titles: the log-odds of the score, or a one-label model's logit.
    A graded model has grades: expected_grade, grade (from 0, the median of the probabilities),
    its label, and probabilities, (grades,) float32; for a one-label model they are None.
    chunk: of a title that was scored in chunks, the best one.
    """

    query: str | None
    title: str | None
    score: float
    raw_score: float
    expected_grade: float | None = None
    grade: int | None = None
    label: str | None = None
    probabilities: np.ndarray | None = None
    chunk: Chunk | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scores(Sequence[PairScore]):
    """Relevance of n pairs. Grades count from 0, the least relevant.

    A sequence: an index gives one pair's `PairScore`, a slice gives `Scores`.

    logits, probabilities: (n, grades) float32. expected_grade: (n,) float32, Σ grade·probability.
    grade: (n,) int64, the median of the probabilities. score: (n,) float32 in [0, 1],
        expected_grade / (grades − 1).
    raw_score: (n,) float64, the log-odds of score: log(score / (1 − score)). It ranks titles, because it
        tells apart those whose score rounds to 1 or 0.
    A one-label cross-encoder has one column: probabilities, expected_grade and score are its sigmoid, and
    grade is that rounded. If the checkpoint asks for raw scores (`ModelConfig.score_activation` is identity),
    its score is the logit instead, which may be any number. Its raw_score is the logit either way.
    chunks: with `overflow="chunks"`, the chunk that each pair's scores are of; None for a title that fits.
    pairs: the (query, title) of each; None if the scores were made from logits alone.
    labels: the names of the grades, least relevant first; empty if they are not known, or there are none.

    >>> scores = clf.score("angle bracket", ["Simpson 12-Gauge Angle", "wood deck screws"])
    >>> len(scores)
    2
    >>> scores[0].title
    'Simpson 12-Gauge Angle'
    >>> scores[0].score > scores[1].score
    True
    >>> max(scores, key=lambda pair: pair.raw_score).title
    'Simpson 12-Gauge Angle'
    """

    logits: np.ndarray
    probabilities: np.ndarray
    expected_grade: np.ndarray
    grade: np.ndarray
    score: np.ndarray
    raw_score: np.ndarray
    chunks: tuple[Chunk | None, ...] | None = None
    pairs: tuple[tuple[str, str], ...] | None = None
    labels: tuple[str, ...] = ()

    @classmethod
    @np.errstate(invalid="ignore")  # logits may be NaN or infinite
    def from_logits(
        cls,
        logits: np.ndarray,
        temperature: float = 1.0,
        activation: str = "sigmoid",
        bias: Sequence[float] = (0.0,),
    ) -> Self:
        """Return the scores of logits, (n, grades) float32, least relevant grade first.

        activation: of a one-label model's score, sigmoid or identity. temperature, bias: the calibrated
        logits are logits / temperature + bias; in float64, so that no two logits become equal.
        """
        scaled = logits.astype(np.float64) / temperature + np.array(bias)
        if logits.shape[1] == 1:
            relevance = sigmoid(scaled[:, 0]).astype(np.float32)
            score = scaled[:, 0].astype(np.float32) if activation == "identity" else relevance
            grade = np.rint(relevance).astype(np.int64)
            return cls(logits, relevance[:, None], relevance, grade, score, scaled[:, 0])
        # log(s / (1 − s)) of the score s: both shares are summed in logarithms, so that none rounds to 0 or 1
        above = np.log(np.arange(1, logits.shape[1]))
        relevant = scaled[:, 1:] + above
        irrelevant = scaled[:, :-1] + above[::-1]
        raw_score = np.logaddexp.reduce(relevant, axis=1) - np.logaddexp.reduce(irrelevant, axis=1)
        scaled = np.exp(scaled - scaled.max(axis=1, keepdims=True))  # an infinite logit makes its row NaN
        probabilities = scaled / scaled.sum(axis=1, keepdims=True)
        expected = probabilities @ np.arange(logits.shape[1])
        return cls(
            logits,
            probabilities.astype(np.float32),
            expected.astype(np.float32),
            median_grade(probabilities),
            (expected / (logits.shape[1] - 1)).astype(np.float32),
            raw_score,
        )

    @property
    def is_graded(self) -> bool:
        """Return whether there are grades; a one-label cross-encoder has none."""
        return bool(self.probabilities.shape[1] > 1)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, one row per pair in the order of the pairs.

        Columns: query, title, score, expected_grade, grade, label, and p_LABEL, the probability of each
        grade; for a one-label model query, title, score, raw_score. What is not known, texts or labels, is
        left out; the columns of probabilities are then p_0, p_1, and so on.
        Raises ModuleNotFoundError without pandas.

        >>> scores = clf.score([("angle bracket", "wood deck screws")])
        >>> list(scores.to_frame().columns[:6])
        ['query', 'title', 'score', 'expected_grade', 'grade', 'label']
        """
        columns: dict[str, Any] = {}
        if self.pairs is not None:
            columns["query"] = [query for query, _ in self.pairs]
            columns["title"] = [title for _, title in self.pairs]
        columns["score"] = self.score
        if not self.is_graded:
            return frame(columns | {"raw_score": self.raw_score})
        columns |= {"expected_grade": self.expected_grade, "grade": self.grade}
        if self.labels:
            columns["label"] = [self.labels[grade] for grade in self.grade]
        names = self.labels or range(self.probabilities.shape[1])
        for name, probability in zip(names, self.probabilities.T, strict=True):
            columns[f"p_{name}"] = probability
        return frame(columns)

    def __len__(self) -> int:
        return len(self.score)

    @overload
    def __getitem__(self, index: int) -> PairScore: ...

    @overload
    def __getitem__(self, index: slice) -> Scores: ...

    def __getitem__(self, index: int | slice) -> PairScore | Scores:
        if isinstance(index, slice):
            values = {field.name: getattr(self, field.name) for field in fields(self)}
            of_pairs = {name: value[index] for name, value in values.items() if value is not None}
            return replace(self, **(of_pairs | {"labels": self.labels}))
        row = range(len(self))[as_index(index)]  # an IndexError beyond the last
        query, title = (None, None) if self.pairs is None else self.pairs[row]
        one = PairScore(query, title, float(self.score[row]), float(self.raw_score[row]))
        if self.chunks is not None:
            one = replace(one, chunk=self.chunks[row])
        if not self.is_graded:
            return one
        grade = int(self.grade[row])
        return replace(
            one,
            expected_grade=float(self.expected_grade[row]),
            grade=grade,
            label=self.labels[grade] if self.labels else None,
            probabilities=self.probabilities[row],
        )

    def __repr__(self) -> str:
        kind = f"{self.probabilities.shape[1]} grades" if self.is_graded else "one label"
        heading = f"Scores of {len(self)} {'pair' if len(self) == 1 else 'pairs'} ({kind})"
        if not len(self):
            return heading
        names = ["query", "title"] if self.pairs is not None else []
        names += ["score", "grade", "label"] if self.is_graded else ["score", "raw_score"]
        if not self.labels:
            names = [name for name in names if name != "label"]
        rows = [["", *names]]
        for number, one in enumerate(self[:SHOWN]):
            rows.append([str(number), *(_cell(getattr(one, name)) for name in names)])
        lines = [heading, table(rows)]
        if len(self) > SHOWN:
            lines.append(f"… and {len(self) - SHOWN:,} more")
        return "\n".join(lines)


def median_grade(probabilities: np.ndarray) -> np.ndarray:
    """Return the grade that each pair is given: the lowest with half of the probability on it or below.

    probabilities: (n, grades), rows sum to 1. Returns (n,) int64; 0 for a row of NaN.

    The median has the smallest expected distance from the true grade. The most probable grade ignores how far
    off it may be: of a pair that is exact with 0.4 and otherwise 0 to 2, it says exact. Of two grades, the
    median is the more probable one. docs/model-card.md compares them on judged pairs.
    """
    return np.asarray((probabilities.cumsum(axis=1) < 0.5).sum(axis=1))


def _cell(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^−x), without overflow for any finite x."""
    small = np.exp(-np.abs(x))
    values: np.ndarray = np.where(x >= 0, 1, small) / (1 + small)
    return values
