"""`headroom prune`, as typed at a prompt: by a mask or by a study's mask file."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier, HeadMask
from tests.prompt import Run

PAIRS = [("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"), ("usb lamp", "a lamp with a usb charger")]


def test_units_and_layers_go_too_and_the_output_says_who_can_load_the_rest(
    run: Run, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "mask.json").write_text(json.dumps({"mask": {"skip": [1], "units": "0.0-15"}}))
    command = ("prune", "--model", str(tiny_checkpoint), "--mask")

    output = run(*command, str(tmp_path / "mask.json"), "--out", str(tmp_path / "pruned"))

    assert "8 of 12 heads, 112 of 192 units, 2 of 3 layers" in output.out
    assert "transformers does not: its layers have different numbers of feed-forward units" in output.out
    mask = HeadMask.parse({"skip": [1], "units": "0.0-15"}, layers=3, heads=4, units=64)
    whole, pruned = (Classifier.load(d, "cpu", "float32") for d in (tiny_checkpoint, tmp_path / "pruned"))
    np.testing.assert_allclose(pruned.score(PAIRS).logits, whole.score(PAIRS, mask).logits, atol=2e-5)

    content = json.loads(run(*command, "skip:2", "--out", str(tmp_path / "shorter"), "--json").out)
    assert content["layers"] == {"before": 3, "after": 2}
    assert content["transformers"] == {"loads": True, "reason": None}


def test_nothing_is_left_of_a_checkpoint_that_could_not_be_written_whole(
    run: Run, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headroom.models.compress.prune.copy_tokenizer", fail)
    arguments = ("prune", "--model", str(tiny_checkpoint), "--mask", "0.1", "--out", str(tmp_path / "pruned"))

    output = run(*arguments, status=1)

    assert "No space left on device" in output.err
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    run(*arguments)
