"""`headroom quantize`, as typed at a prompt."""

import json
from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair
from tests.checkpoints import WORDS, random_pairs, unusual_modes
from tests.prompt import Run, write_labelled


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    """Pairs without grades."""
    file = tmp_path / "traffic.csv"
    file.write_text("query,title\n" + "".join(f"{query},{title}\n" for query, title in random_pairs(80)))
    return file


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    rows = [(str(rng.choice(WORDS[:6])), " ".join(rng.choice(WORDS, 5)), rng.integers(5)) for _ in range(60)]
    return write_labelled(tmp_path / "judged.csv", rows)


def test_the_loss_that_is_printed_is_the_loss(
    run: Run, tiny_checkpoint: Path, clf: Classifier, traffic: Path, judged: Path, tmp_path: Path
) -> None:
    out = tmp_path / "int8"
    options = ("--model", str(tiny_checkpoint), "--data", str(traffic), "--test", str(judged))
    output = run("quantize", *options, "--out", str(out), "--json")
    report = json.loads(output.out)

    rows = [line.split(",") for line in judged.read_text().splitlines()[1:]]
    pairs = [(query, title) for query, title, _ in rows]
    labelled = [LabelledPair(query, title, int(grade)) for query, title, grade in rows]
    exact = clf.score(pairs)
    int8 = Classifier.load(out, "cpu").score(pairs)
    found = report["against_float32"]
    for side, scores in (("before", exact), ("after", int8)):
        evaluation = GradedEvaluation(labelled, scores.probabilities, scores.raw_score)
        for name in ("qwk", "ndcg10", "accuracy"):
            assert found[side][name] == pytest.approx(evaluation.metrics()[name], abs=1e-6)
    assert found["change"]["qwk"]["value"] == pytest.approx(found["after"]["qwk"] - found["before"]["qwk"])
    largest = np.abs(exact.probabilities - int8.probabilities).max()
    assert found["largest_probability_difference"] == pytest.approx(largest, abs=1e-6)
    assert found["pairs"] == 60
    assert report["bytes"]["after"] < report["bytes"]["before"]
    assert not unusual_modes(out), "another user, such as the service's, cannot read it"
    assert report["speed"]["dtype"] == Classifier.load(tiny_checkpoint, "cpu").network.number_format
    assert 0 < report["speed"]["low"] <= report["speed"]["median"] <= report["speed"]["high"]
    assert ("headroom: int8 runs at" in output.err) == (report["speed"]["high"] < 1)
