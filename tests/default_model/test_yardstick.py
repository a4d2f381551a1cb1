"""The measure by which the shipped model is chosen: a perfect model beats overlap, a level one does not."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from default_model.groups import VALIDATION_FOLDS, fold_of
from default_model.yardstick import (
    JUDGED,
    LISTED,
    Measure,
    measures,
    quick_figures,
    short_list_lines,
    standing,
)
from headroom.models.quality.labelled import LabelledPair

pytestmark = pytest.mark.more


def perfect(pairs: Sequence[LabelledPair]) -> np.ndarray:
    return np.eye(5)[[pair.grade for pair in pairs]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    def rows(source: str, language: str) -> list[dict[str, object]]:
        return [
            {
                "query": f"{source} 질문 {n}",
                "title": f"제목 {source[:2]} {n} {grade}",
                "grade": grade,
                "source": source,
                "fold": fold_of(f"{source} 질문 {n}"),
                "lang": language,
            }
            for n in range(40)
            for grade in (0, 2, 4)
        ]

    judged = [row for name in JUDGED for row in rows(name, "en")]
    with gzip.open(tmp_path / "graded.jsonl.gz", "wt", encoding="utf-8") as file:
        for row in judged:
            file.write(json.dumps({name: row[name] for name in row if name != "lang"}) + "\n")
    for source in LISTED.values():
        directory = tmp_path / "multilingual" / source.directory
        directory.mkdir(parents=True)
        with gzip.open(directory / "pairs.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows(source.part, source.language))
    return tmp_path


def test_test_folds_are_never_read_and_a_source_left_out_is_asked_whole(data: Path) -> None:
    found = {measure.name: measure for measure in measures(data, ["openbg", "chorus"])}
    assert set(found) == set(JUDGED) | set(LISTED)
    folds = {name: {fold_of(pair.query) for pair in measure.pairs} for name, measure in found.items()}
    assert not any({0, 1} & of_measure for of_measure in folds.values())
    assert folds["esci"] <= set(VALIDATION_FOLDS)
    assert folds["dureader"] <= set(VALIDATION_FOLDS)
    assert folds["openbg"] > set(VALIDATION_FOLDS)
    assert folds["chorus"] > set(VALIDATION_FOLDS)


def test_a_perfect_model_is_shown_to_be_better_than_overlap_and_a_level_one_is_not(data: Path) -> None:
    measure = next(measure for measure in measures(data, ["openbg"]) if measure.name == "openbg")
    best = standing(measure, perfect)
    assert best.own["ndcg10"] == best.own["query_spearman"] == pytest.approx(1)
    assert best.random_order < 1
    assert all(best.change[name].low > 0 for name in ("ndcg10", "query_spearman"))
    level = standing(measure, lambda pairs: np.full((len(pairs), 5), 0.2))
    assert level.own["ndcg10"] == pytest.approx(level.random_order, abs=0.02)
    assert level.change["query_spearman"].low <= 0
    assert "openbg (zh)" in str(best)
    assert "random order" in str(best)


def test_the_correlation_over_all_pairs_is_scipys() -> None:
    rng = np.random.default_rng(0)
    pairs = [LabelledPair(f"q{n % 7}", f"t{n}", int(grade)) for n, grade in enumerate(rng.integers(0, 5, 60))]
    probabilities = rng.dirichlet(np.ones(5), len(pairs))
    figures = quick_figures([Measure("some", "en", pairs)], lambda _: probabilities)
    wanted = spearmanr([pair.grade for pair in pairs], probabilities @ np.arange(5)).statistic
    assert figures["some"][2] == pytest.approx(wanted, abs=0.001)


def test_counting_words_does_not_solve_the_short_lists() -> None:
    lines = short_list_lines(lambda pairs: np.array([pair.grade for pair in pairs], float))
    assert lines[-1].startswith("lists, all")
    assert "first 1.00" in lines[-1]
    assert float(lines[-1].split("overlap")[1]) < 0.5
