"""Which heads are computed, and the bounded cache of cut-down attention modules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from models.attention import MultiHeadAttention
from models.live_heads import AttentionHeads, SlicedCache, plan


def module(heads: int = 4, size: int = 8) -> AttentionHeads:
    torch.manual_seed(0)
    width = heads * size
    whole = MultiHeadAttention.from_weights(
        heads,
        (*torch.randn(3, width, width).unbind(0), torch.randn(width, width)),
        (*torch.randn(3, width).unbind(0), torch.randn(width)),
    )
    return AttentionHeads(heads, size, whole.query_key_value, whole.output)


def attend(heads: AttentionHeads, x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    parts = (heads.heads, heads.head_size, heads.query_key_value, heads.output)
    return MultiHeadAttention(*parts)(x, head_weights=weights)


def test_live_heads_are_the_union_over_the_batch() -> None:
    weights = np.zeros((2, 3, 4), np.float32)
    weights[0, 0, 1] = weights[1, 0, 3] = 1
    weights[:, 2] = 1

    layers = plan(weights, [(0, 1, 2, 3)] * 3)

    assert [layer.live for layer in layers] == [(1, 3), (), (0, 1, 2, 3)]
    assert [sorted(layer.scaled) for layer in layers] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [],
    ]  # nothing to multiply


def test_pruned_heads_are_left_out_of_the_plan() -> None:
    weights = np.ones((2, 4), np.float32)
    weights[0, 2] = 0

    layers = plan(weights, [(0, 2), ()])

    assert [layer.live for layer in layers] == [(0,), ()]
    assert [sorted(layer.scaled) for layer in layers] == [[1], []]


@pytest.mark.parametrize(
    ("on", "live"),
    [
        ((), ()),
        ((5,), (0, 1, 5)),
        ((0, 4), (0, 1, 4)),
        ((1, 2, 4), (1, 2, 4)),
        ((0, 1, 4, 6), (0, 1, 2, 3, 4, 6)),
        ((0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4, 5, 6)),  # there are no nine
    ],
)
def test_live_heads_are_filled_up_to_a_number_that_comes_again(
    on: tuple[int, ...], live: tuple[int, ...]
) -> None:
    weights = np.zeros((1, 8), np.float32)
    weights[0, list(on)] = 1

    (layer,) = plan(weights, [(0, 1, 2, 3, 4, 5, 6)], step=3)

    assert layer.live == live
    assert set(live) - set(on) <= layer.scaled


def test_a_mask_that_comes_once_copies_no_weights() -> None:
    cache, whole = SlicedCache(10**9), module()
    for live in [(0,), (1,), (0, 1), (2, 3)]:
        assert cache.get(0, whole, live) is None
    assert cache.nbytes == 0


def test_a_set_is_cut_when_it_comes_again_or_at_once_if_that_is_certain() -> None:
    cache, whole = SlicedCache(10**9), module()
    assert cache.get(0, whole, (0, 1)) is None
    assert cache.get(0, whole, (2,)) is None
    first, sure = cache.get(0, whole, (0, 1)), cache.get(0, whole, (3,), at_once=True)
    assert first is not None
    assert cache.get(0, whole, (0, 1)) is first
    assert sure is not None
    assert cache.get(0, whole, (3,)) is sure


def test_the_cache_keeps_to_its_bound_and_drops_the_least_recently_used() -> None:
    whole = module()
    size = whole.cut((0, 1)).nbytes
    cache = SlicedCache(2 * size)
    first = cache.get(0, whole, (0, 1), at_once=True)
    cache.get(1, whole, (0, 1), at_once=True)
    assert cache.get(0, whole, (0, 1)) is first  # used again, so layer 1 is the oldest now
    assert cache.get(2, whole, (0, 1), at_once=True) is not None

    assert cache.nbytes == 2 * size
    assert cache.get(0, whole, (0, 1)) is first
    assert cache.get(1, whole, (0, 1)) is None
    assert cache.get(0, whole, (0, 1, 2, 3)) is None
    assert cache.get(3, whole, (0, 1, 2), at_once=True) is not None  # takes more than one's place
    assert cache.nbytes <= 2 * size


def test_more_masks_in_turns_than_the_cache_holds_cut_nothing_and_evict_nothing() -> None:
    whole = module()
    cache = SlicedCache(2 * whole.cut((0, 1)).nbytes)
    kept = cache.get(9, whole, (0, 1), at_once=True)
    for _ in range(3):
        assert [cache.get(layer, whole, (0, 1)) for layer in range(4)] == [None] * 4
    assert cache.get(9, whole, (0, 1)) is kept


def test_a_set_larger_than_the_cache_is_not_cut() -> None:
    whole = module()
    cache = SlicedCache(whole.nbytes // 4)
    assert cache.get(0, whole, (0, 1), at_once=True) is None
    assert cache.nbytes == 0


def test_nobody_waits_for_what_another_thread_cuts() -> None:
    """While one thread cuts and waits for its device, others get cached sets, and compute the rest whole."""
    whole, found = module(), []

    def wait_for_the_device() -> None:
        with ThreadPoolExecutor(1) as other:
            sets = [(0, 1), (2, 3), (0, 2)]
            found.extend(other.submit(cache.get, 0, whole, live).result(timeout=10) for live in sets)

    cache = SlicedCache(10**9)
    cached = cache.get(0, whole, (0, 1), at_once=True)
    cache._finish = wait_for_the_device

    cut = cache.get(0, whole, (2, 3), at_once=True)

    assert cut is not None
    assert [None if one is None else one is cached for one in found] == [True, None, None]
    assert cache.get(0, whole, (2, 3)) is cut


def test_a_cut_that_fails_is_tried_again() -> None:
    whole, problems = module(), [MemoryError()]

    def wait_for_the_device() -> None:
        if problems:
            raise problems.pop()

    cache = SlicedCache(10**9, finish=wait_for_the_device)
    with pytest.raises(MemoryError):
        cache.get(0, whole, (0, 1), at_once=True)

    assert cache.nbytes == 0
    assert cache.get(0, whole, (0, 1), at_once=True) is not None


def test_a_sliced_module_computes_what_its_heads_computed() -> None:
    whole = module()
    x = torch.randn(2, 5, 32)
    weights = torch.tensor([0.0, 1.0, 0.0, 1.0])

    torch.testing.assert_close(attend(whole.cut((1, 3)), x), attend(whole, x, weights), atol=1e-3, rtol=1e-4)
