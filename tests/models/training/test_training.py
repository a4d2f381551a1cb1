"""The learner's gradients are transformers' own, and a target keeps its mean."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.learner import Learner
from headroom.models.training.loop import graded_target, ordinal_loss
from tests.checkpoints import write_checkpoint
from tests.models.reference import inputs_of, random_pair

TARGETS = torch.eye(5)


def test_a_target_keeps_its_mean_and_its_mass() -> None:
    for grade in (1.0, 2.25, 3.0):
        target = graded_target(grade)
        assert sum(target) == pytest.approx(1)
        assert sum(at * share for at, share in enumerate(target)) == pytest.approx(grade)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base") / "base", num_labels=5)


def learner(base: Path) -> Learner:
    config = read_config(base)
    return Learner(config, read_tensors(base, config), dropout=0.1, attention_dropout=0.1)


def test_a_step_moves_the_weights_as_transformers_own_network_would(base: Path) -> None:
    theirs, ours = BertForSequenceClassification.from_pretrained(base), learner(base)
    ours.dropout = 0.0
    ours.attention_dropout = 0.0
    rng, targets = np.random.default_rng(0), TARGETS[[3, 0, 2]]
    pairs = [random_pair(rng, length, theirs.config.vocab_size) for length in (9, 4, 23)]
    for pair, target in zip(pairs, targets, strict=True):
        logits = theirs(**inputs_of(theirs, pair)).logits
        (ordinal_loss(logits, target[None], torch.ones(1)) / 3).backward()
    ordinal_loss(ours(pairs), targets, torch.ones(3)).backward()
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(ours.weight(name).grad, weight.grad, rtol=1e-4, atol=1e-5)


def test_parameters_are_in_the_checkpoints_order_in_every_process(base: Path) -> None:
    """An optimizer's state has no names: a run that goes on would give each weight another one's."""
    config = read_config(base)
    stored = [name for name in read_tensors(base, config) if config.is_stored(name)]
    assert [name.replace("/", ".") for name, _ in learner(base).named_parameters()] == stored
