"""Ranking within queries: the loss looks at titles of one query only, and batches never part them."""

import math
from pathlib import Path

import pytest
import torch

from models.checkpoint.tokenizer import PairTokenizer
from models.training.batches import Batch
from models.training.data import Example, graded_target
from models.training.loop import ranking_loss
from models.training.plan import grouped
from models.training.shipped.tune import batches_of

TARGETS = torch.eye(5)


def logits(*grades: float) -> torch.Tensor:
    """Return logits whose expected grades are nearly these whole ones."""
    return 50 * TARGETS[[int(grade) for grade in grades]]


def test_the_right_order_within_a_query_costs_least() -> None:
    targets, groups = TARGETS[[4, 1]], torch.tensor([0, 0])
    right, wrong, equal = (ranking_loss(logits(*pair), targets, groups) for pair in ((4, 1), (1, 4), (2, 2)))
    assert right < equal < wrong
    assert float(equal) == pytest.approx(math.log(2))


def test_titles_of_other_queries_are_not_compared() -> None:
    loss = ranking_loss(logits(0, 4), TARGETS[[4, 0]], torch.tensor([0, 1]))
    assert float(loss) == 0


def test_a_greater_difference_weighs_more() -> None:
    groups = torch.tensor([0, 0, 1, 1])
    targets = TARGETS[[4, 0, 2, 1]]
    far_wrong = ranking_loss(logits(0, 1, 2, 1), targets, groups)
    near_wrong = ranking_loss(logits(1, 0, 1, 2), targets, groups)
    assert far_wrong > near_wrong


def test_groups_stay_together_within_the_budget() -> None:
    lengths, sizes = [10, 3, 8, 4], [2, 5, 1, 3]
    found = grouped(lengths, batch_tokens=30, sizes=sizes)
    assert sorted(place for group in found for place in group) == [0, 1, 2, 3]
    for group in found:
        cost = max(lengths[place] for place in group) * sum(sizes[place] for place in group)
        assert cost <= 30 or len(group) == 1


def test_a_batch_numbers_the_titles_of_one_query_alike(tiny_checkpoint: Path) -> None:
    tokenizer = PairTokenizer.load(tiny_checkpoint, max_tokens=32, vocab_size=1 << 20)
    groups = [
        [Example(query, f"{query} {'lamp ' * n}", graded_target(n % 5)) for n in range(1 + number % 4)]
        for number, query in enumerate(["red", "sofa", "drill", "towel"] * 5)
    ]
    batches = batches_of(groups, tokenizer, batch_tokens=200, seed=0)
    assert sum(len(batch.weights) for batch in batches) == sum(map(len, groups))
    numbers = [set(batch.groups.tolist()) for batch in batches if batch.groups is not None]
    assert len(numbers) == len(batches) > 1
    assert sum(map(len, numbers)) == len(set().union(*numbers)) == len(groups)


def test_a_batch_without_groups_moves_to_a_device() -> None:
    ids = torch.zeros((1, 2), dtype=torch.long)
    moved = Batch(ids, ids, ids, TARGETS[:1], torch.ones(1)).to(torch.device("meta"))
    assert moved.groups is None
    assert moved.ids.device.type == "meta"
