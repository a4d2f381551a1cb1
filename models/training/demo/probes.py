"""Asks a checkpoint simple questions whose answers are known, and prints them beside what must hold.

    python -m models.training.demo.probes --model models/default --data ../shared/data

- "Kit", "Set", "Pack" or "System" after an exact title (up to its comma) costs at most 0.4 grades.
- A query in the plural and in the singular: the grades are at most 0.3 apart.
- A title that lacks the query's number has a lower grade.
- A nonsense query: at most 0.5. A title of another query: at most 0.6.
- Sixty quadruples in order: 90 %. A harder hundred: 65 %.
- Spearman within queries and NDCG@10 are above word overlap and BM25. Of the products, paired intervals
  exclude 0.

The judged pairs are those of the validation folds; `--folds test` is for a model that has been chosen.
"""

import argparse
import csv
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.classifier import Classifier
from models.quality.comparison import Comparison, Side, compare
from models.quality.evaluation import Evaluation
from models.quality.labelled import LabelledPair
from models.training.data import REPORTED_FOLDS, Judged, read_judged, source_family, source_groups

Floats = NDArray[np.float64]
Grade = Callable[[Sequence[tuple[str, str]]], Floats]
"""Takes pairs of query and title; returns their expected grades, (pairs,)."""

FIXTURES = Path("tests/fixtures")
BUNDLES = ("Kit", "Set", "Pack", "System")
MASHED = ("asdf ghjkl", "qwerty uiop zxcv", "jkl;", "hjkhjk", "wefwef wef", "lkjsdf", "zzzz", "aaaa bbbb")
RANKED = ("query_spearman", "ndcg10")
KINDS = ("exact", "substitute", "accessory", "unrelated")


@dataclass(frozen=True, slots=True)
class Exact:
    """A query, the same in the other grammatical number, its exact title, and that without the number."""

    query: str
    other_number: str
    title: str
    title_without_number: str


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


def read_exact(fixtures: Path = FIXTURES) -> list[Exact]:
    """Read the exact titles that probes change."""
    return [Exact(**row) for row in read_table(fixtures / "probes.tsv")]


def wording_probes(grade: Grade, rows: Sequence[Exact]) -> list[Answer]:
    """Change a word of an exact title or of its query, and report by how much the grade moves."""
    plain = grade([(row.query, row.title) for row in rows])
    answers = []
    short = [(row.query, row.title.partition(",")[0]) for row in rows]
    before = grade(short)
    for word in BUNDLES:
        cost = before - grade([(query, f"{title} {word}") for query, title in short])
        note = f"worst {cost.max():.2f}"
        answers.append(
            Answer(f'"{word}" at the end of an exact title costs', float(cost.mean()), 0.4, note=note)
        )
    apart = np.abs(plain - grade([(row.other_number, row.title) for row in rows]))
    answers.append(
        Answer("plural and singular apart", float(apart.mean()), 0.3, note=f"worst {apart.max():.2f}")
    )
    numbered = [row for row in rows if row.title_without_number]
    drop = grade([(row.query, row.title) for row in numbered]) - grade(
        [(row.query, row.title_without_number) for row in numbered]
    )
    lower = f"lower in {(drop > 0).sum()} of {len(drop)}"
    return [*answers, Answer("a missing number costs", float(drop.mean()), 0.2, at_least=True, note=lower)]


def nonsense_queries(count: int, seed: int = 0) -> list[str]:
    """Return queries that mean nothing: random letters, and what a hand types without looking."""
    rng = random.Random(seed)
    queries = list(MASHED)
    while len(queries) < count:
        words = [
            "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 9)))
            for _ in range(rng.randint(1, 3))
        ]
        queries.append(" ".join(words))
    return queries[:count]


def unrelated_probes(grade: Grade, judged: Sequence[Judged], *, seed: int = 0) -> list[Answer]:
    """Report the mean grades of titles that answer nothing: nonsense queries, and other queries' titles."""
    rng = random.Random(seed)
    titles = sorted({row.title for row in judged if source_family(row.source) in ("esci", "chorus")})
    pairs = [(query, rng.choice(titles)) for query in nonsense_queries(400, seed)]
    answers = [Answer("a nonsense query", float(grade(pairs).mean()), 0.5)]
    for name, places in source_groups(judged).items():
        rows = [judged[place] for place in places]
        if name == "all":
            continue
        drawn = (rng.sample(rows, 2) for _ in range(600))
        pairs = [(one.query, other.title) for one, other in drawn if one.query != other.query]
        answers.append(Answer(f"another query's title, {name}", float(grade(pairs).mean()), 0.6))
    return answers


def order_probes(grade: Grade, fixtures: Path = FIXTURES) -> list[Answer]:
    """Report the share of quadruples whose four titles are in order."""
    answers = []
    for name, file, bound in (
        ("sixty quadruples in order", "quadruples.tsv", 0.9),
        ("a harder hundred in order", "quadruples_development.tsv", 0.65),
    ):
        rows = read_table(fixtures / file)
        grades = grade([(row["query"], row[kind]) for row in rows for kind in KINDS]).reshape(-1, len(KINDS))
        steps = np.diff(grades, axis=1) < 0  # (rows, 3)
        note = "steps " + ", ".join(f"{share:.2f}" for share in steps.mean(0))
        answers.append(Answer(name, float(steps.all(1).mean()), bound, at_least=True, note=note))
    return answers


def ranking_probes(
    probabilities: Floats, judged: Sequence[Judged], *, resamples: int = 2000
) -> dict[str, Comparison]:
    """Compare the model with word overlap and BM25 on each source. probabilities: (pairs, grades)."""
    found = {}
    for name, places in source_groups(judged).items():
        if name == "all":
            continue
        rows = [judged[place] for place in places]
        evaluation = Evaluation(
            [row.query for row in rows], [row.grade for row in rows], probabilities[places]
        )
        side = Side("model", "model", "full", "none", evaluation)
        pairs = [LabelledPair(row.query, row.title, row.grade) for row in rows]
        found[name] = compare([side], pairs, resamples=resamples, seed=0)
    return found


def ranking_answers(name: str, found: Comparison) -> list[Answer]:
    """Return the model minus each baseline; of the products the low end of the interval."""
    answers = []
    for one in found.baselines:
        for metric in RANKED:
            change = one.model_minus[metric]
            note = (
                f"{found.metrics['model'][metric].value:.3f} against {one.metrics[metric].value:.3f}: "
                f"{change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
            )
            value = change.low if name == "products" else change.value
            answers.append(Answer(f"{name}: {metric} − {one.name}", value, 0.0, at_least=True, note=note))
    return answers


def probe(clf: Classifier, judged: Sequence[Judged], fixtures: Path = FIXTURES) -> list[Answer]:
    """Ask everything."""

    def grade(pairs: Sequence[tuple[str, str]]) -> Floats:
        return clf.score(list(pairs)).expected_grade.astype(np.float64)

    scored = clf.score([(row.query, row.title) for row in judged]).probabilities.astype(np.float64)
    answers = [
        *wording_probes(grade, read_exact(fixtures)),
        *unrelated_probes(grade, judged),
        *order_probes(grade, fixtures),
    ]
    for name, found in ranking_probes(scored, judged).items():
        answers += ranking_answers(name, found)
        qwk = found.metrics["model"]["qwk"].value
        answers.append(Answer(f"{name}: qwk (better than chance)", qwk, 0.0, at_least=True))
    return answers


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
        prog="python -m models.training.demo.probes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="checkpoint directory or hub id; default: the shipped model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--folds", choices=sorted(REPORTED_FOLDS), default="validation")
    parser.add_argument("--fixtures", type=Path, default=FIXTURES, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    options = parser.parse_args(arguments)
    answers = probe(
        Classifier.load(options.model),
        read_judged(options.data, REPORTED_FOLDS[options.folds]),
        options.fixtures,
    )
    if options.json:
        print(json.dumps([asdict(answer) | {"holds": answer.holds} for answer in answers], indent=1))
    else:
        print(as_text(answers))


if __name__ == "__main__":
    main()
