"""`headroom evaluate`, as typed at a prompt."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.torch import load_file, save_file
from sklearn.metrics import confusion_matrix

from headroom import Classifier, HeadMask
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.rankings import BY_QUERY
from tests.checkpoints import write_checkpoint
from tests.prompt import Run, with_config, write_labelled

WORDS = ["angle", "bracket", "wood", "screws", "lamp", "usb", "red", "towel"]
DEVICE = ("--device", "cpu", "--dtype", "float32")
ROWS = [
    (" ".join(rng.choice(WORDS, 2)), " ".join(rng.choice(WORDS, 5)), int(rng.integers(0, 5)))
    for rng in [np.random.default_rng(0)]
    for _ in range(80)
]


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    return write_labelled(tmp_path / "pairs.csv", ROWS)


def test_models_and_masks_are_compared_pairwise_in_a_report(
    run: Run, tiny_checkpoint: Path, clf: Classifier, labelled: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", seed=3)
    output = run(
        *("evaluate", "--data", str(labelled), "--mask", "0.*", "--mask", "random:0.5@1", *DEVICE),
        *("--model", str(tiny_checkpoint), "--model", str(other)),
        *("--out", str(tmp_path / "out")),
    )
    report = orjson.loads((tmp_path / "out" / "report.json").read_bytes())

    names = [side["name"] for side in report["sides"]]
    tiny = tiny_checkpoint.name
    assert names == [tiny, f"{tiny} 0.*", f"{tiny} random:0.5@1", "other", "other 0.*", "other random:0.5@1"]
    assert len(report["differences"]) == 15
    values = {side["name"]: side["metrics"]["qwk"]["value"] for side in report["sides"]}
    for pair in report["differences"]:
        expected = values[pair["second"]] - values[pair["first"]]
        assert pair["change"]["qwk"]["value"] == pytest.approx(expected, abs=1e-9)

    queries, titles, truth = zip(*ROWS, strict=True)
    predicted = clf.score(list(zip(queries, titles, strict=True))).grade
    first = report["sides"][0]
    assert np.array_equal(first["confusion"], confusion_matrix(truth, predicted, labels=range(5)))
    assert sum(first["calibration"]["shares"]) == pytest.approx(1)
    worst = first["worst_queries"]
    assert [query["ndcg10"] for query in worst if query["ndcg10"] is not None] == sorted(
        query["ndcg10"] for query in worst if query["ndcg10"] is not None
    )
    assert {*BY_QUERY, "spearman"} == set(report["baselines"]["BM25"]["model_minus"])

    html = (tmp_path / "out" / "report.html").read_text()
    assert max(len(line) for line in output.out.splitlines() if str(tmp_path) not in line) <= 100
    assert "http" not in html.replace("http-equiv", "")
    for text in (worst[0]["query"], "word overlap", "query_spearman", "data:image/svg+xml"):
        assert text in html
    run("evaluate", "--data", str(labelled), "--model", "a", "--model", "a", status=2)


def test_a_cascade_beside_its_last_stage(
    run: Run, tiny_checkpoint: Path, clf: Classifier, tmp_path: Path
) -> None:
    """NDCG is that of the cascade's scores: with one title kept of two, the kept one comes first."""
    rng = np.random.default_rng(1)
    rows = [(f"lamp {n // 4}", " ".join(rng.choice(WORDS, 5)), n % 5) for n in range(48)]
    labelled = write_labelled(tmp_path / "pairs.csv", rows)
    live = """{variants: [{name: full}, {name: small, head_mask: "0-1.*"},
        {name: both, cascade: [{variant: small, keep: 0.25}, {variant: full}]}]}"""
    arguments = [*("evaluate", "--data", str(labelled), "--model", str(tiny_checkpoint), *DEVICE)]
    arguments += [*with_config(tmp_path, live)]
    report = orjson.loads(run(*arguments, "--variant", "both", "--json").out)
    metrics = {side["name"]: side["metrics"] for side in report["sides"]}
    assert list(metrics) == ["full", "both"]
    assert report["stages"] == {"small": 36, "full": 12}

    pairs = [row[:2] for row in rows]
    small = clf.score(pairs, HeadMask.parse("0-1.*", layers=3, heads=4))
    full = clf.score(pairs)
    kept = [start + int(np.argmax(small.score[start : start + 4])) for start in range(0, 48, 4)]
    probabilities, order = small.probabilities.copy(), small.score.astype(float)
    probabilities[kept], order[kept] = full.probabilities[kept], 2.0  # before all that were left behind
    expected = GradedEvaluation([LabelledPair(*row) for row in rows], probabilities, order).metrics()
    found = {name: metric["value"] for name, metric in metrics["both"].items()}
    for name in ("accuracy", "qwk", "ndcg10"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6)
    change = report["differences"][0]["change"]["ndcg10"]["value"]
    assert change == pytest.approx(found["ndcg10"] - metrics["full"]["ndcg10"]["value"], abs=1e-6)

    shown = run(*arguments, "--variant", "both").out.splitlines()
    assert shown[-2:] == ["36 pairs ended at stage small", "12 pairs ended at stage full"]
    masked = run(*arguments, "--variant", "small")
    assert ["full", "small", "change"] in [line.split() for line in masked.out.splitlines()]
    both = run(*arguments, "--variant", "small", "--mask", "0.0", status=2)
    assert "a variant has its own mask" in both.err


def test_a_model_whose_scores_are_not_numbers_is_refused(run: Run, tmp_path: Path) -> None:
    broken = write_checkpoint(tmp_path / "broken", num_labels=1)
    tensors = load_file(broken / "model.safetensors")
    tensors["classifier.weight"] = tensors["classifier.weight"].sign() * 3e38  # their sums overflow
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    file = write_labelled(tmp_path / "pairs.csv", [("lamp", "red lamp", 1), ("lamp", "towel", 0)])
    refused = run("evaluate", "--model", str(broken), "--data", str(file), *DEVICE, status=1)
    assert "full: the scores of 2 of 2 pairs are not finite numbers" in refused.err
