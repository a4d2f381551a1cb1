"""CUDA graphs without a GPU: which packs and masks have one, and that it computes them right."""

import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from headroom.models.batch import pack, rung_of
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.graphs import by_graph, ladder_for
from headroom.models.network import Network
from headroom.models.selection import RowMasks
from tests.checkpoints import random_model
from tests.models.graphs_stand_in import CapturedOps, Gpu, stand_in
from tests.models.reference import CPU, network_of, random_pair, reference

MODEL = random_model(11, max_position_embeddings=160)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return stand_in(monkeypatch)


BATCH_TOKENS = 208
"""Maximum tokens of a batch in these tests."""
LADDER = list(ladder_for(BATCH_TOKENS))


def network() -> Network:
    return network_of(MODEL, ops=CapturedOps(CPU, torch.float32))


def captured(masks: RowMasks | None = None, *, sliced: bool = False) -> Network:
    """Return a network with graphs of these masks, too."""
    model = network()
    model.capture(BATCH_TOKENS, masks, sliced=sliced)
    return model


def pairs_of(lengths: Sequence[int], seed: int = 0) -> list[EncodedPair]:
    rng = np.random.default_rng(seed)
    return [random_pair(rng, length, 180) for length in lengths]


LENGTHS = [15, 11]


def scores(
    model: Network, masks: RowMasks | None = None, *, seed: int = 0, sliced: bool = False
) -> np.ndarray:
    batch = pack(pairs_of(LENGTHS, seed), device=CPU, ladder=model.ladder)
    return model.forward(batch, masks, sliced=sliced).numpy()


def assert_right(
    model: Network, masks: RowMasks | None = None, *, seed: int = 0, sliced: bool = False
) -> None:
    """Compare with a network that has no graphs."""
    expected = scores(PLAIN, masks, seed=seed)
    found = scores(model, masks, seed=seed, sliced=sliced)
    np.testing.assert_allclose(found, expected, atol=1e-5)


PLAIN = network_of(MODEL)
HALF = np.tile(np.array([1, 1, 0, 0], np.float32), (3, 1))
FRACTIONS = np.array([[1, 0.5, 0, 1], [0, 0, 0, 0], [0.25, 1, 1, 1]], np.float32)
ONES = np.ones((3, 4), np.float32)
AD_HOC: dict[str, np.ndarray] = {
    "half of the heads": HALF,
    "others": 1 - HALF,
    "fractions, and a layer without heads": FRACTIONS,
    "one head": np.pad(np.zeros((3, 3), np.float32), ((0, 0), (1, 0)), constant_values=1),
    "by row": np.stack([HALF, FRACTIONS]),
    "by row, in one layer": np.stack([ONES, np.vstack([ONES[:2], HALF[:1]])]),
    "all on": ONES,
}
UNITS_OFF = np.random.default_rng(3).random((3, MODEL.config.intermediate_size)) < 0.3


@pytest.mark.parametrize(
    ("batch_tokens", "tokens"),
    [
        (16, [16]),
        (17, [16, 32]),
        (100, [16, 32, 64, 112]),
        (513, [16, 32, 64, 128, 256, 512, 528]),
    ],
)
def test_a_ladder_ends_with_full_batches(batch_tokens: int, tokens: list[int]) -> None:
    ladder = ladder_for(batch_tokens)
    assert [rung.tokens for rung in ladder] == [*tokens, tokens[-1]]
    assert [rung.longest for rung in ladder[-2:]] == [64, 128]
    assert rung_of(ladder, tokens[-1], 1, 16) == ladder[-2]


@pytest.mark.parametrize("number", range(len(LADDER)))
def test_a_pack_goes_to_the_rung_that_has_room_for_it(number: int) -> None:
    rung = LADDER[number]
    for tokens in (rung.above + 1, rung.tokens):
        for rows in (1, rung.rows):
            # The rungs of full batches differ in their longest sequence alone.
            longest = min(tokens, rung.longest)
            assert rung_of(LADDER, tokens, rows, longest) == rung
            assert rung_of(LADDER, tokens, rung.rows + 1, longest) is None
    assert rung_of(LADDER, rung.above, 1, 1) != rung
    assert rung_of(LADDER, rung.tokens + 1, 1, 1) != rung
    longer = rung_of(LADDER, rung.tokens, 1, rung.longest + 1)
    assert longer == (LADDER[5] if number == 4 else None)


@pytest.mark.parametrize(
    ("lengths", "shape", "replayed"),
    [
        ([16], (16, 16), True),
        ([17], (32, 16), True),
        ([15, 17], (32, 16), True),
        ([15, 18], (64, 16), True),
        ([2] * 16, (32, 16), True),
        ([2] * 17, (48, 32), False),
        ([64, 64], (128, 16), True),
        ([128], (128, 16), True),
        ([65, 64], (144, 16), False),
        ([64, 64, 64, 9], (208, 16), False),  # 201 tokens are no full batch
        ([64, 64, 64, 10], (208, 16), True),
        ([64, 64, 64, 16], (208, 16), True),
        ([64, 64, 64, 17], (224, 16), False),
        ([128, 80], (208, 16), True),
        ([129, 79], (208, 16), False),
    ],
)
def test_scores_are_right_at_each_border_of_the_ladder(
    gpu: Gpu, lengths: list[int], shape: tuple[int, int], *, replayed: bool
) -> None:
    model = captured()
    gpu.calls.clear()
    by_row = np.random.default_rng(4).random((len(lengths), 3, 4)).astype(np.float32)
    for weights in (None, HALF, by_row):
        masks = None if weights is None else RowMasks(weights)
        for seed in range(2):
            pairs = pairs_of(lengths, seed)
            batch = pack(pairs, device=CPU, ladder=model.ladder)
            assert (len(batch.ids), len(batch.first_token)) == shape
            found = model.forward(batch, masks).numpy()
            assert gpu.replays == replayed
            each = None if weights is None else np.broadcast_to(weights, (len(lengths), 3, 4)).copy()
            np.testing.assert_allclose(found, reference(MODEL, pairs, torch.float32, each), atol=1e-4)


@pytest.mark.parametrize(
    ("lengths", "apart"),
    [
        ([100] * 10 + [128], False),  # all together have a graph
        ([100] * 10 + [129], True),
        ([100] * 3 + [200], False),  # a graph of at most 512 tokens takes any length
        ([100] * 10 + [200, 312], True),
        ([100] * 10 + [200, 313], False),  # the long ones have no graph
        ([100] * 38 + [100, 196], True),
        ([100] * 38 + [100, 197], False),  # over 4,096 tokens
        ([1] * 600 + [200], False),  # the short ones have none: too many rows
        ([100] * 160 + [200], False),  # a full batch
        ([129] * 5, False),
    ],
)
def test_long_titles_that_cost_the_others_their_graph_are_computed_apart(
    lengths: list[int], apart: bool
) -> None:
    everything = list(range(len(lengths)))
    short = [row for row in everything if lengths[row] <= 128]
    long = [row for row in everything if lengths[row] > 128]
    for order in (everything, everything[::-1]):
        found = by_graph([lengths[row] for row in order], ladder_for(16_384))
        packs = [sorted(order[row] for row in rows) for rows in found]
        assert packs == ([short, long] if apart else [everything])


def test_a_long_title_takes_no_graph_from_the_others(gpu: Gpu, clf: Classifier) -> None:
    """The classifier computes what is apart with graphs, and returns it in the order of the pairs."""
    model = network()
    model.capture(600)
    graphs = replace(clf, network=model, config=model.config)
    pairs = pairs_of([100, 129, *[100] * 4, 99])
    masks = RowMasks(np.stack([HALF, 1 - HALF, *[ONES] * 5]))
    expected = replace(graphs, network=PLAIN).forward(pairs, masks)

    assert gpu.replays > 0
    found = graphs.forward(pairs, masks)

    assert gpu.replays == 2
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_graphs_are_captured_once_and_before_traffic(gpu: Gpu) -> None:
    model = captured()
    assert gpu.captures == 2 * len(LADDER)  # without masks and with them
    for seed in range(40):
        scores(model, RowMasks(HALF) if seed % 2 else None, seed=seed)
    model.capture(BATCH_TOKENS)
    assert gpu.captures == 2 * len(LADDER)
    model.capture(BATCH_TOKENS, RowMasks(FRACTIONS))  # multiplies heads, as the whole network's graphs do
    assert gpu.captures == 2 * len(LADDER)
    model.capture(BATCH_TOKENS, RowMasks(FRACTIONS), sliced=True)
    assert gpu.captures == 3 * len(LADDER)


def test_a_network_that_nobody_warmed_up_has_no_graphs(gpu: Gpu) -> None:
    model = network()
    assert_right(model)
    assert gpu.captures == 0


@pytest.mark.usefixtures("gpu")
def test_a_network_that_is_replaced_frees_its_memory_without_a_collection() -> None:
    """A replica collects garbage rarely, and leaves out what was there at its start."""
    model = captured(RowMasks(HALF), sliced=True)
    scores(model)
    reference_to_it = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert reference_to_it() is None
    finally:
        gc.enable()


def test_all_masks_of_single_requests_share_the_graphs_and_copy_no_weights(gpu: Gpu) -> None:
    model = captured()
    gpu.calls.clear()
    for seed in range(3):
        for weights in AD_HOC.values():
            assert_right(model, RowMasks(weights), seed=seed)
            assert gpu.replays == 1
            assert_right(model, seed=seed)
            assert gpu.replays == 1
    assert model.selector.cache.nbytes == 0


@pytest.mark.parametrize(("skipped", "units_off"), [((1,), None), ((), UNITS_OFF), ((1,), UNITS_OFF)])
def test_masks_that_skip_layers_or_units_have_graphs_if_a_config_names_them(
    gpu: Gpu, skipped: tuple[int, ...], units_off: np.ndarray | None
) -> None:
    named = RowMasks(FRACTIONS, skipped, units_off)
    model = captured(named)
    assert gpu.captures == 3 * len(LADDER)
    gpu.calls.clear()
    for weights in AD_HOC.values():
        masks = RowMasks(weights, skipped, units_off)
        assert model.ladder_of(masks, sliced=False) == model.ladder
        assert_right(model, masks)
        assert gpu.replays == 1
    for other in (
        RowMasks(FRACTIONS, (0, *skipped), units_off),
        RowMasks(FRACTIONS, skipped, ~UNITS_OFF),
    ):
        assert model.ladder_of(other, sliced=False) == (), "filled up for nothing"
        assert_right(model, other)
        assert gpu.replays == 0


@pytest.mark.parametrize("weights", [HALF, HALF / 2], ids=["binary", "fractions"])
def test_a_sliced_variant_has_graphs_of_its_cut_weights(gpu: Gpu, weights: np.ndarray) -> None:
    masks = RowMasks(weights)
    model = captured(masks, sliced=True)
    assert model.selector.cache.nbytes > 0
    gpu.calls.clear()
    for seed in range(4):
        assert_right(model, masks, seed=seed, sliced=True)
        assert gpu.replays == 1
    # Another mask has none, though it may be sliced as well; nor have rows of several masks.
    for other in (1 - HALF, HALF / 4, np.stack([weights, weights])):
        assert_right(model, RowMasks(other), sliced=True)
        assert gpu.replays == 0


def test_variants_that_are_cut_alike_have_graphs_of_their_own(gpu: Gpu) -> None:
    """Their packs, and whether heads have weights, are the same; what differs is which weights they read."""
    alternate = np.zeros((3, MODEL.config.intermediate_size), np.bool_)
    alternate[:, ::2] = True
    variants = [
        RowMasks(HALF),
        RowMasks(1 - HALF),
        RowMasks(ONES, (), alternate),
        RowMasks(ONES, (), ~alternate),
    ]
    model = network()
    for masks in variants:
        model.capture(BATCH_TOKENS, masks, sliced=True)
    assert gpu.captures == (2 + len(variants)) * len(LADDER)
    gpu.calls.clear()
    for seed in range(3):
        for masks in variants:
            assert_right(model, masks, seed=seed, sliced=True)
            assert gpu.replays == 1


def test_graphs_of_variants_that_no_config_names_any_more_are_dropped(gpu: Gpu) -> None:
    model = network()
    skipping = RowMasks(FRACTIONS, (1,))
    for masks, sliced in ((RowMasks(HALF), True), (RowMasks(1 - HALF), True), (skipping, False)):
        model.capture(BATCH_TOKENS, masks, sliced=sliced)
    assert model.graphs is not None
    assert len(model.graphs) == 5 * len(LADDER)
    model.graphs.keep([(RowMasks(HALF), True), (RowMasks(FRACTIONS), False)])
    assert len(model.graphs) == 3 * len(LADDER)
    gpu.calls.clear()
    replays = Counter[str]()
    for name, masks, sliced in (
        ("whole", None, False),
        ("multiplied", RowMasks(1 - HALF), False),
        ("kept", RowMasks(HALF), True),
        ("sliced", RowMasks(1 - HALF), True),
        ("skipping", skipping, False),
    ):
        assert_right(model, masks, sliced=sliced)
        replays[name] = gpu.replays
    assert replays == {"whole": 1, "multiplied": 1, "kept": 1, "sliced": 0, "skipping": 0}


def test_the_gpu_runs_one_graph_at_a_time(gpu: Gpu) -> None:
    """They share memory: a thread's stream waits for the graph that was launched before its own."""
    model = captured()
    assert gpu.calls == ["wait", "replay", "record"] * (2 * len(LADDER))
    gpu.calls.clear()
    scores(model)
    scores(model, RowMasks(HALF))
    assert gpu.calls == ["wait", "replay", "record"] * 2


@pytest.mark.usefixtures("gpu")
def test_threads_never_get_each_others_scores() -> None:
    model = captured()
    expected = [scores(PLAIN, seed=seed) for seed in range(8)]

    def work(seed: int) -> None:
        for _ in range(10):
            np.testing.assert_allclose(scores(model, seed=seed), expected[seed], atol=1e-5)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(8)))


@pytest.mark.parametrize("failure", ["inside", "at the end", "at a launch"])
def test_a_capture_without_memory_ends_graphs_and_is_logged_once(
    gpu: Gpu, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.failure = failure
    model = captured()
    assert gpu.captures == 1
    gpu.failure = None
    model.capture(BATCH_TOKENS, RowMasks(HALF), sliced=True)
    assert gpu.captures == 1
    assert not model.ladder
    gpu.calls.clear()
    for masks in (None, RowMasks(HALF)):
        assert_right(model, masks)
    assert gpu.replays == 0
    (record,) = caplog.records
    assert "passes are computed without CUDA graphs, because a capture failed: CUDA" in record.message


def test_a_later_variant_without_memory_ends_all_graphs(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    model = captured()
    gpu.failure = "inside"
    model.capture(BATCH_TOKENS, RowMasks(HALF), sliced=True)
    assert model.graphs is not None
    assert len(model.graphs) == 0
    assert len(caplog.records) == 1
    gpu.calls.clear()
    assert_right(model, RowMasks(HALF), sliced=True)
    assert gpu.replays == 0


def full(*_: object) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


@pytest.mark.parametrize("failure", ["a pass", "a launch"])
def test_a_pass_without_memory_frees_the_graphs(
    gpu: Gpu, failure: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is then tried in halves, and the graphs' memory must not be what is missing."""
    model = captured()

    with monkeypatch.context() as patched:
        lengths = LENGTHS
        if failure == "a launch":
            gpu.failure = "at a launch"
        else:
            patched.setattr(model.ops, "attention", full)
            lengths = [129]
        for _ in range(2):
            with pytest.raises((torch.OutOfMemoryError, RuntimeError), match="out of memory"):
                model.forward(pack(pairs_of(lengths), device=CPU, ladder=model.ladder or LADDER))
            patched.setattr(model.ops, "attention", full)
    assert model.graphs is not None
    assert len(model.graphs) == 0
    assert_right(model)
    (record,) = caplog.records
    assert record.message.endswith("without CUDA graphs, because the GPU's memory was full")


@pytest.mark.usefixtures("gpu")
def test_a_pass_without_memory_says_nothing_of_graphs_that_there_never_were(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A notebook's first batch may be too large, and is then tried in halves."""
    model = network()

    with monkeypatch.context() as patched:
        patched.setattr(model.ops, "attention", full)
        with pytest.raises(torch.OutOfMemoryError):
            scores(model)
    assert not caplog.records
    model.capture(BATCH_TOKENS)
    assert list(model.ladder) == LADDER
