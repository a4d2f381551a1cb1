"""Asks a checkpoint questions whose answers are known, and prints them beside what must hold.

    python -m default_model.checks --model models/default --data ../shared/data

- Quadruples (exact, another kind, accessory, unrelated), sixty each in English, Korean and Chinese, and a
  harder hundred in English: how often the exact title is first, and the unrelated one last.
- Pairs of a title that fits and one that contradicts the query in one thing (data/contradictions.tsv): how
  often the fitting one is first, and by half a grade, and which grades the two get.
- Titles of other queries, nonsense queries, and empty titles get a low grade.
- Within queries, the model ranks better than word overlap and BM25; of the products, intervals exclude 0.

The judged pairs are those of the validation folds; `--folds test` is for a model that has been chosen.
"""

import argparse
import csv
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from default_model.groups import FOLDS
from default_model.mixture import Judged, read_judged, source_groups
from default_model.typed import nonsense
from headroom.models.classifier import Classifier
from headroom.models.quality.comparison import Side, compare_sides
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.scores import Scores

Floats = NDArray[np.float64]
Grade = Callable[[Sequence[tuple[str, str]]], Floats]
"""Takes pairs of query and title; returns their expected grades, (pairs,)."""

QUADRUPLES = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "quadruples.tsv"
KINDS = ("exact", "substitute", "accessory", "unrelated")
FIRST = {"english": 0.92, "development": 0.75, "korean": 0.85, "chinese": 0.85}
"""Least share of quadruples whose exact title is first, by set."""

CONTRADICTIONS = Path(__file__).resolve().parents[1] / "data" / "contradictions.tsv"

CLEAR = 0.5
"""The difference of expected grades by which a title clearly stands above another."""

CONTRADICTION_BOUNDS = {
    "first": (0.95, True),
    "first by half a grade": (0.80, True),
    "the contradicting one graded exact": (0.10, False),
    "the fitting one graded close or exact": (0.90, True),
}
"""What is aimed at: a share, and whether it is the least one."""

LAST = 0.9
"""Least share of quadruples whose unrelated title is last."""

BASELINES = ("word overlap", "BM25")
"""What a model must rank better than; the judged pairs come in no order that means something."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A figure and the bound that it must keep. at_least: the bound is a lower one."""

    name: str
    value: float
    bound: float
    at_least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        """Return whether the bound is kept."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        mark = "holds" if self.holds else "FAILS"
        sign = "≥" if self.at_least else "≤"
        return f"{mark}  {self.name:<48}{self.value:7.3f} {sign} {self.bound:.2f}  {self.note}".rstrip()


def read_quadruples(name: str) -> list[dict[str, str]]:
    """Return a set of queries, each with a title of every one of KINDS."""
    with QUADRUPLES.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t")
        return [row for row in rows if row["set"] == name]


def quadruple_answers(grade: Grade) -> list[Answer]:
    """Report how often the exact title is first and the unrelated one last."""
    answers = []
    for name, bound in FIRST.items():
        pairs = [(row["query"], row[kind]) for row in read_quadruples(name) for kind in KINDS]
        grades = grade(pairs).reshape(-1, len(KINDS))
        first = float((grades[:, 0] > grades[:, 1:].max(1)).mean())
        last = float((grades[:, 3] < grades[:, :3].min(1)).mean())
        note = f"all in order {(np.diff(grades, axis=1) < 0).all(1).mean():.2f}"
        answers.append(Answer(f"{name} quadruples: exact first", first, bound, True, note))
        answers.append(Answer(f"{name} quadruples: unrelated last", last, LAST, True))
    return answers


class Contradiction(NamedTuple):
    """A query, a title that fits it, and one that contradicts it in one thing. kind: what that thing is."""

    language: str
    kind: str
    query: str
    fits: str
    contradicts: str


def read_contradictions() -> list[Contradiction]:
    """Return the rows of data/contradictions.tsv. Nothing is trained on them or chosen by them."""
    with CONTRADICTIONS.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Contradiction(**row) for row in rows]


def contradiction_answers(score: Callable[[Sequence[tuple[str, str]]], Scores]) -> list[Answer]:
    """Report how the titles that fit are told from those that contradict, and by language and kind."""
    rows = read_contradictions()
    fits = score([(row.query, row.fits) for row in rows])
    contradicts = score([(row.query, row.contradicts) for row in rows])
    margin = fits.expected_grade - contradicts.expected_grade
    exact = max(len(fits.probabilities[0]) - 1, 1)
    found = {
        "first": fits.raw_score > contradicts.raw_score,
        "first by half a grade": margin >= CLEAR,
        "the contradicting one graded exact": contradicts.grade == exact,
        "the fitting one graded close or exact": fits.grade >= exact - 1,
    }
    values = sorted({value for row in rows for value in (row.language, row.kind)})
    answers = []
    for name, (bound, at_least) in CONTRADICTION_BOUNDS.items():
        notes = list[str]()
        for value in values:
            of_value = [flag for flag, row in zip(found[name], rows, strict=True) if value in row[:2]]
            notes.append(f"{value} {np.mean(of_value):.2f}")
        share = float(found[name].mean())
        answers.append(Answer(f"contradictions: {name}", share, bound, at_least, ", ".join(notes)))
    return answers


def unrelated_answers(grade: Grade, judged: Sequence[Judged]) -> list[Answer]:
    """Report the mean grades of titles that answer nothing, and of empty titles."""
    rng = random.Random(0)
    titles = sorted({row.title for row in judged if row.family in ("esci", "chorus")})
    cases = [("a nonsense query", 0.5, [(nonsense(rng), rng.choice(titles)) for _ in range(400)])]
    cases.append(("an empty title", 0.6, [(row.query, "") for row in rng.sample(judged, 200)]))
    for name, indices in source_groups(judged).items():
        rows = [judged[index] for index in indices]
        drawn = (rng.sample(rows, 2) for _ in range(600))
        crossed = [(one.query, other.title) for one, other in drawn if one.query != other.query]
        cases.append((f"another query's title, {name}", 0.6, crossed))
    return [Answer(name, float(grade(pairs).mean()), bound) for name, bound, pairs in cases]


def ranking_answers(
    probabilities: Floats, judged: Sequence[Judged], *, resamples: int = 2000
) -> list[Answer]:
    """Compare the model's order with word overlap's and BM25's on each source.

    probabilities: (pairs, grades).
    """
    answers = []
    for name, indices in source_groups(judged).items():
        rows = [judged[index] for index in indices]
        shares = probabilities[indices]
        evaluation = GradedEvaluation(rows, shares, shares @ np.arange(shares.shape[1]))
        found = compare_sides([Side("model", "model", "full", "none", evaluation)], rows, resamples=resamples)
        own = found["sides"][0]["metrics"]
        for baseline in BASELINES:
            of_baseline = found["baselines"][baseline]
            for metric in ("query_spearman", "ndcg10"):
                change = of_baseline["model_minus"][metric]
                note = (
                    f"{own[metric].value:.3f} against {of_baseline['metrics'][metric].value:.3f}: "
                    f"{change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
                )
                value = change.low if name == "products" else change.value
                answers.append(Answer(f"{name}: {metric} − {baseline}", value, 0.0, True, note))
    return answers


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", help="checkpoint directory or hub id; default: the shipped model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--folds", choices=sorted(FOLDS), default="validation")
    options = parser.parse_args()
    clf = Classifier.load(options.model)
    judged = read_judged(options.data, FOLDS[options.folds])

    def grade(pairs: Sequence[tuple[str, str]]) -> Floats:
        return clf.score(list(pairs)).expected_grade.astype(np.float64)

    probabilities = clf.score([(row.query, row.title) for row in judged]).probabilities.astype(np.float64)
    answers = [*quadruple_answers(grade), *unrelated_answers(grade, judged)]
    answers += contradiction_answers(lambda pairs: clf.score(list(pairs)))
    print(*answers, *ranking_answers(probabilities, judged), sep="\n")


if __name__ == "__main__":
    main()
