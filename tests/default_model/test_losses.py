"""The losses of recipes: they reach the top of the scale, and a contradiction costs what is taught."""

import math
from pathlib import Path

import pytest
import torch

from default_model.grouped_batches import GroupedBatch, ranking_loss
from default_model.losses import (
    MARGIN,
    graded_loss,
    margin_loss,
    raw_ranking_loss,
    softened,
)
from default_model.tuning import untuned
from default_model.upper_layers import LowerLayers
from headroom.models.checkpoint.tokenizer import PairTokenizer
from tests.checkpoints import write_checkpoint


def batch_of(
    grades: list[int], *, taught: list[bool], groups: list[int], weights: list[float] | None = None
) -> GroupedBatch:
    ones = [1.0] * len(grades)
    return GroupedBatch(
        [], torch.eye(5)[grades], torch.tensor(weights or ones), torch.tensor(groups), torch.tensor(taught)
    )


def test_two_good_titles_near_the_top_of_the_scale_are_still_pulled_apart() -> None:
    logits = torch.tensor([[0.0, 0, 0, 0, 12], [0.0, 0, 0, 0, 12]], requires_grad=True)
    targets = torch.tensor([[0.0, 0, 0, 0, 1], [0.0, 0, 0, 0.5, 0.5]])
    groups = torch.zeros(2)
    (of_raw,) = torch.autograd.grad(raw_ranking_loss(logits, targets, groups), logits)
    (of_grades,) = torch.autograd.grad(ranking_loss(logits, targets, groups), logits)
    assert of_raw.abs().sum() > 1000 * of_grades.abs().sum()
    assert raw_ranking_loss(logits, targets, groups).item() == pytest.approx(math.log(2), rel=1e-3)


def test_pairs_that_are_only_ranked_neither_add_to_the_graded_loss_nor_break_it() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
    targets = torch.eye(5)[[0, 1, 2, 4]]
    assert graded_loss(logits, targets, torch.zeros(4)).item() == 0
    one = graded_loss(logits[:1], targets[:1], torch.ones(1))
    with_ranked = graded_loss(logits, targets, torch.tensor([1.0, 0, 0, 0]))
    assert with_ranked.item() == pytest.approx(one.item() / 4)


def test_a_teacher_keeps_its_opinion_but_for_grades_that_are_taught() -> None:
    batch = batch_of([4, 0, 2], taught=[False, False, True], groups=[0, 0, 0], weights=[1.0, 0.0, 1.0])
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(3))
    opinion = logits.softmax(-1)
    targets, weights = softened(batch, logits, kept=0.75, held=0.3)
    torch.testing.assert_close(targets[0], 0.25 * batch.labels[0] + 0.75 * opinion[0])
    torch.testing.assert_close(targets[1], opinion[1])  # ranked alone: its scale is held
    torch.testing.assert_close(targets[2], batch.labels[2])
    assert weights.tolist() == pytest.approx([1.0, 0.3, 1.0])
    assert softened(batch, logits, kept=0.75, held=0.0)[1].tolist() == [1.0, 0.0, 1.0]


def test_a_contradiction_costs_nothing_more_once_it_is_as_far_below_as_taught() -> None:
    batch = batch_of([4, 2], taught=[True, True], groups=[0, 0])
    level = margin_loss(torch.zeros(2, 5), batch)
    assert level.item() == pytest.approx((MARGIN * 2) ** 2)
    assert margin_loss(20 * torch.eye(5)[[4, 2]], batch).item() == 0
    reversed_order = margin_loss(20 * torch.eye(5)[[2, 4]], batch)
    assert reversed_order > level


def test_upper_layers_on_the_served_networks_states_give_the_whole_models_logits(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, num_labels=5)
    model = untuned(directory).eval()
    tokenizer = PairTokenizer.load(directory, max_tokens=32, vocab_size=model.config.vocab_size)
    pairs = tokenizer.encode([("red lamp", "usb charger"), ("angle bracket", "steel angle bracket")])
    lower = LowerLayers(model, 1)
    entering = lower.enter(pairs)
    logits = lower.logits(model, entering)
    with torch.no_grad():
        whole = model(pairs)
    torch.testing.assert_close(logits.detach(), whole, rtol=0.05, atol=0.05)  # bfloat16
    torch.testing.assert_close(entering.logits.float(), whole, rtol=0.05, atol=0.05)
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert model.weight("bert.encoder.layer.0.output.dense.weight").grad is None
    assert model.weight("bert.encoder.layer.1.output.dense.weight").grad is not None
