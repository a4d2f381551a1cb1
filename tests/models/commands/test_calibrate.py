"""`headroom calibrate` and the cuts of `headroom evaluate`, as typed at a prompt."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import precision_score, recall_score
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from headroom import Classifier
from headroom.models.quality.graded import evaluation_of
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.scoring import scored
from tests.calibrating import calibration_error, edit_config, judged, pairs_of, spoil, write_fair
from tests.checkpoints import load
from tests.prompt import Run, write_labelled

DEVICE = ("--device", "cpu", "--dtype", "float32")
IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fair(tmp_path_factory.mktemp("graded") / "fair", 5)


@pytest.fixture(scope="module")
def one_label(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fair(tmp_path_factory.mktemp("one") / "fair", 1)


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def calibrated(run: Run, model: Path, rows: list[tuple[str, str, int]], directory: Path, *more: str) -> str:
    """Calibrate a model on judged pairs; it is written to `out` in the directory. Return what is printed."""
    data = write_labelled(directory / "judged.csv", rows)
    files = ("--model", str(model), "--data", str(data), "--out", str(directory / "out"))
    return run("calibrate", *files, *DEVICE, *more).out


def unseen(fair: Classifier) -> tuple[list[tuple[str, str]], list[int]]:
    """Pairs of queries that no calibration sees, and their grades."""
    rows = judged(fair, 250, 2)
    return [(query, title) for query, title, _ in rows], [grade for *_, grade in rows]


def test_grades_become_probabilities_on_queries_that_were_not_fitted(
    run: Run, graded: Path, tmp_path: Path
) -> None:
    fair = load(graded)
    spoiled = copied(graded, tmp_path / "spoiled")
    spoil(spoiled, scale=3.0, raised=4)
    assert "classwise_ece" in calibrated(run, spoiled, judged(fair, 250, 1), tmp_path)
    out = tmp_path / "out"
    texts, truth = unseen(fair)
    before = load(spoiled).score(texts)
    after = load(out).score(texts)
    errors = [calibration_error(scores.probabilities, truth) for scores in (before, after)]
    assert errors[1] < errors[0] / 2
    np.testing.assert_allclose(after.probabilities, fair.score(texts).probabilities, atol=0.08)
    pairs = [LabelledPair(*text, grade) for text, grade in zip(texts, truth, strict=True)]
    ndcg = [evaluation_of(pairs, scores).metrics()["ndcg10"] for scores in (before, after)]
    assert ndcg[1] > ndcg[0] - 0.02

    # Another program that loads the checkpoint has the same probabilities.
    theirs = AutoModelForSequenceClassification.from_pretrained(out).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(out / "tokenizer.json"), pad_token="[PAD]")
    encoded = tokenizer(
        *zip(*texts[:8], strict=True), padding=True, return_tensors="pt", return_token_type_ids=True
    )
    logits = theirs(**encoded)
    found = softmax(logits.logits.detach().numpy(), axis=1)
    np.testing.assert_allclose(found, after.probabilities[:8], atol=1e-4)


@pytest.mark.parametrize("scale", [8.0, 0.2])
def test_a_score_becomes_the_probability_and_keeps_the_order_of_all_titles(
    run: Run, one_label: Path, tmp_path: Path, scale: float
) -> None:
    fair = load(one_label)
    spoiled = copied(one_label, tmp_path / "spoiled")
    spoil(spoiled, scale=scale, raised=0)
    edit_config(spoiled, sentence_transformers=IDENTITY)  # as many rerankers of the hub: the score is a logit
    rows = judged(fair, 250, 1)
    report = json.loads(calibrated(run, spoiled, rows, tmp_path, "--json"))
    texts, truth = unseen(fair)
    before = load(spoiled).score(texts)
    after = load(tmp_path / "out").score(texts)
    assert np.array_equal(before.logits, after.logits)
    logits = before.logits[:, 0]
    assert len(np.unique(after.raw_score)) == len(np.unique(logits)), "two titles became equal"
    order = np.argsort(logits, kind="stable")
    assert np.array_equal(order, np.argsort(after.raw_score, kind="stable"))
    assert (np.diff(after.score[order]) >= 0).all()
    errors = [calibration_error(one, truth) for one in (expit(logits), after.score)]
    assert errors[1] < errors[0] / 2

    x = load(spoiled).score([(query, title) for query, title, _ in rows]).logits
    platt = LogisticRegression(C=1e6, tol=1e-8).fit(x, [grade for *_, grade in rows])
    expected = platt.predict_proba(before.logits)[:, 1]
    np.testing.assert_allclose(after.score, expected, atol=0.005)  # Platt's targets are not 0 and 1
    change = report["metrics"]["classwise_ece"]
    assert change["after"]["value"] < change["before"]["value"] / 2
    assert change["change"]["high"] < 0
    assert [entry["grade"] for entry in report["reliability"]] == [1]
    assert sum(row["pairs"] for row in report["reliability"][0]["after"]) == len(rows)


def test_labels_in_another_order_and_stored_masks_stay(run: Run, graded: Path, tmp_path: Path) -> None:
    source = copied(graded, tmp_path / "source")
    names = list(load(graded).config.labels)
    order = [names[i] for i in (3, 0, 4, 1, 2)]
    edit_config(source, headroom={"label_order": order, "temperature": 0.5})
    (source / "masks").mkdir()
    (source / "masks" / "some.json").write_text('{"mask": "1.0"}')
    fair = Classifier.load(graded, "cpu", "float32", label_order=order)
    calibrated(run, source, judged(fair, 250, 1), tmp_path)
    after = load(tmp_path / "out")
    assert after.config.labels == tuple(order)
    assert after.stored_masks["some"].spec == "1.0"
    texts = pairs_of(20, 9)
    np.testing.assert_allclose(after.score(texts).probabilities, fair.score(texts).probabilities, atol=0.08)


def test_wrong_pairs_are_refused_in_one_sentence(
    run: Run, graded: Path, one_label: Path, tmp_path: Path
) -> None:
    many = [(f"lamp {n}", "red lamp", n % 2) for n in range(40)]
    texts = pairs_of(20, 4)
    logits = load(one_label).score(texts).logits[:, 0]
    middle = np.median(logits)
    cases: dict[str, tuple[Path, list[tuple[str, str, int]], str]] = {
        "few": (one_label, many[:8], "too few queries, 8; at least 10 are needed"),
        "single": (one_label, [(q, t, 1) for q, t, _ in many], "every pair has grade 1"),
        "range": (one_label, [*many, ("a", "b", 3)], "line 42: grade '3' is not a whole number from 0 to 1"),
        "lone": (
            one_label,
            [(q, t, 0) for q, t, _ in many] + [("usb", "cable", 1)],
            "nearly every query has pairs of grade 0 alone; judge more queries",
        ),
        "flat": (
            one_label,
            [(q, t, int(logit < middle)) for (q, t), logit in zip(texts, logits, strict=True)],
            "the relevant pairs do not have higher scores than the others",
        ),
    }
    for name, (model, rows, reason) in cases.items():
        data = write_labelled(tmp_path / f"{name}.csv", rows)
        out = tmp_path / "out"
        given = ("--model", str(model), "--data", str(data), "--out", str(out), *DEVICE)
        error = run("calibrate", *given, status=1).err
        assert reason in error, name
        assert len(error.splitlines()) == 1, name
        assert not out.exists(), name
    data = write_labelled(tmp_path / "good.csv", many)
    options = ("--model", str(one_label), "--data", str(data), *DEVICE)
    assert "not empty" in run("calibrate", *options, "--out", str(tmp_path), status=1).err
    of_grades = ("--model", str(graded), "--data", str(data), "--out", str(out), "--relevant", "2")
    assert "the model has grades" in run("calibrate", *of_grades, status=2).err


def test_a_cut_has_the_precision_and_recall_that_scikit_learn_counts(
    run: Run, one_label: Path, graded: Path, tmp_path: Path
) -> None:
    for model, lowest in ((one_label, 1), (graded, 3)):
        rows = judged(load(model), 100, 1)
        data = write_labelled(tmp_path / f"{lowest}.csv", rows)
        options = ("--model", str(model), "--data", str(data), "--relevant", str(lowest), *DEVICE)
        scores = load(model).score([(query, title) for query, title, _ in rows]).score
        truth = np.array([grade >= lowest for *_, grade in rows])
        given = json.loads(run("evaluate", *options, "--threshold", "0.4", "--json").out)
        kept = scores >= np.float32(0.4)
        assert given["precision"]["value"] == pytest.approx(precision_score(truth, kept))
        assert given["recall"]["value"] == pytest.approx(recall_score(truth, kept))
        assert given["precision"]["low"] < given["precision"]["value"] < given["precision"]["high"]

        wanted = float(truth.mean() + 0.05)
        found = json.loads(run("evaluate", *options, "--precision", str(wanted), "--json").out)
        kept = scores >= np.float32(found["threshold"])
        assert precision_score(truth, kept) >= wanted
        lower = scores >= scores[scores < np.float32(found["threshold"])].max()
        assert precision_score(truth, lower) < wanted, "a lower threshold has it too"
        shown = run("evaluate", *options, "--precision", str(wanted)).out
        assert np.array_equal(scores >= printed_score(shown), kept)


def printed_score(text: str) -> np.float32:
    """Return the score that a cut prints, as a request's `min_score` is read."""
    number = re.search(r"min_score ([0-9.]+)", text)
    assert number is not None, text
    return np.float32(number[1])


def test_the_printed_min_score_keeps_what_was_measured_where_scores_are_near_1(
    run: Run, one_label: Path, tmp_path: Path
) -> None:
    rows = judged(load(one_label), 100, 1)
    data = write_labelled(tmp_path / "judged.csv", rows)
    near_1 = copied(one_label, tmp_path / "near_1")
    tensors = load_file(near_1 / "model.safetensors")
    tensors["classifier.bias"] += 12
    save_file(tensors, near_1 / "model.safetensors", {"format": "pt"})
    scores = scored(load(near_1), [(query, title) for query, title, _ in rows]).score
    truth = np.array([grade for *_, grade in rows])
    wanted = float(truth.mean() + 0.15)
    options = ("--model", str(near_1), "--data", str(data), *DEVICE)
    shown = run("evaluate", *options, "--precision", str(wanted)).out
    kept = scores >= printed_score(shown)
    assert kept.sum() >= 20
    assert truth[kept].mean() >= wanted
    assert (scores >= np.float32(f"{printed_score(shown):.4f}")).sum() < 20, "four digits would do"
    best = int(scores.argmax())
    rows[best] = (*rows[best][:2], 0)  # no cut has precision 1
    truth[best] = 0
    write_labelled(tmp_path / "judged.csv", rows)
    hint = run("evaluate", *options, "--precision", "1", status=1).err
    found = re.search(r"the highest is ([0-9.]+), at ([0-9.]+)", hint)
    assert found is not None, hint
    highest, at = found.groups()
    assert truth[scores >= np.float32(at)].mean() == pytest.approx(float(highest), abs=5e-4)
