"""`headroom.prune`: a smaller checkpoint from a classifier and a mask."""

from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier, InvalidMask, ModelError, prune

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


def test_the_callers_order_of_grades_is_that_of_the_pruned_checkpoint(
    reversed_clf: Classifier, tmp_path: Path
) -> None:
    smaller = prune(reversed_clf, "1.*", tmp_path / "smaller").load("cpu", "float32")
    assert smaller.grades == reversed_clf.grades
    expected = reversed_clf.score(PAIRS, head_mask="1.*").score
    np.testing.assert_allclose(smaller.score(PAIRS).score, expected, atol=2e-5)
    again = prune(smaller, "2.0", tmp_path / "again").load("cpu", "float32")
    assert again.grades == reversed_clf.grades


def test_wrong_masks_and_a_full_directory_are_refused(clf: Classifier, tmp_path: Path) -> None:
    with pytest.raises(InvalidMask, match="mask: layer 3 does not exist"):
        prune(clf, "3.*", tmp_path / "new")
    with pytest.raises(ModelError, match="head"):
        prune(clf, "*.*", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "kept.txt").write_text("kept")
    with pytest.raises(ModelError, match="empty"):
        prune(clf, "1.*", tmp_path)
