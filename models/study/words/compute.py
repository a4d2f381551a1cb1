"""Condenses each query to half of its words, once with all heads on and once with each layer off.

A word's importance is the loss of the query without it (`models.condense`, leave-one-out), under the mask
that is studied. The whole model then ranks the titles by the words that were kept, so a change of NDCG@10 is
the choice of words alone: it is what the layer knew about them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from models.condense.loss import Floats, distributions, jensen_shannon, relevance
from models.condense.words import Word, join, read_words
from models.quality.bootstrap import MIN_QUERIES, Interval
from models.quality.evaluation import within_range
from models.quality.ndcg import ndcg10
from models.study.base import Matrix
from models.study.runner import Runner
from models.study.statistics import mean_intervals
from models.study.study import Study

MIN_WORDS = 3
MAX_WORDS = 20
"""Queries with more words are left out: their number of deletions would take over the study."""


@dataclass(frozen=True)
class LayerOff:
    """One layer off. ndcg10: the change of NDCG@10 when its absence chooses the words, with its interval.
    agreement: the mean rank correlation of the words' importance with that of the whole model."""

    layer: int
    ndcg10: Interval
    agreement: Interval


@dataclass(frozen=True)
class WordChoice:
    """The effect of each layer on the choice of words.

    queries: how many were condensed. words, kept: their mean numbers. whole: the mean NDCG@10 by all words;
    condensed: by the words that the whole model chose. layers: empty if there were too few queries.
    """

    queries: int
    words: float
    kept: float
    whole: float
    condensed: float
    layers: tuple[LayerOff, ...]


@dataclass(frozen=True)
class _Query:
    """A query, its words and its pairs. rows: which pairs of the study's data."""

    text: str
    words: tuple[Word, ...]
    rows: NDArray[np.int64]

    @property
    def kept(self) -> int:
        return (len(self.words) + 1) // 2

    def without(self, place: int) -> str:
        return join(word for number, word in enumerate(self.words) if number != place)

    def best(self, importance: Floats) -> str:
        """Return the query of the half of the words that matter most; of equal ones the first stay."""
        kept = sorted(np.argsort(-importance, kind="stable")[: self.kept].tolist())
        return join(self.words[place] for place in kept)


def measure(study: Study) -> WordChoice:
    """Condense the queries under each mask and compare the rankings by the words that were kept."""
    queries = _queries(study)
    if len(queries) < MIN_QUERIES:
        return WordChoice(len(queries), float("nan"), float("nan"), float("nan"), float("nan"), ())
    depth = study.shape[0]
    masks: list[Matrix] = [np.ones(study.shape, np.float32) for _ in range(1 + depth)]
    for layer in range(depth):
        masks[1 + layer][layer] = 0
    importance = _importance(study, queries, masks)
    choices = [
        [query.best(values) for query, values in zip(queries, of_mask, strict=True)] for of_mask in importance
    ]
    ndcg = _ndcg(study, queries, [[query.text for query in queries], *choices])  # (2 + layers, queries)
    change = ndcg[2:] - ndcg[1]
    agreement = np.array(
        [[_correlation(a, b) for a, b in zip(importance[0], of_mask, strict=True)] for of_mask in importance]
    )[1:]
    return WordChoice(
        len(queries),
        float(np.mean([len(query.words) for query in queries])),
        float(np.mean([query.kept for query in queries])),
        float(ndcg[0].mean()),
        float(ndcg[1].mean()),
        tuple(
            LayerOff(layer, _interval(study, change[layer]), _correlations(study, agreement[layer]))
            for layer in range(depth)
        ),
    )


def _queries(study: Study) -> list[_Query]:
    """Return the queries of enough words whose titles differ in grade, at most `effort.condensed_queries`."""
    order = np.argsort(study.data.query_of, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(study.data.query_of[order])) + 1)
    found = []
    for rows in groups:
        text = study.data.queries[int(study.data.query_of[rows[0]])]
        words = read_words(text)
        if MIN_WORDS <= len(words) <= MAX_WORDS and len(np.unique(study.data.grade[rows])) > 1:
            found.append(_Query(text, words, rows))
    drawn = np.random.default_rng([study.seed, 17]).permutation(len(found))
    return [found[place] for place in sorted(drawn[: study.effort.condensed_queries].tolist())]


def _importance(study: Study, queries: list[_Query], masks: list[Matrix]) -> list[list[Floats]]:
    """Return the importance of each word: by mask and query, (words,)."""
    texts = [[query.text, *(query.without(place) for place in range(len(query.words)))] for query in queries]
    judged = _judge(study, queries, texts, masks, "words left out")
    return [[jensen_shannon(of_query[0], of_query[1:]).mean(1) for of_query in of_mask] for of_mask in judged]


def _ndcg(study: Study, queries: list[_Query], choices: list[list[str]]) -> Floats:
    """Return the NDCG@10 of each choice of texts under the whole model, (choices, queries)."""
    texts = [list(dict.fromkeys(column)) for column in zip(*choices, strict=True)]
    whole = [np.ones(study.shape, np.float32)]
    (judged,) = _judge(study, queries, texts, whole, "condensed queries")
    values = np.empty((len(choices), len(queries)))
    for number, query in enumerate(queries):
        truth = study.data.grade[query.rows]
        of_text = {
            text: ndcg10(truth, relevance(of_query))
            for text, of_query in zip(texts[number], judged[number], strict=True)
        }
        values[:, number] = [of_text[choice[number]] for choice in choices]
    return values


def _judge(
    study: Study, queries: list[_Query], texts: list[list[str]], masks: list[Matrix], what: str
) -> list[list[Floats]]:
    """Return, by mask and query, the distributions of its texts with its titles, (texts, titles, grades)."""
    pairs = [
        (text, study.data.pairs[row][1])
        for query, of_query in zip(queries, texts, strict=True)
        for text in of_query
        for row in query.rows
    ]
    runner = _runner(study, pairs)
    cuts = np.cumsum([len(query.rows) * len(own) for query, own in zip(queries, texts, strict=True)])[:-1]
    found = []
    for logits in runner.logits(masks, what):
        judged = distributions(study.classifier.scores(logits))
        found.append(
            [
                part.reshape(len(own), len(query.rows), -1)
                for part, own, query in zip(np.split(judged, cuts), texts, queries, strict=True)
            ]
        )
    return found


def _runner(study: Study, pairs: list[tuple[str, str]]) -> Runner:
    """Return a runner like the study's own, for other pairs."""
    own = study.runner
    none = np.zeros(len(pairs), np.int64)
    data = replace(study.data, pairs=tuple(pairs), grade=none, query_of=none)
    return Runner(
        own.classifier, data, cache=own.cache, identity=own.identity, progress=own.progress, remote=own.remote
    )


def _correlation(one: Floats, other: Floats) -> float:
    """Return Spearman's rank correlation; 0 if either is constant."""
    ranks = [rankdata(values) for values in (one, other)]
    if any(np.ptp(values) == 0 for values in ranks):
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def _correlations(study: Study, values: Floats) -> Interval:
    """Return the mean of rank correlations; no interval if it leaves the range of a correlation."""
    return within_range({"spearman": _interval(study, values)})["spearman"]


def _interval(study: Study, values: Floats) -> Interval:
    low, high = mean_intervals(values[:, None], study.resamples, study.seed)
    return Interval(float(values.mean()), float(low[0]), float(high[0]))
