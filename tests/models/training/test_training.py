"""The training loop: its steps are transformers' own, targets keep their mean, frozen weights stay."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from default_model.grouped_batches import GroupedBatch
from default_model.mixture import Example
from default_model.tuning import batches_of
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.learner import Learner
from headroom.models.training.loop import (
    Batch,
    Schedule,
    graded_target,
    ordinal_loss,
    train,
)
from tests.checkpoints import write_checkpoint
from tests.models.reference import inputs_of, random_pair

WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
TARGETS = torch.eye(5)
WORDS = "angle bracket deck screw sofa couch phone case drill red green steel".split()


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


def run(base: Path, work: Path) -> Learner:
    """Train twelve steps with dropout; the word embeddings stay as they are."""
    model = learner(base)
    model.weight(WORD_EMBEDDINGS).requires_grad_(False)
    tokenizer = PairTokenizer.load(base, max_tokens=32, vocab_size=model.config.vocab_size)

    def make_round(index: int) -> list[GroupedBatch]:
        groups = [
            [Example(query, f"{title} {query}", graded_target((at + index) % 5))]
            for at, (query, title) in enumerate(pairwise(WORDS))
        ]
        return batches_of(groups, tokenizer, batch_tokens=64, seed=index)

    def loss_of(batch: Batch) -> torch.Tensor:
        return ordinal_loss(model(batch.pairs), batch.labels, batch.weights)

    schedule = Schedule(12, 1e-3, warmup=2)
    train(model, loss_of, make_round, schedule, work / "run.pt", seed=5)
    return model


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


def test_frozen_weights_stay_and_the_others_learn(base: Path, tmp_path: Path) -> None:
    before, after = learner(base), run(base, tmp_path / "run")
    assert torch.equal(before.weight(WORD_EMBEDDINGS), after.weight(WORD_EMBEDDINGS))
    assert not torch.equal(before.weight("classifier.weight"), after.weight("classifier.weight"))


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    schedule = Schedule(1000, 3e-4, warmup=50, decay=0.3)
    rates = [schedule.rate_at(step) for step in range(1000)]
    assert rates[0] == pytest.approx(3e-4 / 50)
    assert rates[24] == pytest.approx(3e-4 / 2)
    assert rates[50] == rates[400] == rates[700] == 3e-4
    assert rates[850] == pytest.approx(3e-4 / 2)
    assert rates[999] < 0.05 * 3e-4
    assert all(after <= before for before, after in pairwise(rates[50:]))
