"""The bars that the model must pass: lexical scorers, each turned into grades by an ordinal regression.

    python -m models.training.demo.baselines --model models/default --data ../shared/data --folds validation

BM25 (Robertson and Zaragoza 2009), IDF-weighted word overlap, and the cosine of TF-IDF vectors of character
n-grams.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.classifier import Classifier
from models.quality.evaluation import Evaluation, as_json, differences, intervals
from models.training.data import (
    GRADES,
    REPORTED_FOLDS,
    TRAINING_FOLDS,
    Judged,
    read_judged,
    read_products,
    source_groups,
)
from models.training.demo.sparse import dot, unit
from models.training.demo.titles import TitleStatistics, stem, stems_of, weighted_overlap, words_of

Floats = NDArray[np.float64]
Scorer = Callable[[str, str], float]

GRAM_LENGTHS = (3, 4, 5)


def scorers(collection: Sequence[str]) -> dict[str, Scorer]:
    """The lexical scorers by name, with the statistics of a collection of titles."""
    return {
        "bm25": bm25(collection),
        "idf_overlap": idf_overlap(collection),
        "char_tfidf": char_tfidf(collection),
    }


def bm25(collection: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> Scorer:
    """Okapi BM25 of a query against a title; words are stems."""
    rarity = _rarity(stems_of(title) for title in collection)
    mean_length = sum(len(stems_of(title)) for title in collection) / len(collection)

    def score(query: str, title: str) -> float:
        words = stems_of(title)
        counts = Counter(words)
        norm = k1 * (1 - b + b * len(words) / mean_length)
        return sum(rarity(word) * counts[word] * (k1 + 1) / (counts[word] + norm) for word in stems_of(query))

    return score


def idf_overlap(collection: Sequence[str]) -> Scorer:
    """The share of the query's words that the title holds, weighted by IDF, in [0, 1]."""
    rarity = _rarity(stems_of(title) for title in collection)
    return lambda query, title: weighted_overlap(query, title, lambda word: rarity(stem(word)))


def char_tfidf(collection: Sequence[str]) -> Scorer:
    """The cosine of TF-IDF vectors of character 3- to 5-grams within words, in [0, 1]."""
    rarity = _rarity(_grams(title) for title in collection)

    def vector(text: str) -> dict[str, float]:
        return unit({gram: count * rarity(gram) for gram, count in Counter(_grams(text)).items()})

    return lambda query, title: dot(vector(query), vector(title))


def fit_ordinal(scores: Floats, grades: Sequence[int]) -> Callable[[Floats], Floats]:
    """Proportional odds on one score by maximum likelihood: P(grade ≤ k) = σ(θ_k − β·score), McCullagh 1980.

    scores: (n,). Returns what maps scores (m,) to probabilities (m, grades).
    """
    mean, spread = scores.mean(), scores.std() or 1.0
    x = torch.from_numpy((scores - mean) / spread)
    y = torch.tensor(grades)
    beta = torch.ones((), dtype=torch.float64, requires_grad=True)
    first = torch.full((), -1.0, dtype=torch.float64, requires_grad=True)
    steps = torch.zeros(len(GRADES) - 2, dtype=torch.float64, requires_grad=True)

    def probabilities(values: torch.Tensor) -> torch.Tensor:
        thresholds = torch.cat([first[None], first + torch.cumsum(torch.exp(steps), 0)])
        below = torch.sigmoid(thresholds - beta * values[:, None])
        edges = torch.cat([torch.zeros(len(values), 1), below, torch.ones(len(values), 1)], 1)
        return edges.diff(dim=1).clamp_min(1e-12)

    optimizer = torch.optim.LBFGS([beta, first, steps], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -probabilities(x).log()[torch.arange(len(y)), y].mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]

    def predict(values: Floats) -> Floats:
        with torch.no_grad():
            found: Floats = probabilities(torch.from_numpy((values - mean) / spread)).numpy()
            return found

    return predict


def compare(
    model: Classifier, training: Sequence[Judged], rows: Sequence[Judged], collection: Sequence[str]
) -> dict[str, Any]:
    """The model beside each baseline, by source family, "products" (ESCI and Chorus) and "all".

    training: what the regressions are fitted on. For each group: every side's metrics with intervals, and the
    model's paired difference to each baseline.
    """
    scored = model.score([(row.query, row.title) for row in rows])
    sides: dict[str, Floats] = {"model": scored.probabilities.astype(np.float64)}
    for name, scorer in scorers(collection).items():
        predict = fit_ordinal(_scores(scorer, training), [row.grade for row in training])
        sides[name] = predict(_scores(scorer, rows))
    result = {}
    for group, places in source_groups(rows).items():
        evaluations = {
            name: Evaluation(
                [rows[i].query for i in places], [rows[i].grade for i in places], probabilities[places]
            )
            for name, probabilities in sides.items()
        }
        result[group] = {
            "pairs": len(places),
            "queries": evaluations["model"].queries,
            "ndcg10_random_order": evaluations["model"].random_order_ndcg10(),
            "metrics": {name: as_json(intervals(side)) for name, side in evaluations.items()},
            "model_minus": {
                name: as_json(differences(side, evaluations["model"]))
                for name, side in evaluations.items()
                if name != "model"
            },
        }
    return result


def as_markdown(report: dict[str, Any]) -> str:
    """A line per group and metric: the model, the best baseline, and the paired difference to it."""
    lines = [
        "| set (pairs / queries) | metric | model | best baseline | model − baseline, 95 % interval |",
        "|---|---|---|---|---|",
    ]
    for group, found in report.items():
        for metric in ("spearman", "ndcg10", "qwk"):
            baselines = {
                name: side[metric]["value"] for name, side in found["metrics"].items() if name != "model"
            }
            best = max(baselines, key=baselines.__getitem__)
            change = found["model_minus"][best][metric]
            note = f", random order {found['ndcg10_random_order']:.3f}" if metric == "ndcg10" else ""
            lines.append(
                f"| {group} ({found['pairs']:,} / {found['queries']}) | {metric} "
                f"| {found['metrics']['model'][metric]['value']:.3f} | {baselines[best]:.3f} ({best}{note}) "
                f"| {change['value']:+.3f} ({change['low']:+.3f} to {change['high']:+.3f}) |"
            )
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.demo.baselines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="checkpoint directory or hub id; default: the shipped model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--folds", choices=sorted(REPORTED_FOLDS), default="validation")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    options = parser.parse_args()
    training, rows = (
        read_judged(options.data, TRAINING_FOLDS),
        read_judged(options.data, REPORTED_FOLDS[options.folds]),
    )
    titles = {row.title for row in (*training, *rows)} | {p.title for p in read_products(options.data)}
    report = compare(Classifier.load(options.model), training, rows, sorted(titles))
    print(json.dumps(report, indent=1) if options.json else as_markdown(report))


def _scores(scorer: Scorer, rows: Sequence[Judged]) -> Floats:
    return np.array([scorer(row.query, row.title) for row in rows])


def _grams(text: str) -> list[str]:
    words = [f" {word} " for word in words_of(text)]
    return [word[i : i + n] for word in words for n in GRAM_LENGTHS for i in range(len(word) - n + 1)]


def _rarity(documents: Iterable[Sequence[str]]) -> Callable[[str], float]:
    """BM25's IDF, never negative: log(1 + (N − df + ½)/(df + ½))."""
    counts: Counter[str] = Counter()
    total = 0
    for document in documents:
        counts.update(set(document))
        total += 1
    return lambda term: math.log(1 + (total - counts[term] + 0.5) / (counts[term] + 0.5))


if __name__ == "__main__":
    main()


def overlap_probabilities(judged: Sequence[Judged], statistics: TitleStatistics) -> Floats:
    """The lexical baseline as if it were a model: its expected grade rises with the word overlap.

    Only ranking metrics (Spearman, NDCG) mean anything for it.
    """
    overlap = np.array([weighted_overlap(row.query, row.title, statistics.rarity) for row in judged])
    result = np.zeros((len(judged), len(GRADES)))
    result[:, 0], result[:, -1] = 1 - overlap, overlap
    return result
