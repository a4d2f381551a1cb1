"""`headroom prune`, as typed at a prompt: by a mask, by a study's mask file, by tuned scales."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from models import Classifier, HeadMask
from tests.service.cli.prompt import Run

PAIRS = [("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"), ("usb lamp", "a lamp with a usb charger")]
SCALES = [[1.0, 0.0, 2.5, 1.0], [0.5, 1.0, 1.0, 0.0], [1.0, 1.2, 1.0, 1.0]]


def test_a_studys_mask_file_is_as_good_as_its_spec(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "mask.json").write_text(json.dumps({"mask": {"off": [[0, 1], [2, 3]]}, "spec": "0.1,2.3"}))

    output = run(
        "prune",
        *("--model", str(tiny_checkpoint), "--mask", str(tmp_path / "mask.json")),
        *("--out", str(tmp_path / "pruned"), "--json"),
    )

    assert output.status == 0
    assert json.loads(output.out)["head_mask"]["spec"] == "0.1,2.3"
    mask = HeadMask.parse("0.1,2.3", layers=3, heads=4)
    whole, pruned = (Classifier.load(d, "cpu", "float32") for d in (tiny_checkpoint, tmp_path / "pruned"))
    np.testing.assert_allclose(pruned.score(PAIRS).logits, whole.score(PAIRS, mask).logits, atol=1e-5)


def test_tuned_scales_above_1_are_folded_in(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "scales.json").write_text(json.dumps({"scales": SCALES}))

    output = run(
        "prune",
        *("--model", str(tiny_checkpoint), "--scales", str(tmp_path / "scales.json")),
        *("--out", str(tmp_path / "pruned"), "--json"),
    )

    assert output.status == 0
    assert json.loads(output.out)["heads"] == {"before": 12, "after": 10}
    whole, pruned = (Classifier.load(d, "cpu", "float32") for d in (tiny_checkpoint, tmp_path / "pruned"))
    encoded = whole.tokenizer.encode(PAIRS)
    expected = whole.forward(encoded, np.array(SCALES, np.float32))
    np.testing.assert_allclose(pruned.forward(encoded), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"scales": [[1, -1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]}', "finite numbers from 0 to 100"),
        ('{"scales": [[1, 2], [3, 4]]}', "2 layers of 2 heads; this checkpoint has 3 of 4"),
        ('{"scales": [1, 2]}', "the valid shape is (layers, heads)"),
        ('{"mask": {}}', 'there is no "scales"'),
        ("scales", "does not hold the scales of a study"),
    ],
)
def test_wrong_scales_are_refused_in_a_sentence(
    run: Run, tiny_checkpoint: Path, tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "scales.json").write_text(content)

    output = run(
        "prune",
        *("--model", str(tiny_checkpoint), "--scales", str(tmp_path / "scales.json")),
        *("--out", str(tmp_path / "pruned")),
    )

    assert output.status == 1
    assert reason in output.err
    assert not (tmp_path / "pruned").exists()


def test_mask_and_scales_together_are_wrong_usage(run: Run, tiny_checkpoint: Path, tmp_path: Path) -> None:
    for options in ([], ["--mask", "0.1", "--scales", "scales.json"]):
        output = run("prune", "--model", str(tiny_checkpoint), "--out", str(tmp_path / "pruned"), *options)
        assert output.status == 2
        assert "give either --mask or --scales" in output.err
