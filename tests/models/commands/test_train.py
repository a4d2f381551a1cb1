"""`headroom train`, as typed at a prompt."""

import json
from pathlib import Path

import pytest

from headroom import Classifier
from tests.checkpoints import unusual_modes
from tests.prompt import Run, write_labelled


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    rows = [(f"lamp {i}", title, grade) for i in range(40) for title, grade in (("a lamp", 1), ("wood", 0))]
    return write_labelled(tmp_path / "pairs.csv", rows)


def test_train_then_score_with_what_came_out(
    run: Run, tiny_checkpoint: Path, labelled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    trained = run(
        "train",
        *("--data", str(labelled), "--out", str(out), "--model", str(tiny_checkpoint)),
        *("--labels", "no, yes", "--epochs", "8", "--rate", "0.003", "--device", "cpu", "--json"),
    )
    metrics = json.loads((out / "metrics.json").read_text())
    assert json.loads(trained.out) == metrics
    assert metrics["loss"]["training"]["after"] < metrics["loss"]["training"]["before"]
    network = Classifier.load(out)
    assert network.grades == ("no", "yes")
    assert not unusual_modes(out), "another user, such as the service's, cannot read it"

    # A toy's labels differ between number formats: the command says what the network says.
    scored = run("score", "lamp 3", "a lamp", "wood", "--model", str(out), "--json")
    rows = [json.loads(line) for line in scored.out.splitlines()]
    labels = {pair.title: pair.label for pair in network.score("lamp 3", ["a lamp", "wood"])}
    assert {row["title"]: row["label"] for row in rows} == labels
