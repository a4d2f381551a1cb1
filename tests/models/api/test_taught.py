"""`headroom.distil` and `headroom.quantize`: what they return is what they wrote."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from headroom import Classifier, ModelError, distil, evaluate, quantize
from headroom.models.training.distil import running
from tests.teaching import judged as judged
from tests.teaching import pairs as pairs


def test_a_student_comes_with_its_figures(clf: Classifier, pairs: Path, judged: Path, tmp_path: Path) -> None:
    student = distil(clf, pairs, tmp_path / "half", layers=2, test=judged, steps=3)
    written = json.loads((tmp_path / "half" / "metrics.json").read_text())
    frame = student.to_frame()
    lost = frame[(frame["side"] == "student_minus_teacher") & (frame["metric"] == "ndcg10")].iloc[0]
    assert lost["value"] == written["quality"]["student_minus_teacher"]["ndcg10"]["value"]
    assert student.load("cpu").num_layers == 2
    assert repr(student).startswith(
        f"{tmp_path / 'half'}: {written['against_teacher']['verdict']}\n2 of 3 layers"
    )
    with pytest.raises(ModelError, match="steps, minutes: give one of them"):
        distil(clf, pairs, tmp_path / "other", layers=2, steps=3, minutes=1)


def test_an_int8_copy_comes_with_what_it_loses(
    clf: Classifier, pairs: Path, judged: Path, tmp_path: Path
) -> None:
    made = quantize(clf, tmp_path / "int8", data=pairs, test=judged)
    frame = made.to_frame().set_index("metric")
    row = frame.loc["ndcg10"]
    assert row["change"] == pytest.approx(row["after"] - row["before"])
    texts = [("lamp 1", "a lamp"), ("lamp 1", "wood")]
    np.testing.assert_allclose(made.load("cpu").score(texts).score, clf.score(texts).score, atol=0.05)
    assert "on this machine, int8 runs at" in repr(made)
    with pytest.raises(ModelError, match="int8"):
        quantize(made.load("cpu"), tmp_path / "again")


def test_copies_have_the_order_of_grades_that_the_caller_gave(
    reversed_clf: Classifier, pairs: Path, judged: Path, tmp_path: Path
) -> None:
    """Or a student of a model whose order was corrected would call the best titles the worst."""
    texts = [("lamp 1", "a lamp"), ("lamp 1", "wood"), ("usb lamp", "steel lamp holder"), ("b", "a c")]
    wanted = reversed_clf.score(texts).score
    student = distil(reversed_clf, pairs, tmp_path / "half", layers=2, test=judged, steps=3).load("cpu")
    assert student.grades == reversed_clf.grades
    made = quantize(reversed_clf, tmp_path / "int8", data=pairs, test=judged)
    assert made.load("cpu").grades == reversed_clf.grades
    np.testing.assert_allclose(made.load("cpu").score(texts).score, wanted, atol=0.05)
    quality = json.loads((tmp_path / "half" / "metrics.json").read_text())["quality"]
    as_teacher = evaluate(reversed_clf, judged).to_frame().set_index("metric").loc["ndcg10", "value"]
    assert quality["teacher"]["ndcg10"]["value"] == pytest.approx(as_teacher)


def test_columns_of_other_names_are_read(clf: Classifier, pairs: Path, judged: Path, tmp_path: Path) -> None:
    pairs.write_text(pairs.read_text().replace("query\ttitle", "search\tname"))
    named: dict[str, Any] = {"query": "search", "title": "name"}
    assert quantize(clf, tmp_path / "int8", data=pairs, test=judged, **named).document["test"] == str(judged)
    judged.write_text(judged.read_text().replace("query,title,grade", "query,name,stars"))
    out = tmp_path / "half"
    student = distil(clf, pairs, out, layers=2, test=judged, steps=1, grade="stars", **named)
    assert student.metrics["test_queries"] == 20


def test_pairs_in_memory_teach_and_test_as_their_file_does(
    clf: Classifier, pairs: Path, judged: Path, tmp_path: Path
) -> None:
    """As a frame, and as tuples: graded ones will do, too."""
    frame = pd.read_csv(pairs, sep="\t")
    rows = list(pd.read_csv(judged).itertuples(index=False, name=None))
    of_file = distil(clf, pairs, tmp_path / "file", layers=2, test=judged, steps=3)
    of_frame = distil(clf, frame, tmp_path / "frame", layers=2, test=rows, steps=3)
    assert of_frame.to_frame().equals(of_file.to_frame())
    assert of_frame.metrics["test_file"] == "test"

    int8 = quantize(clf, tmp_path / "int8", data=pairs, test=judged)
    tuples = [(query, title, 0) for query, title in frame.itertuples(index=False)]
    of_tuples = quantize(clf, tmp_path / "int8 of tuples", data=tuples, test=pd.read_csv(judged))
    assert of_tuples.to_frame().equals(int8.to_frame())
    assert of_tuples.document["calibration_pairs"] == int8.document["calibration_pairs"]


def test_scores_in_a_frame_teach(clf: Classifier, pairs: Path, judged: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(pairs, sep="\t")
    frame["llm"] = np.arange(len(frame)) % 7
    options: dict[str, Any] = {"student": clf.directory, "scores": "llm", "steps": 1, "test": judged}
    taught_on = ~frame["query"].isin(pd.read_csv(judged)["query"])
    assert distil(None, frame, tmp_path / "out", **options).metrics["pairs"] == taught_on.sum()
    with pytest.raises(ModelError, match="data has no column 'llm'; found 'query', 'title'; name yours, as"):
        distil(None, frame[["query", "title"]], tmp_path / "other", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 2, "steps": 0}, "steps: 0 is outside the valid whole numbers, 1 or more"),
        ({"layers": 9}, "^layers 9: .* has 3 layers; give 1 to 3"),
        ({}, "the student would be its teacher; give layers, heads or units to cut it, or student$"),
        ({"scores": "llm"}, "^scores and teacher: give one of them"),
        (
            {"data": {"query": []}},
            r"data: a dict is no data; give a DataFrame, .* or \(query, title\) tuples",
        ),
        ({"data": [("query",)]}, r"^data\[0\]: \('query',\) is not a tuple \(query, title\)"),
        ({"layers": 2, "data": [("a", None)]}, "^data, row 0: "),
        ({"out": None}, "out: None is no path; give the path of a directory"),
    ],
)
def test_what_a_distillation_cannot_take_is_refused_by_the_name_of_the_argument(
    clf: Classifier, pairs: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        distil(**{"teacher": clf, "data": pairs, "out": tmp_path / "out", **options})


def test_an_unfinished_run_of_pairs_in_memory_goes_on_with_the_same_alone(
    clf: Classifier, pairs: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.read_csv(pairs, sep="\t")
    options: dict[str, Any] = {"layers": 2, "steps": 3, "test": judged}
    with monkeypatch.context() as patch:
        patch.setattr(running.Run, "teach", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            distil(clf, frame, tmp_path / "out", **options)
    with pytest.raises(ModelError, match="unfinished run with another content of data"):
        distil(clf, frame.iloc[1:], tmp_path / "out", **options)
    assert distil(clf, frame, tmp_path / "out", **options).load("cpu").num_layers == 2
