"""The study of a checkpoint's heads: shown for the weights that it was made of, and for no others."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from models import Classifier
from models.checkpoint.config import read_config
from models.checkpoint.extras import FILE, read_head_study
from models.checkpoint.hub import DEFAULT
from models.study import head_study

METRICS = ("qwk", "ndcg10", "accuracy", "macro_f1")


def report(layers: int, heads: int) -> dict[str, Any]:
    """A report of `headroom study all`, as far as the file needs it."""
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    rows = [
        {
            "layer": layer,
            "head": head,
            "delta": dict.fromkeys(METRICS, -0.0123456),
            "interval": {metric: [-0.02, 0.01] for metric in METRICS},
            "p_adjusted": 0.5,
        }
        for layer, head in places
    ]
    role = [
        {"layer": layer, "head": head, "excess": 0.4, "holds": (layer, head) == (1, 2)}
        for layer, head in places
    ]
    return {
        "heads": rows,
        "roles": {"term_match": role},
        "data": {"source": "mine.csv", "pairs": 10, "queries": 3},
        "baseline": dict.fromkeys(METRICS, 0.6),
        "number_format": "float32",
    }


@pytest.fixture
def studied(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with the study that the command made for it."""
    directory = tmp_path / "studied"
    shutil.copytree(tiny_checkpoint, directory)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report(3, 4)), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["head_study", str(file), "--model", str(directory)])
    head_study.main()
    return directory


def test_a_model_brings_the_study_of_its_heads(studied: Path) -> None:
    study = Classifier.load(studied, "cpu", "float32").head_study
    assert study is not None
    assert len(study["heads"]) == 12
    assert study["heads"][6] == {
        "layer": 1,
        "head": 2,
        "delta": {"qwk": -0.0123, "ndcg10": -0.0123, "accuracy": -0.0123},
        "interval": {metric: [-0.02, 0.01] for metric in ("qwk", "ndcg10", "accuracy")},
        "p_adjusted": 0.5,
        "roles": {"term_match": 0.4},
    }
    assert study["heads"][0]["roles"] == {}


def test_a_study_of_other_weights_or_another_shape_is_left_out(
    studied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = read_config(studied)
    kept = (studied / FILE).read_text(encoding="utf-8")
    for old, new in (('"shape": [3, 4]', '"shape": [4, 3]'), ('"weights": "', '"weights": "0'), ("[", "{")):
        (studied / FILE).write_text(kept.replace(old, new), encoding="utf-8")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert read_head_study(studied, config) is None
        assert f"{FILE} is not used" in caplog.text


def test_a_report_that_measured_no_head_or_another_model_is_refused(studied: Path) -> None:
    with pytest.raises(ValueError, match="none of the reports is of `single`"):
        head_study.summary([{"roles": {}}], studied)
    with pytest.raises(ValueError, match="3 × 4"):
        head_study.summary([report(4, 3)], studied)


def test_the_shipped_models_study_is_that_of_its_weights() -> None:
    study = read_head_study(DEFAULT, read_config(DEFAULT))
    assert study is not None
    roles = [role for head in study["heads"] for role in head["roles"]]
    assert (roles.count("term_match"), roles.count("special")) == (11, 115)  # as docs/head-studies.md says
