"""The façade that users call."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest

from headroom import Classifier, HeadMask, InvalidMask, ModelError
from headroom.models.scores import Scores
from headroom.models.selection import RowMasks
from tests.checkpoints import load, write_checkpoint

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
    np.testing.assert_array_equal(scores.grade, (scores.probabilities.cumsum(1) < 0.5).sum(1))
    assert ((scores.score >= 0) & (scores.score <= 1)).all()


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


def test_a_mask_may_be_a_spec_a_json_form_or_a_mask_for_all_pairs_or_one_per_pair(
    clf: Classifier, tmp_path: Path
) -> None:
    mask = HeadMask.parse("1-2.*", layers=3, heads=4)
    form = {"off": [[layer, head] for layer in (1, 2) for head in range(4)]}
    expected = clf.score(PAIRS, head_mask=mask).logits
    whole = clf.score(PAIRS).logits
    assert np.abs(expected - whole).max() > 0.01

    for given in ("1-2.*", "keep:0.*", form, mask):
        np.testing.assert_array_equal(clf.score(PAIRS, head_mask=given).logits, expected)
        np.testing.assert_array_equal(clf.score(PAIRS, given).logits, expected)
        mixed = clf.score(PAIRS, head_mask=[given, None, "none", given]).logits
        np.testing.assert_allclose(mixed[[0, 3]], expected[[0, 3]], atol=1e-5)
        np.testing.assert_allclose(mixed[1:3], whole[1:3], atol=1e-5)
    np.testing.assert_array_equal(clf.score("usb", ["usb cable"], head_mask="none").logits.shape, (1, 5))

    directory = write_checkpoint(tmp_path)
    (directory / "masks").mkdir()
    (directory / "masks" / "late.json").write_text('{"mask": "1-2.*"}')
    stored = load(directory)
    np.testing.assert_array_equal(stored.score(PAIRS, head_mask="@late").logits, expected)


def test_wrong_masks_are_refused(clf: Classifier) -> None:
    with pytest.raises(InvalidMask, match=r"head_mask: the mask is for 12 layers .* this model has 3 of 4"):
        clf.score(PAIRS, HeadMask.none(12, 12))
    with pytest.raises(InvalidMask, match=r"head_mask: layer 6 does not exist; this model has layers 0 to 2"):
        clf.score(PAIRS, head_mask="6-11.*")
    with pytest.raises(InvalidMask, match=r"head_mask\[2\]: head 4 does not exist"):
        clf.score(PAIRS, head_mask=[None, "1.*", "0.4", None])
    with pytest.raises(InvalidMask, match=r"no mask is stored as 'x'"):
        clf.score(PAIRS, head_mask="@x")
    with pytest.raises(InvalidMask, match=r"a mask is a spec .* not 5"):
        clf.score(PAIRS, head_mask=5)  # type: ignore[call-overload]
    with pytest.raises(ModelError, match="3 masks for 4 pairs; give one, or one per pair"):
        clf.score(PAIRS, [None] * 3)
    with pytest.raises(ModelError, match="1 mask for 4 pairs"):
        clf.score(PAIRS, head_mask=["1.*"])


def test_rows_are_read_by_their_keys_and_tables_by_their_columns(clf: Classifier) -> None:
    rows = [{"title": title, "query": query, "id": "7"} for query, title in PAIRS]
    frame = pd.DataFrame(rows)
    expected = clf.score(PAIRS).raw_score
    for given in (rows, frame, frame[["query", "title"]].to_numpy(), pyarrow.Table.from_pylist(rows)):
        np.testing.assert_array_equal(clf.score(given).raw_score, expected)
    of_column = clf.score("usb cable", frame["title"])
    assert of_column.pairs == tuple(("usb cable", title) for _, title in PAIRS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("usb",), "titles: 'usb' is a query without titles; give a list"),
        (("usb", ["usb cable", None]), r"titles\[1\]: None is not text"),
        ((None,), "pairs: None; give a query and its titles, or pairs"),
        (([("usb", "cable"), ("usb", "cable", 3)],), r"pairs\[1\]: \('usb', 'cable', 3\) is not a pair"),
        (([("usb", float("nan"))],), r"pairs\[0\]: \('usb', nan\) is not a pair of texts"),
        ((pd.DataFrame({"q": ["usb"], "title": ["cable"]}),), "pairs: a DataFrame needs one column 'query'"),
    ],
)
def test_what_is_no_pair_of_texts_is_refused_in_a_sentence(
    clf: Classifier, given: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        clf.score(*given)


@pytest.mark.parametrize(
    ("device", "dtype", "deterministic", "message"),
    [
        ("tpu", "auto", False, "device 'tpu'"),
        ("mps", "auto", False, "not supported"),
        ("cpu", "int3", False, "dtype 'int3'"),
        ("cpu", "float16", False, "float16 needs a GPU"),
        ("cpu", "bfloat16", True, "deterministic"),
    ],
)
def test_wrong_options_are_refused(
    tiny_checkpoint: Path, device: str, dtype: str, deterministic: bool, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        Classifier.load(tiny_checkpoint, device, dtype, deterministic=deterministic)


def test_attention_of_a_pair(clf: Classifier) -> None:
    (pair,) = clf.tokenizer.encode([("angle", "steel angle")])

    found = clf.attention("angle", "steel angle", heads="0.0,2.3", head_mask="2.3")

    assert found.tokens == ("[CLS]", "angle", "[SEP]", "steel", "angle", "[SEP]")
    assert found.segments == (0, 0, 0, 1, 1, 1)
    assert found.heads == ((0, 0), (2, 3))
    assert found.probabilities.shape == (2, 6, 6)
    np.testing.assert_allclose(found.probabilities[0].sum(1), 1, rtol=1e-4)
    assert not found.probabilities[1].any()
    unmasked = clf.attention("angle", "steel angle", heads=[(2, 3)]).probabilities
    np.testing.assert_array_equal(unmasked, clf.attention_maps(pair, [(2, 3)]))
    assert len(clf.attention("angle", "steel angle").heads) == 12
    assert repr(found) == (
        "Attention of 2 heads (0.0, 2.3) over 6 tokens: [CLS] angle [SEP] steel angle [SEP]"
    )


def test_attention_as_a_table_and_as_a_picture(clf: Classifier) -> None:
    found = clf.attention("angle", "steel angle", heads="0.0-1,2.3")
    table = found.to_frame()
    assert list(table.columns) == ["layer", "head", "from", "to", "from_token", "to_token", "probability"]
    assert len(table) == 3 * 36
    row = table[(table["layer"] == 2) & (table["from"] == 1) & (table["to"] == 3)].iloc[0]
    assert (row["head"], row["from_token"], row["to_token"]) == (3, "angle", "steel")
    assert row["probability"] == found.probabilities[2, 1, 3]
    picture = found.plot()
    titles = [axes.get_title() for axes in picture.axes]
    assert titles[:3] == ["head 0.0", "head 0.1", "head 2.3"]
    np.testing.assert_array_equal(picture.axes[2].images[0].get_array(), found.probabilities[2])
    assert picture._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("12.0", "heads: layer 12 does not exist; this model has layers 0 to 2"),
        ("skip:1", "heads: names layers with skip:"),
        ("@pruned20", "heads: names a stored mask; list heads"),
    ],
)
def test_heads_that_a_model_does_not_have_are_refused(clf: Classifier, heads: Any, message: str) -> None:
    with pytest.raises(InvalidMask, match=message):
        clf.attention("angle", "steel angle", heads=heads)


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
