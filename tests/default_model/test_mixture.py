"""What the shipped model learns from: folds never leak, and made-up titles have the grades they should."""

import gzip
import json
from pathlib import Path

import pytest

from default_model.checks import read_quadruples
from default_model.groups import TEST_FOLDS, TRAINING_FOLDS, VALIDATION_FOLDS
from default_model.mixture import (
    Judged,
    MovieQuery,
    Sources,
    Titles,
    by_query,
    read_catalogue,
    read_judged,
)

pytestmark = pytest.mark.more

ROWS = [
    Judged(f"{colour} {thing}", f"{other} {thing.title()} {number} inch", grade, source, 4)
    for source in ("esci_us_150q", "chorus_icecat")
    for colour in ("red", "blue", "green")
    for thing in ("lamp", "drill")
    for grade, (other, number) in enumerate(
        (("Old", 3), ("New", 12), ("Big", 7), ("Small", 9), (colour.title(), 5))
    )
]


@pytest.fixture(scope="module")
def sources() -> Sources:
    movies = [MovieQuery("heat", ["Heat (1995)"], ["Cold (1995)", "Warm (1996)"])]
    shares = {"esci": 0.7, "chorus": 0.3}
    titles = dict.fromkeys(shares, Titles(row.title for row in ROWS))
    return Sources(by_query(ROWS), shares, titles, movies, read_catalogue())


def test_no_query_is_in_two_folds_and_test_folds_never_reach_training(tmp_path: Path) -> None:
    rows = [
        {"query": f"q{n}", "title": "t", "grade": n % 5, "source": "esci_us_150q", "fold": n % 10}
        for n in range(50)
    ]
    with gzip.open(tmp_path / "graded.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    parts = [
        {row.query for row in read_judged(tmp_path, folds)}
        for folds in (TRAINING_FOLDS, VALIDATION_FOLDS, TEST_FOLDS)
    ]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 50
    assert set(TRAINING_FOLDS) | set(VALIDATION_FOLDS) | set(TEST_FOLDS) == set(range(10))


def test_no_query_of_the_tests_is_trained_on(sources: Sources) -> None:
    exact = set()
    for language in ("korean", "chinese"):
        rows = read_quadruples(language)
        assert len(rows) == 60
        exact |= {row["exact"] for row in rows}
    questions = sources.catalogue["questions"]
    things = [thing for language in ("en", "ko", "zh") for thing in sources.catalogue[language]]
    titles = {title for thing in things for title in thing["titles"]}
    assert not exact & (titles | {asked["exact"] for asked in questions})
    assert not any("오리" in asked["question"] for asked in questions)
