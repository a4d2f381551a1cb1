"""The network on a real GPU. `make gpu` runs these tests; they are skipped on machines without one."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from headroom.models.batch import Beginning, pack
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Bert, Network
from headroom.models.networks import build
from headroom.models.ops import choose_on_gpu as choose
from headroom.models.ops.positions import PLAIN_POSITIONS, Positions
from headroom.models.ops.relative import Relative, alibi_slopes, log_buckets
from headroom.models.ops.torch import CudaOps, TorchOps
from headroom.models.selection import RowMasks, rows_of
from tests.checkpoints import random_model
from tests.families import model_of
from tests.models.reference import logits_of, network_of, random_pair, random_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.more,
]
BOUNDS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 0.1}
"""Largest error of a logit, as a share of the largest logit."""

DEVICE = torch.device("cuda", max(torch.cuda.device_count() - 1, 0))
HALVES = np.tile(np.array([1, 1, 0, 0], np.float32), (3, 1))
OTHERS = np.tile(np.array([0, 0, 1, 0.5], np.float32), (3, 1))


def pairs_of(count: int = 40, vocabulary: int = 180) -> list[EncodedPair]:
    rng = np.random.default_rng(10)
    return [random_pair(rng, int(length), vocabulary) for length in rng.integers(2, 64, count)]


def networks(dtype: torch.dtype, hidden: int = 64) -> tuple[Bert, Network]:
    """The same random model on the CPU in float32, and on the GPU."""
    plain = network_of(random_model(10, hidden_size=hidden, initializer_range=0.1))
    return plain, build(plain.config, plain.tensors(), device=DEVICE, dtype=dtype)


def on_gpu(network: Network, pairs: list[EncodedPair], mask: np.ndarray | None, sliced: bool) -> np.ndarray:
    batch = pack(pairs, device=network.device, ladder=network.ladder)
    return network.forward(batch, None if mask is None else RowMasks(mask), sliced=sliced).numpy(force=True)


def assert_close(ours: np.ndarray, exact: np.ndarray, dtype: torch.dtype) -> None:
    assert np.abs(ours - exact).max() <= BOUNDS[dtype] * np.abs(exact).max()


@pytest.mark.parametrize("hidden", [64, 96])  # head sizes 16 and 24
@pytest.mark.parametrize("dtype", BOUNDS)
def test_scores_are_those_of_the_cpu(dtype: torch.dtype, hidden: int) -> None:
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no bfloat16")
    plain, network = networks(dtype, hidden)
    names = {64: "TritonOps", 96: "CudaOps"}
    fits = dtype != torch.float32 and torch.cuda.get_device_capability() >= (8, 0)
    assert type(network.ops).__name__ == (names[hidden] if fits else "CudaOps")
    pairs = pairs_of()
    rows = random_weights(np.random.default_rng(3), len(pairs), 3, 4)
    for mask in (None, rows, rows[0], HALVES):
        exact = logits_of(plain, pairs, mask)
        for sliced in (False, False, mask is HALVES):  # computed, cut to the live heads, cut at once
            assert_close(on_gpu(network, pairs, mask, sliced), exact, dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("family", ["deberta-v2", "qwen3", "qwen2", "gemma"])
def test_other_families_score_as_on_the_cpu(family: str, dtype: torch.dtype) -> None:
    model = model_of(family, 11)
    network = network_of(model, device=DEVICE, dtype=dtype)
    exact = logits_of(network_of(model), pairs_of())
    assert_close(on_gpu(network, pairs_of(), None, False), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3", "gemma"])
def test_a_decoder_attends_in_one_call_and_its_titles_share_their_beginning(
    family: str, dtype: torch.dtype
) -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("FlashAttention needs compute capability 8.0")
    model = model_of(family, 11, vocab_size=180)
    plain, network = network_of(model), network_of(model, device=DEVICE, dtype=dtype)
    assert isinstance(network.ops, CudaOps)
    assert network.ops.varlen is not None, "the self-test refused varlen_attn"
    pairs = pairs_of(20)
    own = [pair.ids for pair in pairs]
    start = own[0].repeat(3)
    pairs = [
        replace(pair, data=np.concatenate([start, ids]).tobytes())
        for pair, ids in zip(pairs, own, strict=True)
    ]
    beginnings = [Beginning("query", len(start))] * len(pairs)
    rows = random_weights(np.random.default_rng(3), 1, 3, 4).repeat(len(pairs), 0)
    uneven = np.tile(np.array([1, 0.5, 0, 1], np.float32), (3, 1))
    for mask, sliced in ((None, False), (rows, False), (uneven, False), (uneven, True)):
        exact = logits_of(plain, pairs, mask)
        batch = pack(pairs, device=DEVICE, beginnings=beginnings)
        masks = None if mask is None else RowMasks(mask)
        assert_close(network.forward(batch, masks, sliced=sliced).numpy(force=True), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("buckets", [16, 64, 256])  # sequences are longer than single distances reach, or not
def test_scores_of_distances_are_those_of_plain_torch(buckets: int, dtype: torch.dtype) -> None:
    heads = 3
    size = 64
    ops = choose(size, DEVICE, dtype, ["tables", "slopes", "maps"])
    plain = TorchOps(DEVICE, torch.float32)
    assert type(ops).__name__ == "TritonOps"
    keys, queries = torch.randn(2, heads, 2 * buckets, size, device=DEVICE).to(dtype)
    slopes = torch.tensor(alibi_slopes(heads), device=DEVICE)
    tables = keys, queries, log_buckets(buckets, 300, 400).to(DEVICE)
    rng = np.random.default_rng(4)
    for lengths in ([25], [1, 31, 32, 33, 63, 64, 65], [300, 7, 128]):
        batch = pack([random_pair(rng, length, 90) for length in lengths], device=DEVICE)
        projected = torch.randn(len(batch.ids), 3 * heads * size, device=DEVICE).to(dtype)
        rows = torch.rand(batch.rows, heads, device=DEVICE)
        for relative in (
            Relative(tables, buckets // 2),
            Relative(tables, buckets // 2, slopes),
            Relative(slopes=slopes),
        ):
            for view in (batch, replace(batch, read="first")):
                count = batch.rows if view.read == "first" else sum(lengths)
                arguments = view, heads, rows, Positions(relative=relative)
                ours = ops.attention(projected, *arguments)[:count]
                exact = plain.attention(projected.float(), *arguments)[:count]
                torch.testing.assert_close(ours.float(), exact, atol=2e-2, rtol=2e-2)


def test_threads_with_streams_of_their_own_may_evict_each_others_weights() -> None:
    plain, network = networks(torch.float16)
    size = max(layer.heads.only([0, 1]).nbytes for layer in network.layers if layer.heads)
    network.selector.cache.max_bytes = 3 * size
    pairs = pairs_of()
    exact = [logits_of(plain, pairs, mask) for mask in (HALVES, OTHERS)]

    def work(first: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(network.device)):
            for turn in range(first, first + 200):
                mask = (HALVES, OTHERS)[turn % 2]
                assert_close(on_gpu(network, pairs, mask, True), exact[turn % 2], torch.float16)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, (0, 1)))


def test_attention_has_the_same_bits_in_any_pack() -> None:
    _, network = networks(torch.float16)
    pairs = [*pairs_of(), random_pair(np.random.default_rng(2), 150, 180)]
    whole = pack(pairs, device=network.device)
    projected = torch.randn(len(whole.ids), 3 * 64, device=network.device, dtype=torch.float16)
    for first_only in (False, True):
        view = replace(whole, read="first") if first_only else whole
        found = network.ops.attention(projected, view, 4, None, PLAIN_POSITIONS)
        for row, start in enumerate(whole.first_token[: whole.rows].tolist()):
            alone = pack([pairs[whole.order[row]]], device=network.device, fill=False)
            alone, end = replace(alone, read=view.read), start + int(whole.lengths[row])
            ours = network.ops.attention(projected[start:end], alone, 4, None, PLAIN_POSITIONS)
            assert torch.equal(ours, found[row : row + 1] if first_only else found[start:end])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_attention_is_that_of_plain_torch(size: int, dtype: torch.dtype) -> None:
    heads = 3
    ops = choose(size, DEVICE, dtype, ["attention", "maps"])
    plain = TorchOps(DEVICE, torch.float32)
    assert type(ops).__name__ == "TritonOps"
    rng = np.random.default_rng(4)
    for lengths in ([25], [1, 2, 31, 32, 33, 63, 64, 65], [300, 7, 128, 129], [*range(20, 50)]):
        batch = pack([random_pair(rng, length, 90) for length in lengths], device=DEVICE)
        projected = torch.randn(len(batch.ids), 3 * heads * size, device=DEVICE).to(dtype)
        rows = torch.rand(batch.rows, heads, device=DEVICE)
        for view in (batch, replace(batch, read="first")):
            count = batch.rows if view.read == "first" else sum(lengths)
            for weights in (None, rows, rows[:1]):
                for window in (None, 0, 5, 64, 70):
                    positions = Positions(window=window)
                    ours = ops.attention(projected, view, heads, weights, positions)[:count]
                    exact = plain.attention(projected.float(), view, heads, weights, positions)[:count]
                    torch.testing.assert_close(ours.float(), exact, atol=2e-2, rtol=2e-2)


def test_graphs_score_as_passes_without_them_for_all_packs_of_their_shapes() -> None:
    plain, network = networks(torch.float16)
    rng = np.random.default_rng(5)
    assert network.graphs is not None
    for mask in (HALVES, HALVES / 2):
        network.capture(512, RowMasks(mask), sliced=True)
    captured = len(network.graphs)
    assert captured == 4 * len(network.ladder)
    for count in (1, 2, 5, 9, 16):
        for _ in range(5):
            pairs = [random_pair(rng, int(length), 180) for length in rng.integers(2, 64, count)]
            rows = random_weights(rng, count, 3, 4)
            rows[:, 0] = 1  # a layer without weights
            for mask in (None, rows, HALVES, HALVES / 2):
                sliced = mask is not rows
                exact = logits_of(plain, pairs, mask)
                assert_close(on_gpu(network, pairs, mask, sliced), exact, torch.float16)
    assert len(network.graphs) == captured


def test_threads_replay_while_another_captures() -> None:
    plain, network = networks(torch.float16)
    network.capture(512)
    rng = np.random.default_rng(6)
    some = [[random_pair(rng, int(n), 180) for n in rng.integers(2, 64, count)] for count in (1, 3, 8, 40)]
    masks = [random_weights(rng, len(pairs), 3, 4) for pairs in some]
    exact = [
        [logits_of(plain, pairs, mask) for mask in (None, rows)]
        for pairs, rows in zip(some, masks, strict=True)
    ]

    def work(seed: int) -> None:
        order = np.random.default_rng(seed)
        with torch.cuda.stream(torch.cuda.Stream(network.device)):
            for _ in range(150):
                which, masked = int(order.integers(4)), int(order.integers(2))
                found = on_gpu(network, some[which], (None, masks[which])[masked], False)
                assert_close(found, exact[which][masked], torch.float16)

    with ThreadPoolExecutor(3) as threads:
        working = threads.map(work, range(6))
        network.capture(512, RowMasks(HALVES), sliced=True)
        list(working)
    assert network.graphs is not None
    assert len(network.graphs) == 3 * len(network.ladder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("family", ["bert", "deberta-v2", "qwen3", "gemma"])
def test_a_pass_waits_for_nothing(family: str, dtype: torch.dtype) -> None:
    network = network_of(model_of(family, 11, hidden_size=64), device=DEVICE, dtype=dtype)
    pairs = pairs_of()
    mask = random_weights(np.random.default_rng(3), 1, 3, 4).repeat(len(pairs), 0)
    beginnings = [Beginning("query", 1)] * len(pairs) if network.reads == "last" else None
    network.forward(pack(pairs, device=network.device, beginnings=beginnings), RowMasks(mask))
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            batch = pack(pairs, device=network.device, beginnings=beginnings)
            selected = network.selector.select(rows_of(RowMasks(mask), batch.order))
            logits = network.classify(network.pooled(batch, selected))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert logits[: batch.rows].isfinite().all()  # further rows belong to no sequence
