"""The bounded cache of copies of weights."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from headroom.models.layer import AttentionHeads
from headroom.models.ops.torch import Linear
from headroom.models.weight_cache import WeightCache


def module(heads: int = 4, size: int = 8) -> AttentionHeads:
    torch.manual_seed(0)
    width = heads * size
    maps = (Linear(torch.randn(rows, width), torch.randn(rows)) for rows in (3 * width, width))
    return AttentionHeads(heads, size, *maps)


def some(*heads: int) -> np.ndarray:
    """Flags of four heads, of which these are on."""
    return np.isin(np.arange(4), heads)


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
