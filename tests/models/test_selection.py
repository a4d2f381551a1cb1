"""Which heads are computed, and the bounded cache of copies of weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from models.layer import FeedForward, Layer, MultiHeadAttention
from models.ops.torch import Linear, TorchOps
from models.selection import Selector, WeightCache


def module(heads: int = 4, size: int = 8) -> MultiHeadAttention:
    torch.manual_seed(0)
    width = heads * size
    return MultiHeadAttention.from_weights(
        heads,
        (*torch.randn(3, width, width).unbind(0), torch.randn(width, width)),
        (*torch.randn(3, width).unbind(0), torch.randn(width)),
    )


def selector(kept: list[tuple[int, ...]], num_heads: int) -> Selector:
    units = FeedForward(Linear(torch.eye(4), torch.zeros(4)), Linear(torch.eye(4), torch.zeros(4)))
    layers = [
        Layer(heads=module(len(heads)) if heads else None, attention_bias=torch.zeros(8), units=units)
        for heads in kept
    ]
    return Selector(layers, kept, num_heads, TorchOps(torch.device("cpu"), torch.float32), copies=True)


def some(*heads: int) -> np.ndarray:
    """Flags of four heads, of which these are on."""
    return np.isin(np.arange(4), heads)


def test_heads_are_computed_if_some_row_needs_them() -> None:
    weights = np.zeros((2, 3, 4), np.float32)
    weights[0, 0, 1] = weights[1, 0, 3] = 1
    weights[:, 2] = 1

    two, none, all_on = selector([(0, 1, 2, 3)] * 3, 4).select(weights, sliced=True)

    assert two.heads is not None
    assert two.heads.count == 2
    assert two.head_weights is not None
    assert two.head_weights.tolist() == [[1, 0], [0, 1]]
    assert none.heads is None
    assert all_on.heads is not None
    assert (all_on.heads.count, all_on.head_weights) == (4, None)  # nothing to multiply


@pytest.mark.parametrize(
    ("on", "weights"),
    [
        ((5,), [0, 0, 1]),  # heads 0, 1 and 5
        ((0, 4), [1, 0, 1]),
        ((1, 2, 4), None),
        ((0, 1, 4, 6), [1, 1, 0, 0, 1, 1]),
        ((0, 1, 2, 3, 4, 5, 6), None),  # there are no nine
    ],
)
def test_heads_are_filled_up_to_a_number_that_comes_again(
    on: tuple[int, ...], weights: list[int] | None
) -> None:
    mask = np.zeros((1, 8), np.float32)
    mask[0, list(on)] = 1
    chooses = selector([(0, 1, 2, 3, 4, 5, 6)], 12)  # steps of 3

    chooses.select(mask)
    (chosen,) = chooses.select(mask)  # a set is copied when it comes again

    assert chosen.heads is not None
    assert chosen.heads.count == (len(on) if weights is None else len(weights))
    assert (None if chosen.head_weights is None else chosen.head_weights[0].tolist()) == weights


def test_a_set_is_copied_when_it_comes_again_or_at_once_if_that_is_certain() -> None:
    cache, whole = WeightCache(10**9), module()
    assert cache.get(0, whole, some(0, 1)) is None
    assert cache.get(0, whole, some(2)) is None
    first, sure = cache.get(0, whole, some(0, 1)), cache.get(0, whole, some(3), at_once=True)
    assert first is not None
    assert cache.get(0, whole, some(0, 1)) is first
    assert sure is not None
    assert cache.get(0, whole, some(3)) is sure


def test_the_cache_keeps_to_its_bound_and_drops_the_least_recently_used() -> None:
    whole = module()
    size = whole.only((0, 1)).nbytes
    cache = WeightCache(2 * size)
    first = cache.get(0, whole, some(0, 1), at_once=True)
    cache.get(1, whole, some(0, 1), at_once=True)
    assert cache.get(0, whole, some(0, 1)) is first  # used again, so layer 1 is the oldest now
    assert cache.get(2, whole, some(0, 1), at_once=True) is not None

    assert cache.nbytes == 2 * size
    assert cache.get(0, whole, some(0, 1)) is first
    assert cache.get(1, whole, some(0, 1)) is None
    assert cache.get(0, whole, some(0, 1, 2, 3)) is None
    assert cache.get(3, whole, some(0, 1, 2), at_once=True) is not None  # takes more than one's place
    assert cache.nbytes <= 2 * size


def test_more_masks_in_turns_than_the_cache_holds_copy_nothing_and_evict_nothing() -> None:
    whole = module()
    cache = WeightCache(2 * whole.only((0, 1)).nbytes)
    kept = cache.get(9, whole, some(0, 1), at_once=True)
    for _ in range(3):
        assert [cache.get(layer, whole, some(0, 1)) for layer in range(4)] == [None] * 4
    assert cache.get(9, whole, some(0, 1)) is kept


def test_nobody_waits_for_what_another_thread_copies() -> None:
    """While one thread copies and waits, others get cached sets, and compute the rest whole."""
    whole, found = module(), []

    def wait_for_the_device() -> None:
        with ThreadPoolExecutor(1) as other:
            sets = [(0, 1), (2, 3), (0, 2)]
            found.extend(other.submit(cache.get, 0, whole, some(*heads)).result(timeout=10) for heads in sets)

    cache = WeightCache(10**9)
    cached = cache.get(0, whole, some(0, 1), at_once=True)
    cache._finish = wait_for_the_device

    copy = cache.get(0, whole, some(2, 3), at_once=True)

    assert copy is not None
    assert [None if one is None else one is cached for one in found] == [True, None, None]
    assert cache.get(0, whole, some(2, 3)) is copy


def test_a_copy_of_heads_computes_what_its_heads_computed() -> None:
    whole = module()
    x = torch.randn(2, 5, 32)
    weights = torch.tensor([0.0, 1.0, 0.0, 1.0])

    torch.testing.assert_close(whole.only((1, 3))(x), whole(x, head_weights=weights), atol=1e-3, rtol=1e-4)
