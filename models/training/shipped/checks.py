"""Asks a checkpoint questions whose answers are known, and prints them beside what must hold.

    python -m models.training.shipped.checks --model models/default --data ../shared/data

- Quadruples (exact, another kind, accessory, unrelated), sixty each in English, Korean and Chinese, and a
  harder hundred in English: how often the exact title is first, and the unrelated one last.
- Titles of other queries, nonsense queries, and empty titles get a low grade.
- "Kit", "Set", "Pack" or "System" after an exact title costs little; another number costs something.
- Within queries, the model ranks better than word overlap and BM25; of the products, intervals exclude 0.

The judged pairs are those of the validation folds; `--folds test` is for a model that has been chosen.
"""

import argparse
import csv
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.classifier import Classifier
from models.quality.comparison import Side, compare
from models.quality.evaluation import evaluation_of
from models.training.shipped.judged import FOLDS, Judged, read_judged, source_family, source_groups
from models.training.shipped.typed import nonsense

Floats = NDArray[np.float64]
Grade = Callable[[Sequence[tuple[str, str]]], Floats]
"""Takes pairs of query and title; returns their expected grades, (pairs,)."""

FIXTURES = Path("tests/fixtures")
KINDS = ("exact", "substitute", "accessory", "unrelated")
FIRST = {"english": 0.92, "development": 0.75, "korean": 0.85, "chinese": 0.85}
"""Least share of quadruples whose exact title is first, by set."""

LAST = 0.9
"""Least share of quadruples whose unrelated title is last."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A figure, the bound that it must keep, and whether it does. at_least: the bound is a lower one."""

    name: str
    value: float
    bound: float
    at_least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        """Return whether the bound is kept."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a tab-separated file whose comments begin with #."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t"))


def read_quadruples(name: str, fixtures: Path = FIXTURES) -> list[dict[str, str]]:
    """Return a set of queries, each with a title of every one of KINDS."""
    return [row for row in read_table(fixtures / "quadruples.tsv") if row["set"] == name]


def quadruple_answers(grade: Grade, fixtures: Path = FIXTURES) -> list[Answer]:
    """Report how often the exact title is first and the unrelated one last."""
    answers = []
    for name, bound in FIRST.items():
        rows = read_quadruples(name, fixtures)
        grades = grade([(row["query"], row[kind]) for row in rows for kind in KINDS]).reshape(-1, len(KINDS))
        first = float((grades[:, 0] > grades[:, 1:].max(1)).mean())
        last = float((grades[:, 3] < grades[:, :3].min(1)).mean())
        order = float((np.diff(grades, axis=1) < 0).all(1).mean())
        answers.append(
            Answer(f"{name} quadruples: exact first", first, bound, True, f"all in order {order:.2f}")
        )
        answers.append(Answer(f"{name} quadruples: unrelated last", last, LAST, True))
    return answers


def unrelated_answers(grade: Grade, judged: Sequence[Judged], *, seed: int = 0) -> list[Answer]:
    """Report the mean grades of titles that answer nothing, and of empty titles."""
    rng = random.Random(seed)
    titles = sorted({row.title for row in judged if source_family(row.source) in ("esci", "chorus")})
    pairs = [(nonsense(rng), rng.choice(titles)) for _ in range(400)]
    answers = [Answer("a nonsense query", float(grade(pairs).mean()), 0.5)]
    empty = grade([(row.query, "") for row in rng.sample(judged, 200)])
    answers.append(Answer("an empty title", float(empty.mean()), 0.6))
    for name, indices in source_groups(judged).items():
        rows = [judged[index] for index in indices]
        if name != "all":
            drawn = (rng.sample(rows, 2) for _ in range(600))
            pairs = [(one.query, other.title) for one, other in drawn if one.query != other.query]
            answers.append(Answer(f"another query's title, {name}", float(grade(pairs).mean()), 0.6))
    return answers


def wording_answers(grade: Grade, fixtures: Path = FIXTURES) -> list[Answer]:
    """Change a word of an exact title or of its query, and report by how much the grade moves."""
    rows = read_table(fixtures / "probes.tsv")
    short = [(row["query"], row["title"].partition(",")[0]) for row in rows]
    before, answers = grade(short), []
    for word in ("Kit", "Set", "Pack", "System"):
        cost = before - grade([(query, f"{title} {word}") for query, title in short])
        name = f'"{word}" at the end of an exact title costs'
        answers.append(Answer(name, float(cost.mean()), 0.4, note=f"worst {cost.max():.2f}"))
    plain = grade([(row["query"], row["title"]) for row in rows])
    apart = np.abs(plain - grade([(row["other_number"], row["title"]) for row in rows]))
    answers.append(
        Answer("plural and singular apart", float(apart.mean()), 0.3, note=f"worst {apart.max():.2f}")
    )
    numbered = [row for row in rows if row["title_without_number"]]
    drop = grade([(row["query"], row["title"]) for row in numbered]) - grade(
        [(row["query"], row["title_without_number"]) for row in numbered]
    )
    note = f"lower in {(drop > 0).sum()} of {len(drop)}"
    return [*answers, Answer("a missing number costs", float(drop.mean()), 0.0, True, note)]


def ranking_answers(
    probabilities: Floats, judged: Sequence[Judged], *, resamples: int = 2000
) -> list[Answer]:
    """Compare the model's order with word overlap's and BM25's on each source.

    probabilities: (pairs, grades).
    """
    answers = []
    for name, indices in source_groups(judged).items():
        if name == "all":
            continue
        rows = [judged[index] for index in indices]
        evaluation = evaluation_of(rows, probabilities[indices])
        found = compare(
            [Side("model", "model", "full", "none", evaluation)], rows, resamples=resamples, seed=0
        )
        for one in found.baselines:
            for metric in ("query_spearman", "ndcg10"):
                change = one.model_minus[metric]
                note = (
                    f"{found.metrics['model'][metric].value:.3f} against {one.metrics[metric].value:.3f}: "
                    f"{change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
                )
                value = change.low if name == "products" else change.value
                answers.append(Answer(f"{name}: {metric} − {one.name}", value, 0.0, True, note))
    return answers


def check(clf: Classifier, judged: Sequence[Judged], fixtures: Path = FIXTURES) -> list[Answer]:
    """Ask everything."""

    def grade(pairs: Sequence[tuple[str, str]]) -> Floats:
        return clf.score(list(pairs)).expected_grade.astype(np.float64)

    scored = clf.score([(row.query, row.title) for row in judged]).probabilities.astype(np.float64)
    return [
        *quadruple_answers(grade, fixtures),
        *unrelated_answers(grade, judged),
        *wording_answers(grade, fixtures),
        *ranking_answers(scored, judged),
    ]


def as_text(answers: Sequence[Answer]) -> str:
    """Return one line per answer: whether it holds, its name, the value, the bound, and the note."""
    lines = []
    for answer in answers:
        sign = "≥" if answer.at_least else "≤"
        mark = "holds" if answer.holds else "FAILS"
        lines.append(
            f"{mark}  {answer.name:<48}{answer.value:7.3f} {sign} {answer.bound:.2f}  {answer.note}".rstrip()
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.shipped.checks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="checkpoint directory or hub id; default: the shipped model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--folds", choices=sorted(FOLDS), default="validation")
    options = parser.parse_args(arguments)
    answers = check(Classifier.load(options.model), read_judged(options.data, FOLDS[options.folds]))
    print(as_text(answers))


if __name__ == "__main__":
    main()
