"""`headroom evaluate`, as typed at a prompt."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import orjson
import pytest

from models import Classifier, HeadMask
from models.quality.evaluation import Evaluation
from tests.checkpoints import write_checkpoint
from tests.service.cli.prompt import Run


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    words = ["angle", "bracket", "wood", "screws", "lamp", "usb", "red", "towel"]
    file = tmp_path / "pairs.jsonl"
    rows = [
        {
            "query": " ".join(rng.choice(words, 2)),
            "title": " ".join(rng.choice(words, 5)),
            "grade": int(rng.integers(0, 5)),
        }
        for _ in range(80)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_metrics_of_model_and_mask_with_the_paired_change(
    run: Run, tiny_checkpoint: Path, labelled: Path
) -> None:
    output = run(
        "evaluate",
        *("--model", str(tiny_checkpoint), "--data", str(labelled), "--mask", "0-1.*"),
        *("--device", "cpu", "--dtype", "float32", "--resamples", "200", "--json"),
    )
    report = orjson.loads(output.out)

    clf = Classifier.load(tiny_checkpoint, "cpu", "float32")
    rows = [json.loads(line) for line in labelled.read_text().splitlines()]
    pairs = [(row["query"], row["title"]) for row in rows]
    expected = {}
    for spec in ("none", "0-1.*"):
        scores = clf.score(pairs, HeadMask.parse(spec, layers=3, heads=4))
        evaluation = Evaluation(
            [row["query"] for row in rows], [row["grade"] for row in rows], scores.probabilities
        )
        expected[spec] = evaluation.metrics()
        found = report["head_masks"][spec]
        for name, value in expected[spec].items():
            assert found[name]["value"] == pytest.approx(value, abs=1e-6)
            if found[name]["low"] is not None:
                assert found[name]["low"] <= found[name]["high"]
    change = report["head_masks"]["change"]["qwk"]["value"]
    assert change == pytest.approx(expected["0-1.*"]["qwk"] - expected["none"]["qwk"], abs=1e-6)
    assert report["queries"] == len({row["query"] for row in rows})


def test_the_table_for_people_names_every_metric(run: Run, tiny_checkpoint: Path, labelled: Path) -> None:
    output = run("evaluate", "--model", str(tiny_checkpoint), "--data", str(labelled), "--resamples", "100")
    assert output.status == 0
    for name in ("accuracy", "macro_f1", "qwk", "spearman", "ndcg10", "ece", "random order"):
        assert name in output.out


def test_an_interval_beyond_the_metrics_range_is_not_printed(
    run: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.csv"
    few.write_text("query,title,grade\n" + "".join(f"q{i % 3},lamp {i},{i % 5}\n" for i in range(15)))
    arguments = ("evaluate", "--model", str(tiny_checkpoint), "--data", str(few), "--resamples", "200")
    output = run(*arguments)
    assert output.status == 0, output.err
    assert "(no interval)" in output.out
    assert "3 queries are too few" in output.out
    for metric in orjson.loads(run(*arguments, "--json").out)["head_masks"]["none"].values():
        assert metric["low"] is None or -1 <= metric["low"] <= metric["high"] <= 1


def test_what_cannot_be_evaluated_is_one_line(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.csv").write_text("query,title,grade\na,b,9\n")
    wrong = run("evaluate", "--model", str(tiny_checkpoint), "--data", str(tmp_path / "wrong.csv"))
    assert wrong.status == 1
    assert "line 2: grade '9'" in wrong.err

    one = write_checkpoint(tmp_path / "one", num_labels=1)
    ungraded = run("evaluate", "--model", str(one), "--data", str(tmp_path / "wrong.csv"))
    assert ungraded.status == 1
    assert "no grades" in ungraded.err


def test_a_cascade_beside_its_last_stage(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """NDCG is that of the cascade's scores: with one title kept of two, the kept one comes first."""
    rng = np.random.default_rng(1)
    words = ["angle", "bracket", "wood", "screws", "lamp", "usb", "red", "towel"]
    rows = [
        {"query": f"lamp {number // 4}", "title": " ".join(rng.choice(words, 5)), "grade": number % 5}
        for number in range(48)
    ]
    labelled = tmp_path / "pairs.jsonl"
    labelled.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tmp_path / "serve.yaml"
    config.write_text(
        "applications: [{deployments: [{name: Relevance, user_config: {variants: [{name: full}, "
        '{name: small, head_mask: "0-1.*"}, '
        "{name: both, cascade: [{variant: small, keep: 0.25}, {variant: full}]}]}}]}]"
    )
    arguments = [
        *("evaluate", "--data", str(labelled), "--config", str(config), "--model", str(tiny_checkpoint)),
        *("--device", "cpu", "--dtype", "float32", "--resamples", "200"),
    ]
    report = orjson.loads(run(*arguments, "--variant", "both", "--json").out)
    assert list(report["variants"]) == ["full", "both", "change"]
    assert report["stages"] == {"small": 36, "full": 12}

    clf = Classifier.load(tiny_checkpoint, "cpu", "float32")
    pairs = [(row["query"], row["title"]) for row in rows]
    small = clf.score(pairs, HeadMask.parse("0-1.*", layers=3, heads=4))
    full = clf.score(pairs)
    kept = [start + int(np.argmax(small.score[start : start + 4])) for start in range(0, 48, 4)]
    probabilities, order = small.probabilities.copy(), small.score.astype(float)
    probabilities[kept], order[kept] = full.probabilities[kept], 2.0  # before all that were left behind
    expected = Evaluation(
        [row["query"] for row in rows], [int(str(row["grade"])) for row in rows], probabilities, order
    ).metrics()
    found = {name: metric["value"] for name, metric in report["variants"]["both"].items()}
    for name in ("accuracy", "qwk", "ndcg10"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6)
    change = report["variants"]["change"]["ndcg10"]["value"]
    assert change == pytest.approx(found["ndcg10"] - report["variants"]["full"]["ndcg10"]["value"], abs=1e-6)

    masked = run(*arguments, "--variant", "small")
    assert "none" in masked.out.splitlines()[1]
    assert "small" in masked.out.splitlines()[1]
    both = run(*arguments, "--variant", "small", "--mask", "0.0")
    assert both.status == 2
    assert "a variant has its own mask" in both.err
