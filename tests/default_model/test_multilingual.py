"""The Korean and Chinese lists: folds, order within a list, and queries of a title's own words."""

import gzip
import json
from pathlib import Path

import pytest

from default_model.groups import TEST_FOLDS, TRAINING_FOLDS, VALIDATION_FOLDS
from default_model.multilingual import (
    read_lists,
)

pytestmark = pytest.mark.more


def test_a_query_is_in_one_fold_only_and_pairs_of_one_query_stay_together(tmp_path: Path) -> None:
    directory = tmp_path / "multilingual" / "some_set"
    directory.mkdir(parents=True)
    rows = [
        {"query": f"질문 {n}", "title": f"제목 {n} {grade}", "grade": grade, "source": "some", "lang": "ko"}
        for grade in (4, 0)
        for n in range(60)
    ]
    with gzip.open(directory / "pairs.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    parts = [
        read_lists(tmp_path, "some_set", folds) for folds in (TEST_FOLDS, VALIDATION_FOLDS, TRAINING_FOLDS)
    ]
    assert sum(map(len, parts)) == 60
    assert all(len(pairs) == 2 for part in parts for pairs in part)
    assert all(parts)
