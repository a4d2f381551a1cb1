"""The study of a checkpoint's heads: shown for the weights that it was made of, and for no others."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from headroom import Classifier
from headroom.models.checkpoint.files import HEAD_STUDY as FILE
from headroom.models.checkpoint.files import read_head_study, weights_id
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.quality.metrics import GRADED
from headroom.models.study.report_files import head_study
from tests.checkpoints import random_model

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
def studied(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint with the study that was made for it."""
    directory = tmp_path / "studied"
    shutil.copytree(tiny_checkpoint, directory)
    text = head_study(report(3, 4), weights_id(directory), (3, 4), GRADED)
    assert text is not None
    (directory / FILE).write_text(text, encoding="utf-8")
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
    assert next(iter(study["metrics"].items())) == ("qwk", "QWK")  # it shades the heads


def test_a_study_of_other_weights_is_left_out(studied: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = (studied / FILE).read_text(encoding="utf-8")
    for old, new in (('"weights": "', '"weights": "0'), ("[", "{")):
        (studied / FILE).write_text(kept.replace(old, new), encoding="utf-8")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert read_head_study(studied) is None
        assert f"{FILE} is not used" in caplog.text


def test_the_shipped_models_study_is_that_of_its_weights() -> None:
    study = read_head_study(DEFAULT)
    assert study is not None
    roles = [role for head in study["heads"] for role in head["roles"]]
    assert (roles.count("term_match"), roles.count("special")) == (11, 114)  # as docs/head-studies.md says


def test_every_file_of_the_weights_counts(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path, max_shard_size="20KB")
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 2
    ids = {weights_id(tmp_path)}
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        ids.add(weights_id(tmp_path))
        file.write_bytes(whole)
    assert len(ids) == 1 + len(files)
    assert weights_id(tmp_path) in ids
