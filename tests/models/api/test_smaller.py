"""`headroom.prune`: a smaller checkpoint from a classifier and a mask."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headroom import Classifier, ModelError, evaluate, prune
from tests.teaching import judged as judged
from tests.teaching import pairs as pairs

PAIRS = [("angle bracket", "steel angle"), ("usb cable", "red towel")]


def test_the_pruned_checkpoint_scores_as_the_classifier_with_the_mask(
    clf: Classifier, tmp_path: Path
) -> None:
    smaller = prune(clf, "1.*,2.0", tmp_path / "smaller")

    assert smaller.path == tmp_path / "smaller"
    assert smaller.mask.spec == "1.*,2.0"
    assert smaller.sizes["heads"] == (12, 7)
    loaded = smaller.load("cpu", "float32")
    expected = clf.score(PAIRS, head_mask="1.*,2.0").logits
    np.testing.assert_allclose(loaded.score(PAIRS).logits, expected, atol=2e-5)
    table = smaller.to_frame().set_index("part")
    assert table.loc["heads"].tolist() == [12, 7]
    assert repr(smaller).startswith(f"{smaller.path}: 7 of 12 heads, ")


def test_a_pruned_model_is_taught_by_the_whole_one(
    clf: Classifier, pairs: Path, judged: Path, tmp_path: Path
) -> None:
    taught = prune(
        clf,
        "1.*,2.0",
        tmp_path / "taught",
        recover_minutes=0.02,
        data=pd.read_csv(pairs, sep="\t"),
        test=pd.read_csv(judged),
    )
    assert taught.sizes == prune(clf, "1.*,2.0", tmp_path / "plain").sizes
    assert taught.recovery is not None
    quality = taught.recovery.metrics["quality"]
    before = evaluate(clf, judged, masks=["1.*,2.0"]).to_frame().set_index("metric").loc["ndcg10", "value"]
    assert quality["before"]["ndcg10"]["value"] == pytest.approx(before)
    after = evaluate(taught.load(), judged).to_frame().set_index("metric")
    assert after.loc["ndcg10", "value"] == pytest.approx(quality["student"]["ndcg10"]["value"])
    assert taught.recovery.metrics["against_teacher"]["verdict"] in repr(taught)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recover_minutes": 1}, "^recover_minutes and data: give both or none"),
        ({"test": []}, "^test: it needs recover_minutes"),
        ({"recover_minutes": 0, "data": []}, "^recover_minutes: 0 is outside the valid range, 0.01 or more"),
        ({"recover_minutes": 1, "data": []}, "^data holds no pairs"),
    ],
)
def test_a_recovery_that_cannot_be_is_refused_by_the_name_of_the_argument(
    clf: Classifier, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        prune(clf, "1.*", tmp_path / "out", **options)


def test_the_callers_order_of_grades_is_that_of_the_pruned_checkpoint(
    reversed_clf: Classifier, tmp_path: Path
) -> None:
    smaller = prune(reversed_clf, "1.*", tmp_path / "smaller").load("cpu", "float32")
    assert smaller.grades == reversed_clf.grades
    expected = reversed_clf.score(PAIRS, head_mask="1.*").score
    np.testing.assert_allclose(smaller.score(PAIRS).score, expected, atol=2e-5)
    again = prune(smaller, "2.0", tmp_path / "again").load("cpu", "float32")
    assert again.grades == reversed_clf.grades
