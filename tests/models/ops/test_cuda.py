"""Forward passes replayed as CUDA graphs score as computed ones do.

A capture that repeats the computation on the graph's own buffers stands in for the GPU, and a plain attention
over `offsets` for its kernel: what is tested is that a replay depends on its inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from models.bert import Bert
from models.ops import cuda
from models.ops.cuda import CudaOps, GraphCache
from models.ops.torch import attention_probabilities, visibility_bias
from tests.checkpoints import random_model
from tests.models import test_modernbert as modern
from tests.models.reference import logits_of, network_of, random_pair, random_weights
from tests.modernberts import random_modernbert


class Repeating:
    """A graph that computes again instead of replaying, so results must be copied before the next replay."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0
        self.inside = False

    def capture(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        output = torch.full_like(compute(), torch.nan)
        self.captured += 1

        def repeat() -> None:
            assert self.inside
            self.replayed += 1
            output.copy_(compute())

        return repeat, output

    def begin(self) -> None:
        assert not self.inside
        self.inside = True

    def end(self) -> None:
        assert self.inside
        self.inside = False


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    _: Tensor,
    longest: int,
    __: int,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    out = torch.full_like(query, torch.nan)  # as on a GPU, nothing is written for tokens of no sequence
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        assert stop - start <= longest
        q, k, v = (part[start:stop].transpose(0, 1) for part in (query, key, value))
        bias = visibility_bias(q, window_size[0] if window_size[0] >= 0 else None)
        out[start:stop] = (attention_probabilities(q, k, bias) @ v).transpose(0, 1)
    return out


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Repeating:
    capture = Repeating()
    monkeypatch.setattr(cuda, "varlen_attn", varlen)
    monkeypatch.setattr(cuda, "GraphCapture", lambda _: capture)
    return capture


def network_on_a_gpu() -> Bert:
    """A network with a GPU's operators, computed on the CPU."""
    plain = network_of(random_model(11))
    ops = CudaOps(plain.device, plain.dtype)
    return Bert(plain.config, plain.tensors(), device=plain.device, dtype=plain.dtype, ops=ops)


def graphs_of(network: Bert) -> GraphCache:
    assert isinstance(network.ops, CudaOps)
    return network.ops.graphs


@pytest.mark.parametrize("masked", ["none", "one", "by row", "cut"])
def test_replays_score_as_the_cpu_does(
    capture: Repeating, masked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    ours = network_on_a_gpu()
    cut = np.array([[1, 0, 0, 0.5], [0, 0, 0, 0], [0, 1, 1, 1]], np.float32)
    batches = []
    for _ in range(5):  # other sequences each time, of as many tokens and rows once filled up
        pairs = [random_pair(rng, int(length), 180) for length in rng.integers(4, 9, 5)]
        weights = {
            "none": None,
            "one": random_weights(rng, 1, 3, 4)[0],
            "by row": random_weights(rng, 5, 3, 4),
            "cut": cut,
        }[masked]
        if masked in ("one", "by row"):
            weights = np.clip(weights, 0.25, None)  # every head live, so that all five are of one kind
        batches.append((pairs, weights))

    found = [logits_of(ours, pairs, weights) for pairs, weights in batches]

    assert capture.captured >= 1
    assert capture.replayed > capture.captured
    monkeypatch.undo()
    plain = network_of(random_model(11))
    for scores, (pairs, weights) in zip(found, batches, strict=True):
        np.testing.assert_allclose(scores, logits_of(plain, pairs, weights), atol=1e-5)


@pytest.mark.usefixtures("capture")
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_rotated_and_local_attention_is_replayed_too(pooling: str) -> None:
    plain = modern.network_of(random_modernbert(11, classifier_pooling=pooling))
    ops = CudaOps(plain.device, plain.dtype)
    ours = modern.network_of(random_modernbert(11, classifier_pooling=pooling), ops=ops)
    rng = np.random.default_rng(4)
    for _ in range(4):
        pairs = [random_pair(rng, int(length), 300) for length in rng.integers(20, 30, 5)]
        np.testing.assert_allclose(logits_of(ours, pairs), logits_of(plain, pairs), atol=2e-5)
    assert len(ops.graphs) == 1


@pytest.mark.usefixtures("capture")
def test_shapes_and_live_heads_have_graphs_of_their_own() -> None:
    rng = np.random.default_rng(2)
    ours = network_on_a_gpu()
    small, large = ([random_pair(rng, 6, 180) for _ in range(count)] for count in (2, 9))
    mask = np.array([[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]], np.float32)
    for _ in range(4):
        for pairs in (small, large):
            for weights in (None, mask):
                logits_of(ours, pairs, weights)
    # The mask's heads are cut out when it comes a second time, so each shape has up to three kinds of heads.
    assert 4 <= len(graphs_of(ours)) <= 6
    assert not graphs_of(ours).off


def test_a_pass_of_many_tokens_is_never_captured(capture: Repeating, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "MAX_GRAPH_TOKENS", 32)
    rng = np.random.default_rng(3)
    ours = network_on_a_gpu()
    for _ in range(3):
        logits_of(ours, [random_pair(rng, 20, 180) for _ in range(4)])
    assert capture.captured == 0


def double(inputs: Sequence[Tensor]) -> Tensor:
    return inputs[0] * 2


def test_the_least_recently_used_graph_is_evicted_first() -> None:
    graphs = GraphCache(Repeating(), size=2)
    for key in ("a", "a", "b", "b", "a", "c", "c"):
        assert graphs.run(key, [torch.ones(2)], double).tolist() == [2, 2]
    assert list(graphs._graphs) == ["a", "c"]


@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_a_capture_that_fails_ends_capturing_but_no_pass(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(Repeating):
        def capture(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
            if fault == "raises":
                raise RuntimeError("operation not permitted when stream is capturing")
            return lambda: None, torch.zeros_like(compute())

    graphs = GraphCache(Faulty())
    for value in range(1, 5):
        assert graphs.run("key", [torch.full((2,), value)], double).tolist() == [2 * value] * 2
    assert graphs.off
    assert len(graphs) == 0
    assert "not recorded" in caplog.text
