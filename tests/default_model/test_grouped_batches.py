"""Batches keep their budget and never part the titles of a query, whose order the ranking loss looks at."""

import math
from pathlib import Path

import pytest
import torch

from default_model.grouped_batches import grouped_spans, ranking_loss
from default_model.groups import Example
from default_model.tuning import batches_of
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.training.loop import graded_target

pytestmark = pytest.mark.more

TARGETS = torch.eye(5)


def test_every_query_is_in_one_batch_and_batches_keep_their_budget() -> None:
    lengths = [7, 31, 8, 8, 30, 5, 64, 6]
    sizes = [2, 5, 1, 3, 1, 2, 1, 4]
    groups = grouped_spans(lengths, sizes, batch_tokens=32)
    assert sorted(index for group in groups for index in group) == list(range(8))
    for group in groups:
        titles = sum(sizes[index] for index in group)
        assert max(lengths[index] for index in group) * titles <= 32 or len(group) == 1


def logits(*grades: float) -> torch.Tensor:
    """Return logits whose expected grades are nearly these whole ones."""
    return 50 * TARGETS[[int(grade) for grade in grades]]


def test_wrong_orders_within_a_query_cost_and_greater_differences_more() -> None:
    def loss(grades: tuple[int, ...], truth: list[int], queries: list[int]) -> float:
        return float(ranking_loss(logits(*grades), TARGETS[truth], torch.tensor(queries)))

    right, wrong, equal = (loss(pair, [4, 1], [0, 0]) for pair in ((4, 1), (1, 4), (2, 2)))
    assert right < equal < wrong
    assert equal == pytest.approx(math.log(2))
    assert loss((0, 4), [4, 0], [0, 1]) == 0  # titles of other queries are not compared
    far_wrong, near_wrong = (loss(four, [4, 0, 2, 1], [0, 0, 1, 1]) for four in ((0, 1, 2, 1), (1, 0, 1, 2)))
    assert far_wrong > near_wrong


def test_a_batch_numbers_the_titles_of_one_query_alike(tiny_checkpoint: Path) -> None:
    tokenizer = PairTokenizer.load(tiny_checkpoint, max_tokens=32, vocab_size=1 << 20)
    groups = [
        [Example(query, f"{query} {'lamp ' * n}", graded_target(n % 5)) for n in range(1 + number % 4)]
        for number, query in enumerate(["red", "sofa", "drill", "towel"] * 5)
    ]
    batches = batches_of(groups, tokenizer, batch_tokens=200, seed=0)
    assert sum(len(batch.weights) for batch in batches) == sum(map(len, groups))
    numbers = [set(batch.groups.tolist()) for batch in batches]
    assert len(numbers) == len(batches) > 1
    assert sum(map(len, numbers)) == len(set().union(*numbers)) == len(groups)
