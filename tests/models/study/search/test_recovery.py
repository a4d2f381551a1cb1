"""A smaller network that is trained afterwards comes nearer to the intact one's answers."""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headroom import Classifier, HeadMask
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.compress.prune import cut, intact_mask
from headroom.models.study.runner import Runner
from headroom.models.study.search import recovery
from headroom.models.study.search.networks import Networks
from headroom.models.study.study import Study
from headroom.models.training import loop
from headroom.models.training.distil import teaching
from tests.checkpoints import GRADES, random_model, write_vocabulary
from tests.models.study.data import judged

pytestmark = pytest.mark.more


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """A study of a model with a calibration and with its grades in another order than its outputs."""
    random_model(5, num_hidden_layers=2, hidden_size=16).save_pretrained(tmp_path)
    write_vocabulary(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["headroom"] = {
        "temperature": 0.4,
        "bias": [0, 1, 0, -1, 2],
        "label_order": [GRADES[i] for i in (3, 0, 4, 1, 2)],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    classifier = Classifier.load(tmp_path, "cpu", "float32")
    data = judged(queries=21)
    return Study(classifier, data, Runner(classifier), tmp_path / "out")


def trained(study: Study, minutes: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """Train a copy of the model with noise on its weights. Returns its mean KL divergence to the model."""

    def noisy(
        tensors: Mapping[str, torch.Tensor], config: ModelConfig, mask: HeadMask
    ) -> tuple[dict[str, torch.Tensor], ModelConfig]:
        kept, config = cut(tensors, config, mask)
        random = torch.Generator().manual_seed(0)
        return {n: t + 0.01 * torch.randn(t.shape, generator=random) for n, t in kept.items()}, config

    ticks = count()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr(teaching, "cut", noisy)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(recovery, "peak_rate", lambda _: 1e-3)
    mask = intact_mask(study.classifier.config)
    recovery.recover(Networks(study), mask, minutes)
    smaller = Classifier.load(study.out / "recovered", "cpu", "float32")
    wanted, got = (
        one.score(study.data.pairs).probabilities.astype(np.float64) for one in (study.classifier, smaller)
    )
    assert [file.name for file in study.out.iterdir()] == ["recovered"]  # no state of a run is left
    return float((wanted * np.log(wanted / got)).sum(1).mean())


def test_distillation_teaches_the_intact_network_s_probabilities(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trained(study, 1 / 60, monkeypatch)  # one step, at a rate near 0
    after = trained(study, 4, monkeypatch)
    assert 0 < after < before / 3


def test_a_recovered_network_has_the_order_of_grades_that_the_caller_gave(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = Classifier.load(study.source, "cpu", "float32", label_order=GRADES)
    again = Study(classifier, study.data, Runner(classifier), study.out)
    assert trained(again, 1 / 60, monkeypatch) < 0.1
    assert Classifier.load(study.out / "recovered", "cpu").grades == tuple(GRADES)


def test_a_recovered_network_has_the_number_format_of_each_tensor(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A language model's classifier is a difference of two rows in float32, whatever the rest has."""
    file = study.source / "model.safetensors"
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
    tensors["classifier.weight"] = tensors["classifier.weight"].float()
    save_file(tensors, file, {"format": "pt"})
    trained(study, 1 / 60, monkeypatch)
    recovered = load_file(study.out / "recovered" / "model.safetensors")
    assert {name: recovered[name].dtype for name in tensors} == {n: t.dtype for n, t in tensors.items()}
