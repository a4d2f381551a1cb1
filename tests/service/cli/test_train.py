"""`headroom train`, as typed at a prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models import Classifier
from tests.service.cli.prompt import Run


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.csv"
    rows = [f"lamp {i},{title},{grade}" for i in range(40) for title, grade in (("a lamp", 1), ("wood", 0))]
    file.write_text("query,title,grade\n" + "\n".join(rows) + "\n")
    return file


def test_train_then_score_with_what_came_out(
    run: Run, tiny_checkpoint: Path, labelled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    trained = run(
        "train",
        *("--data", str(labelled), "--out", str(out), "--model", str(tiny_checkpoint)),
        *("--labels", "no, yes", "--epochs", "8", "--rate", "0.003", "--device", "cpu", "--json"),
    )
    assert trained.status == 0, trained.err
    assert json.loads(trained.out) == json.loads((out / "metrics.json").read_text())
    assert Classifier.load(out).grades == ("no", "yes")

    scored = run("score", "lamp 3", "a lamp", "wood", "--model", str(out))
    assert [line.split("\t")[1] for line in scored.out.splitlines()] == ["yes", "no"]


def test_figures_of_few_validation_queries_have_no_interval(
    run: Run, tiny_checkpoint: Path, labelled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    options = ("--labels", "no, yes", "--epochs", "1", "--device", "cpu")
    trained = run(
        "train", "--data", str(labelled), "--out", str(out), "--model", str(tiny_checkpoint), *options
    )
    assert trained.status == 0, trained.err
    found = json.loads((out / "metrics.json").read_text())
    assert found["validation_queries"] == 4
    assert {metric["low"] for metric in found["validation_intervals"].values()} == {None}
    assert "no 95 % interval for accuracy, macro_f1, qwk, ndcg10" in trained.out
    assert f"{found['steps']} steps in 1 epoch, learning rate" in trained.out


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--from-scratch", "--model", "x"], 2, "not possible together"),
        (["--model", "/no/such"], 1, "/no/such does not exist"),
        (["--labels", "one"], 1, "at least two"),
        (["--epochs", "0"], 2, "epochs"),
    ],
)
def test_wrong_use_is_one_line_and_a_status(
    run: Run, labelled: Path, tmp_path: Path, arguments: list[str], status: int, reason: str
) -> None:
    output = run("train", "--data", str(labelled), "--out", str(tmp_path / "mine"), *arguments)
    assert output.status == status
    assert reason in output.err
    assert not (tmp_path / "mine").exists()
