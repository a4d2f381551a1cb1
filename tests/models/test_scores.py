"""Scores as a sequence and as a table, as a notebook uses them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headroom import Classifier, PairScore, Scores
from tests.checkpoints import GRADES

TITLES = ["steel angle", "wood deck screws", "red kitchen towel"]


@pytest.fixture(scope="module")
def graded(clf: Classifier) -> Scores:
    return clf.score("angle bracket", TITLES)


def test_an_index_gives_the_result_of_one_pair(graded: Scores) -> None:
    assert len(graded) == 3
    one = graded[1]
    assert isinstance(one, PairScore)
    assert (one.query, one.title) == ("angle bracket", "wood deck screws")
    assert one.score == pytest.approx(float(graded.score[1]))
    assert one.grade == graded.grade[1]
    assert one.label == GRADES[one.grade]
    assert one.expected_grade == pytest.approx(float(graded.probabilities[1] @ np.arange(5)))
    assert graded[-1].title == TITLES[2]
    assert graded[np.int64(2)].title == TITLES[2]
    with pytest.raises(IndexError):
        graded[3]
    with pytest.raises(TypeError):
        graded["title"]  # type: ignore[call-overload]


@given(arrays(np.float64, (5,), elements=st.floats(-6, 6)))
def test_no_grade_is_expected_to_be_nearer_to_the_truth_than_the_median(logits: np.ndarray) -> None:
    scores = Scores.from_logits(logits[None].astype(np.float32))
    grades = np.arange(5)
    distances = np.abs(grades[:, None] - grades) @ scores.probabilities[0].astype(np.float64)
    assert distances[scores.grade[0]] <= distances.min() + 1e-6


def test_a_table_of_a_graded_model_has_the_texts_the_grade_and_each_probability(graded: Scores) -> None:
    table = graded.to_frame()
    assert list(table.columns) == [
        *("query", "title", "score", "expected_grade", "grade", "label"),
        *(f"p_{label}" for label in GRADES),
    ]
    assert table["title"].tolist() == TITLES
    assert table["label"].tolist() == [GRADES[grade] for grade in graded.grade]
    np.testing.assert_array_equal(table[[f"p_{label}" for label in GRADES]], graded.probabilities)


def test_a_table_of_one_label_has_a_score_and_no_grade(one_label: Classifier) -> None:
    scores = one_label.score("angle bracket", TITLES)
    table = scores.to_frame()
    assert list(table.columns) == ["query", "title", "score", "raw_score"]
    np.testing.assert_allclose(table["score"], 1 / (1 + np.exp(-table["raw_score"])), rtol=1e-5)
    one = scores[0]
    assert (one.grade, one.label, one.expected_grade, one.probabilities) == (None, None, None, None)


def test_without_pandas_a_table_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ModuleNotFoundError('pandas')")
    code = (
        "import numpy as np; from headroom import Scores\n"
        "try: Scores.from_logits(np.zeros((1, 2), np.float32)).to_frame()\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    path = [str(tmp_path), *sys.path]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith("to_frame() needs pandas: ")
    assert "[notebook]" in run.stdout
