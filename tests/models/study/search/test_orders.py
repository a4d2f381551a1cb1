"""Heads that do nothing go first, and heads that do the same work are not both taken for dispensable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from models import Classifier
from models.study import base
from models.study.gradients import DifferentiableNetwork
from models.study.search import plans
from tests.checkpoints import VOCABULARY, random_model, write_vocabulary

DEAD = {(0, 1), (0, 3), (1, 0), (2, 2)}  # 4 of 12: three tenths, rounded
TITLES = [
    "Simpson Strong-Tie 12-Gauge Angle",
    "wood deck screws",
    "usb charger",
    "kitchen towel, white",
    "a lamp",
]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """A random model with three tenths of its heads multiplied by zero."""
    directory = tmp_path_factory.mktemp("dead")
    model = random_model(3, vocab_size=len(VOCABULARY))
    for layer, head in DEAD:
        model.bert.encoder.layer[layer].attention.output.dense.weight.data[:, head * 8 : head * 8 + 8] = 0
    model.save_pretrained(directory)
    write_vocabulary(directory)
    return Classifier.load(directory, "cpu", "float32")


@pytest.fixture(scope="module")
def gradients(classifier: Classifier) -> np.ndarray:
    pairs = [(query, title) for query in ("angle bracket", "white towel", "usb lamp") for title in TITLES]
    grades = np.random.default_rng(0).integers(0, 5, len(pairs))
    return DifferentiableNetwork(classifier).gradients(classifier.tokenizer.encode(pairs), grades).heads


Rule = Callable[[np.ndarray, base.Heads], base.Heads]


@pytest.mark.parametrize("rule", [plans.fisher_order, plans.michel_order])
def test_heads_multiplied_by_zero_go_first(classifier: Classifier, gradients: np.ndarray, rule: Rule) -> None:
    order = rule(gradients, base.held_heads(classifier))

    assert set(order[: len(DEAD)]) == DEAD
    assert sorted(order) == list(base.held_heads(classifier))


def test_magnitude_sees_heads_multiplied_by_zero(classifier: Classifier) -> None:
    order = plans.magnitude_order(classifier, base.held_heads(classifier))

    assert set(order[: len(DEAD)]) == DEAD
