"""Measures a model per language on sources that it was not trained on, beside overlap and random order.

    python -m default_model.yardstick --model models/default --data ../shared/data
    python -m default_model.yardstick --model runs/try --data ../shared/data --without openbg,chorus

Each source has its NDCG@10 and Spearman's correlation within queries and over all pairs, each with the paired
95 % interval of the change against the overlap baseline (words; pairs of letters for Korean and Chinese; both
weighted by IDF). A random order's NDCG@10 stands beside it, because it is high on short lists.

Only queries of the folds 2 and 3 are asked, and those of 2 to 9 if the source was left out of the training.
Folds 0 and 1 are not read. `lists` are short titles of three languages (data/short_titles.tsv).
"""

import argparse
import csv
import hashlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from default_model.groups import TRAINING_FOLDS, VALIDATION_FOLDS
from default_model.mixture import read_judged
from default_model.multilingual import has_order, read_lists
from headroom.models.classifier import Classifier
from headroom.models.quality.bootstrap import Interval, resample
from headroom.models.quality.evaluation import Evaluation, changes_of
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.lexical import Scorer, idf_overlap

Floats = NDArray[np.float64]

Probabilities = Callable[[Sequence[LabelledPair]], Floats]
"""Takes pairs; returns the probabilities of their grades, (pairs, grades)."""

SHORT_TITLES = Path(__file__).resolve().parents[1] / "data" / "short_titles.tsv"

RANKING = ("ndcg10", "query_spearman", "spearman")
RESAMPLES = 2000

MOST_QUERIES = 150
MOST_TITLES = 24
"""So many queries of a source are asked, each with so many titles, chosen by hashes of their texts."""


def bigrams_of(text: str) -> list[str]:
    """Return each two neighbouring letters of each word, lower case; a word of one letter counts alone."""
    words = re.findall(r"\w+", text.lower())
    return [word[start : start + 2] for word in words for start in range(max(1, len(word) - 1))]


def overlap(titles: Sequence[str], language: str) -> Scorer:
    """Return the overlap that a model must beat in a language: of words, or for Chinese, which has no spaces,
    and Korean, whose words have endings, of pairs of letters."""
    return idf_overlap(titles) if language == "en" else idf_overlap(titles, bigrams_of)


JUDGED = {"esci": "en", "chorus": "en", "socrata": "en", "dbpedia": "en"}


@dataclass(frozen=True, slots=True)
class ListedSource:
    """A source of data/multilingual that is measured. part: the beginning of its pairs' `source`."""

    directory: str
    language: str
    part: str
    single: bool = False  # one title per query: only all pairs can be ranked


LISTED = {
    "openbg": ListedSource("openbg_slice", "zh", "openbg_category"),
    "dureader": ListedSource("dureader_demo", "zh", "dureader_demo"),
    "stylekqc": ListedSource("stylekqc", "ko", "stylekqc:topic0"),
    "sae4k": ListedSource("sae4k", "ko", "sae4k"),
    "klue": ListedSource("klue_sts_train", "ko", "klue_sts_train", single=True),
    "korsts": ListedSource("korsts", "ko", "korsts", single=True),
}


@dataclass(frozen=True, slots=True)
class Measure:
    """The pairs of one source. single: they have a query each, so only all pairs can be ranked."""

    name: str
    language: str
    pairs: Sequence[LabelledPair]
    single: bool = False

    @property
    def baseline(self) -> Scorer:
        """Return the overlap that a model must beat in this language."""
        titles = sorted({pair.title for pair in self.pairs})
        return overlap(titles, self.language)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a model ranks a measure's pairs: its own figures, the baseline's, and the changes between them."""

    measure: Measure
    queries: int
    random_order: float
    own: dict[str, float]
    baseline: dict[str, float]
    change: dict[str, Interval]

    def __str__(self) -> str:
        name = f"{self.measure.name} ({self.measure.language})"
        lines = [f"{name}: {len(self.measure.pairs)} pairs, {self.queries} queries"]
        for metric in RANKING[2:] if self.measure.single else RANKING:
            change = self.change[metric]
            interval = f"{change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
            lines.append(
                f"  {metric:<16}{self.own[metric]:.3f}, overlap {self.baseline[metric]:.3f}: {interval}"
            )
        if not self.measure.single:
            lines[1] += f", random order {self.random_order:.3f}"
        return "\n".join(lines)


def measures(data: Path, without: Collection[str], *, scale: float = 1.0) -> list[Measure]:
    """Return what is measured. without: the sources that took no part in the training.

    scale: of the number of queries, for a quick look.
    """
    queries = max(2, round(MOST_QUERIES * scale))
    found = []
    judged = read_judged(data, VALIDATION_FOLDS + TRAINING_FOLDS)
    for name, language in JUDGED.items():
        rows = [
            row for row in judged if row.family == name and (name in without or row.fold in VALIDATION_FOLDS)
        ]
        found.append(Measure(name, language, sampled(rows, queries)))
    for name, source in LISTED.items():
        folds = VALIDATION_FOLDS + TRAINING_FOLDS if name in without else VALIDATION_FOLDS
        lists = read_lists(data, source.directory, folds)
        if not lists:
            continue
        if source.single:
            rows_of_list = [row for pairs in lists for row in pairs]
            found.append(Measure(name, source.language, sampled(rows_of_list, 4 * queries), single=True))
            continue
        pairs = [row for one in lists if has_order(one) for row in one]
        pairs = [row for row in pairs if row.source.startswith(source.part)]
        found.append(Measure(name, source.language, sampled(pairs, queries)))
    return found


def sampled(pairs: Sequence[LabelledPair], queries: int) -> list[LabelledPair]:
    """Return the pairs of some queries, of each at most MOST_TITLES; hashes of the texts choose."""
    by_query = defaultdict[str, list[LabelledPair]](list)
    for pair in sorted(pairs, key=lambda pair: _digest(pair.title)):
        if len(by_query[pair.query]) < MOST_TITLES:
            by_query[pair.query].append(pair)
    chosen = sorted(by_query, key=_digest)[:queries]
    return [pair for query in chosen for pair in by_query[query]]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def evaluation_of(pairs: Sequence[LabelledPair], probabilities: Probabilities) -> GradedEvaluation:
    """Return the evaluation of a model on pairs, which it ranks by their expected grades."""
    shares = probabilities(pairs)
    return GradedEvaluation(pairs, shares, shares @ np.arange(shares.shape[1]))


def standing(measure: Measure, probabilities: Probabilities) -> Standing:
    """Measure a model on one source."""
    evaluation = evaluation_of(measure.pairs, probabilities)
    scorer = measure.baseline
    ranking = np.array([scorer(pair.query, pair.title) for pair in measure.pairs])
    overlap = Evaluation(measure.pairs, ranking, evaluation.relevant)
    counts = resample(evaluation.clusters, RESAMPLES, 0)
    own = evaluation.draws(counts)
    of_overlap = overlap.draws(counts)
    change = changes_of({name: of_overlap[name] for name in RANKING}, own, counts)
    return Standing(
        measure,
        evaluation.queries,
        evaluation.random_order_ndcg10(),
        evaluation.metrics(),
        overlap.metrics(),
        change,
    )


def quick_figures(found: Sequence[Measure], probabilities: Probabilities) -> dict[str, tuple[float, ...]]:
    """Return NDCG@10 and both correlations of each measure, without intervals."""
    figures = {}
    for measure in found:
        metrics = evaluation_of(measure.pairs, probabilities).metrics()
        figures[measure.name] = tuple(round(metrics[name], 3) for name in RANKING)
    return figures


@dataclass(frozen=True, slots=True)
class ShortList:
    """A query with five short titles, the best one first. kind: what tells the best one from the others."""

    language: str
    kind: str
    query: str
    titles: tuple[str, ...]

    @property
    def pairs(self) -> list[LabelledPair]:
        """Return the pairs; the first one is graded best."""
        return [LabelledPair(self.query, title, 4 if title == self.titles[0] else 0) for title in self.titles]


def read_short_lists() -> list[ShortList]:
    """Return the hand-written lists of short titles. Nothing is trained on them."""
    with SHORT_TITLES.open(encoding="utf-8", newline="") as file:
        rows = csv.reader((line for line in file if not line.startswith("#")), delimiter="\t")
        next(rows)
        return [ShortList(language, kind, query, tuple(titles)) for language, kind, query, *titles in rows]


def best_first(lists: Sequence[ShortList], score: Callable[[Sequence[LabelledPair]], Floats]) -> list[bool]:
    """Return of each list whether its best title stands above the four others. A tie is no first place."""
    scores = score([pair for one in lists for pair in one.pairs])
    first = list[bool]()
    start = 0
    for one in lists:
        end = start + len(one.titles)
        first.append(bool(scores[start] > scores[start + 1 : end].max()))
        start = end
    return first


def short_list_lines(score: Callable[[Sequence[LabelledPair]], Floats]) -> list[str]:
    """Return the share of lists with the best title first, by language and by kind, beside the baselines."""
    lists = read_short_lists()
    first = best_first(lists, score)
    overlap = _overlap_first(lists)
    lines = []
    for title, key in (("language", "language"), ("kind", "kind")):
        for value in sorted({getattr(one, key) for one in lists}):
            rows = [at for at, one in enumerate(lists) if getattr(one, key) == value]
            own, words = (np.mean([flags[at] for at in rows]) for flags in (first, overlap))
            lines.append(f"lists of {title} {value:<12}{len(rows):4d}  first {own:.2f}, overlap {words:.2f}")
    lines.append(f"lists, all {len(lists):18d}  first {np.mean(first):.2f}, overlap {np.mean(overlap):.2f}")
    return lines


def _overlap_first(lists: Sequence[ShortList]) -> list[bool]:
    flags = dict[ShortList, bool]()
    for language in ("en", "ko", "zh"):
        of_language = [one for one in lists if one.language == language]
        titles = [title for one in of_language for title in one.titles]
        scorer = overlap(titles, language)

        def score(pairs: Sequence[LabelledPair], scorer: Scorer = scorer) -> Floats:
            return np.array([scorer(pair.query, pair.title) for pair in pairs])

        flags.update(zip(of_language, best_first(of_language, score), strict=True))
    return [flags[one] for one in lists]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="checkpoint directory or hub id; default: the shipped model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--without", default="", help="sources that were left out of the training")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of queries")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    clf = Classifier.load(options.model, "cpu", "bfloat16")

    def probabilities(pairs: Sequence[LabelledPair]) -> Floats:
        return clf.score([(pair.query, pair.title) for pair in pairs]).probabilities.astype(np.float64)

    def score(pairs: Sequence[LabelledPair]) -> Floats:
        return clf.score([(pair.query, pair.title) for pair in pairs]).raw_score

    print(*short_list_lines(score), sep="\n")
    for measure in measures(options.data, options.without.split(","), scale=options.scale):
        print(standing(measure, probabilities), flush=True)


if __name__ == "__main__":
    main()
