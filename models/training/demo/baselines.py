"""Compares the model with lexical baselines, each turned into grades by an ordinal regression.

Each group of sources has its own regression, fitted on that group's training pairs: a score means another
grade where other things are searched. The titles are ranked by the scores themselves.

    python -m models.training.demo.baselines --model models/default --data ../shared/data --folds validation

BM25 (Robertson and Zaragoza 2009), IDF-weighted word overlap, and the cosine of TF-IDF vectors of character
n-grams. Needs scikit-learn and statsmodels: `make dev`.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from statsmodels.miscmodels.ordinal_model import OrderedModel

from models.classifier import Classifier
from models.numbers import fixed
from models.quality.evaluation import Evaluation, as_json, differences, intervals
from models.quality.lexical import Scorer, bm25, idf_overlap, words_of
from models.training.data import (
    GRADES,
    REPORTED_FOLDS,
    TRAINING_FOLDS,
    Judged,
    read_judged,
    read_products,
    source_groups,
)

Floats = NDArray[np.float64]

NAMES = {"bm25": "BM25", "idf_overlap": "IDF overlap", "char_tfidf": "character TF-IDF"}
METRICS = {
    "spearman": "Spearman",
    "ndcg10": "NDCG@10",
    "qwk": "QWK",
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
}
"""The metrics of the table, and their names in it."""


def scorers(collection: Sequence[str]) -> dict[str, Scorer]:
    """Return the lexical scorers by name, with the statistics of a collection of titles."""
    return {
        "bm25": bm25(collection),
        "idf_overlap": idf_overlap(collection),
        "char_tfidf": char_tfidf(collection),
    }


def char_tfidf(collection: Sequence[str]) -> Scorer:
    """Return the cosine of TF-IDF vectors of character 3- to 5-grams within words, in [0, 1]."""
    vectorizer = TfidfVectorizer(
        analyzer="char_wb",
        ngram_range=(3, 5),
        preprocessor=lambda text: " ".join(words_of(text)),
        dtype=np.float64,
    ).fit(collection)

    def score(query: str, title: str) -> float:
        vectors = vectorizer.transform([query, title])  # (2, grams), each of length 1
        return float((vectors[0] @ vectors[1].T).sum())

    return score


def fit_ordinal(scores: Floats, grades: Sequence[int]) -> Callable[[Floats], Floats]:
    """Fit proportional odds on one score: P(grade ≤ k) = σ(θ_k − β·score), McCullagh 1980.

    scores: (n,). Returns a function from scores (m,) to probabilities (m, grades), which gives 0 to a grade
    that `grades` lacks.
    """
    mean, spread = scores.mean(), scores.std()
    model = OrderedModel(np.asarray(grades), ((scores - mean) / spread)[:, None], distr="logit")
    fit = model.fit(method="bfgs", disp=False, skip_hessian=True)

    def predict(values: Floats) -> Floats:
        probabilities = np.zeros((len(values), len(GRADES)))
        standardised = ((values - mean) / spread)[:, None]
        probabilities[:, np.unique(grades)] = model.predict(fit.params, standardised)
        return probabilities

    return predict


def compare(
    model: Classifier, training: Sequence[Judged], rows: Sequence[Judged], collection: Sequence[str]
) -> dict[str, Any]:
    """Compare the model with each baseline, by source family, on "products" (ESCI and Chorus) and on "all".

    training: the pairs that the regressions are fitted on, those of each group for itself. Returns, for each
    group, the metrics of the model and of each baseline with intervals, and the model's paired difference to
    each baseline. Raises ValueError for a group without training pairs.
    """
    groups, training_groups = source_groups(rows), source_groups(training)
    if missing := sorted(groups.keys() - training_groups.keys()):
        raise ValueError(f"no training pairs of {', '.join(missing)}: its baselines cannot be fitted")
    probabilities = model.score([(row.query, row.title) for row in rows]).probabilities.astype(np.float64)
    scores = {
        name: (_scores(scorer, training), _scores(scorer, rows))
        for name, scorer in scorers(collection).items()
    }
    result = {}
    for group, places in groups.items():
        queries, grades = [rows[i].query for i in places], [rows[i].grade for i in places]
        evaluations = {"model": Evaluation(queries, grades, probabilities[places])}
        for name, (seen, asked) in scores.items():
            own = training_groups[group]
            predict = fit_ordinal(seen[own], [training[i].grade for i in own])
            evaluations[name] = Evaluation(queries, grades, predict(asked[places]), expected=asked[places])
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
    """Return a table of one line per group and metric: model, best baseline, and their paired difference."""
    lines = [
        "| set (pairs / queries) | metric | model | best baseline | model − baseline, 95 % interval |",
        "|---|---|---|---|---|",
    ]
    for group, figures in report.items():
        for metric, title in METRICS.items():
            baselines = {
                name: side[metric]["value"] for name, side in figures["metrics"].items() if name != "model"
            }
            best = max(baselines, key=baselines.__getitem__)
            change = figures["model_minus"][best][metric]
            note = f", random order {figures['ndcg10_random_order']:.3f}" if metric == "ndcg10" else ""
            lines.append(
                f"| {group} ({figures['pairs']:,} / {figures['queries']}) | {title} "
                f"| {fixed(figures['metrics']['model'][metric]['value'])} "
                f"| {fixed(baselines[best])} ({NAMES[best]}{note}) "
                f"| {_with_interval(change)} |"
            )
    return "\n".join(lines)


def _with_interval(change: Mapping[str, float]) -> str:
    value, low, high = (fixed(change[key], sign=True) for key in ("value", "low", "high"))
    return f"{value} (no interval)" if math.isnan(change["low"]) else f"{value} ({low} to {high})"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.demo.baselines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="checkpoint directory or hub id; default: the shipped model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--folds", choices=sorted(REPORTED_FOLDS), default="validation")
    parser.add_argument("--json", action="store_true", help="print every figure, as JSON")
    options = parser.parse_args()
    training, rows = (
        read_judged(options.data, TRAINING_FOLDS),
        read_judged(options.data, REPORTED_FOLDS[options.folds]),
    )
    titles = {row.title for row in (*training, *rows)} | {p.title for p in read_products(options.data)}
    report = compare(Classifier.load(options.model), training, rows, sorted(titles))
    print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() if options.json else as_markdown(report))


def _scores(scorer: Scorer, rows: Sequence[Judged]) -> Floats:
    return np.array([scorer(row.query, row.title) for row in rows])


if __name__ == "__main__":
    main()
