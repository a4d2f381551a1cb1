"""What the shipped model learns from: folds never leak."""

import gzip
import json
from pathlib import Path

import pytest

from default_model.checks import read_quadruples
from default_model.groups import TEST_FOLDS, TRAINING_FOLDS, VALIDATION_FOLDS
from default_model.mixture import (
    read_catalogue,
    read_judged,
)

pytestmark = pytest.mark.more


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


def test_no_query_of_the_tests_is_trained_on() -> None:
    exact = set()
    for language in ("korean", "chinese"):
        rows = read_quadruples(language)
        assert len(rows) == 60
        exact |= {row["exact"] for row in rows}
    catalogue = read_catalogue()
    questions = catalogue["questions"]
    things = [thing for language in ("en", "ko", "zh") for thing in catalogue[language]]
    titles = {title for thing in things for title in thing["titles"]}
    assert not exact & (titles | {asked["exact"] for asked in questions})
    assert not any("오리" in asked["question"] for asked in questions)
