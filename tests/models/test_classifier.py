"""The façade that users call."""

import math
from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier, HeadMask, InvalidMask, ModelError
from headroom.models.batch import batches_by_length
from headroom.models.classifier import Scores
from headroom.models.masks.head_mask import RowMasks

PAIRS = [
    ("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"),
    ("angle bracket", "wood deck screws"),
    ("red kitchen towel", "Kitchen towels, set of 4, in red " * 20),
    ("usb", ""),
]


def test_shapes_and_dtypes_are_the_documented_ones(clf: Classifier) -> None:
    scores = clf.score(PAIRS)

    assert scores.logits.shape == scores.probabilities.shape == (4, 5)
    assert {a.dtype for a in (scores.logits, scores.probabilities, scores.expected_grade, scores.score)} == {
        np.dtype(np.float32)
    }
    assert scores.grade.dtype == np.int64
    np.testing.assert_allclose(scores.probabilities.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(scores.expected_grade, scores.probabilities @ np.arange(5), rtol=1e-5)
    np.testing.assert_array_equal(scores.grade, scores.logits.argmax(1))
    assert ((scores.score >= 0) & (scores.score <= 1)).all()


def test_one_mask_for_all_pairs_or_one_each(clf: Classifier) -> None:
    masks = [HeadMask.parse(spec, layers=3, heads=4) for spec in ("none", "1.*", "random:0.5@1", "0-2.*")]

    each = clf.score(PAIRS, head_mask=[None, *masks[1:]])

    for i, mask in enumerate(masks):
        np.testing.assert_allclose(each.logits[i], clf.score(PAIRS[i : i + 1], mask).logits[0], atol=1e-5)


def test_the_order_of_the_pairs_is_kept_whatever_the_batches(clf: Classifier) -> None:
    expected = clf.score(PAIRS * 5).logits
    np.testing.assert_allclose(clf.score(PAIRS * 5, batch_tokens=70).logits, expected, atol=1e-5)


@pytest.mark.parametrize("masks", ["none", "one", "each"])
def test_more_tokens_than_the_device_computes_well_are_cut_into_several_passes(
    clf: Classifier, masks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = clf.tokenizer.encode([("red shoe", "shoe " * (number % 9)) for number in range(40)])
    each = np.random.default_rng(0).integers(0, 2, (40, clf.num_layers, clf.num_heads)).astype(np.float32)
    weights = {"none": None, "one": RowMasks(each[0]), "each": RowMasks(each)}[masks]
    whole = clf.forward(pairs, weights)

    passes = []
    forward = clf.network.forward
    monkeypatch.setattr(
        clf.network, "forward", lambda *given, **how: passes.append(given[0]) or forward(*given, **how)
    )
    monkeypatch.setattr(clf.network, "max_pack_tokens", 30)
    cut = clf.forward(pairs, weights)

    assert len(passes) > 5
    assert sum(batch.rows for batch in passes) == 40
    np.testing.assert_allclose(cut, whole, atol=1e-4)


def test_wrong_masks_are_refused(clf: Classifier) -> None:
    with pytest.raises(InvalidMask, match="this model has 3 of 4"):
        clf.score(PAIRS, HeadMask.none(12, 12))
    with pytest.raises(ModelError, match="3 masks for 4 pairs"):
        clf.score(PAIRS, [None] * 3)


@pytest.mark.parametrize(
    ("device", "dtype", "deterministic", "message"),
    [
        ("tpu", "auto", False, "device 'tpu'"),
        ("mps", "auto", False, "not supported"),
        ("cpu", "int3", False, "dtype 'int3'"),
        ("cpu", "bfloat16", True, "deterministic"),
    ],
)
def test_wrong_options_are_refused(
    tiny_checkpoint: Path, device: str, dtype: str, deterministic: bool, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        Classifier.load(tiny_checkpoint, device, dtype, deterministic=deterministic)


def test_no_pairs_give_no_scores(clf: Classifier) -> None:
    assert clf.score([]).logits.shape == (0, 5)


def test_attention_of_a_pair(clf: Classifier) -> None:
    pair = clf.tokenizer.encode([("angle", "steel angle")])[0]

    maps = clf.attention(pair, [(0, 0), (2, 3)], HeadMask.parse("2.3", layers=3, heads=4))

    assert maps.shape == (2, len(pair), len(pair))
    np.testing.assert_allclose(maps[0].sum(1), 1, rtol=1e-4)
    assert not maps[1].any()


def test_batches_hold_every_row_once_and_keep_to_the_budget() -> None:
    lengths = [5, 30, 7, 9, 200, 3, 30]
    batches = list(batches_by_length(lengths, 40))
    assert sorted(i for batch in batches for i in batch) == list(range(7))
    assert all(sum(lengths[i] for i in batch) <= 40 or len(batch) == 1 for batch in batches)


def test_raw_scores_tell_apart_what_rounds_to_1_and_0() -> None:
    logits = np.array([[0, 0, 0, 0, top] for top in (17, 30, 60, 600, -600)], np.float32)
    raw = Scores.from_logits(logits).raw_score
    assert (np.diff(raw[:4]) > 0).all()
    exact = [math.log(6 + 4 * math.exp(top)) - math.log(10) for top in (17.0, 30.0, 60.0, 600.0, -600.0)]
    np.testing.assert_allclose(raw, exact, rtol=1e-12)  # Σ g·e^l over Σ (4 − g)·e^l
    scores = Scores.from_logits(np.array([[16.9], [20.0]], np.float32))
    assert scores.raw_score.tolist() == scores.logits[:, 0].tolist()


def test_the_raw_score_is_the_log_odds_of_the_score(clf: Classifier) -> None:
    scores = clf.score(PAIRS)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores.raw_score)), scores.score, rtol=1e-6)
