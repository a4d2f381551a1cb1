"""Calibration and the figures by which the shipped model was chosen."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from models.training.shipped.judged import Judged
from models.training.shipped.tune import averaged, by_family, calibrated, untuned
from tests.checkpoints import write_checkpoint
from tests.models.reference import random_pair


def test_calibration_finds_the_map_that_spoiled_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    fair = log_softmax(rng.normal(size=(20_000, 5)) * 1.5, axis=1)
    grades = np.array([rng.choice(5, p=np.exp(row)) for row in fair])
    spoiled = 3 * (fair - np.array([0.0, 0.5, -0.5, 0.2, -1.0]))
    found = calibrated(spoiled, grades.tolist(), ["one"] * len(grades))
    assert found.temperature == pytest.approx(3, rel=0.05)
    after = found.apply(spoiled)
    for grade in range(5):
        assert after[:, grade].mean() == pytest.approx((grades == grade).mean(), abs=0.01)


def test_each_source_weighs_the_same_in_the_calibration() -> None:
    logits = np.zeros((1100, 5))
    grades, families = [4] * 1000 + [0] * 100, ["large"] * 1000 + ["small"] * 100
    share = calibrated(logits, grades, families).apply(logits)[0]
    assert share[4] == pytest.approx(share[0], abs=0.02)


def test_the_classifier_takes_the_calibration_up(tmp_path: Path) -> None:
    model = untuned(write_checkpoint(tmp_path / "base", num_labels=5)).eval()
    pairs = [random_pair(np.random.default_rng(0), 9, 60)]
    before = model(pairs).detach().double().numpy()
    found = calibrated(np.random.default_rng(1).normal(size=(50, 5)), [0, 1, 2, 3, 4] * 10, ["a"] * 50)
    found.fold_into(model)
    after = model(pairs).detach().softmax(-1).double().numpy()
    np.testing.assert_allclose(after, found.apply(before), atol=1e-6)


def test_the_average_of_two_models_has_the_mean_of_their_weights(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", num_labels=5)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    one, two = untuned(base), untuned(base)
    start = one.weight(name).detach().clone()
    two.weight(name).data += 1
    torch.testing.assert_close(averaged([one, two], [0.75, 0.25]).weight(name).detach(), start + 0.25)


def test_sources_are_measured_apart_and_esci_is_one_of_them() -> None:
    sources = ("esci_us_150q", "esci_extra", "chorus_icecat", "dbpedia_entity_v2")
    judged = [
        Judged(f"{source} q", f"t{grade}", grade, source, 2) for source in sources for grade in range(5)
    ]
    figures = by_family(judged, np.tile(np.eye(5), (4, 1)))
    assert {name: metrics["pairs"] for name, metrics in figures.items()} == {
        "esci": 10, "chorus": 5, "dbpedia": 5, "products": 15, "all": 20,
    }  # fmt: skip
    assert all(metrics["qwk"] == metrics["ndcg10"] == 1 for metrics in figures.values())
