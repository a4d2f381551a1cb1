"""Recorded forward passes score as computed ones do.

A recorder that repeats the computation on the recording's own buffers stands in for the GPU, and a plain
attention over `offsets` for its kernel: what is tested is that a replay depends on its inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from models import attention, encoder
from models.encoder import Encoder
from models.recordings import Recordings
from tests.checkpoints import random_model
from tests.models.reference import encoder_of, logits_of, random_pair, random_weights


class Repeating:
    """Computes again instead of replaying; what is read between replays must have been copied."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        self.inside = False

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        output = torch.full_like(compute(), torch.nan)
        self.recorded += 1

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
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, _: Tensor, longest: int, __: int
) -> Tensor:
    out = torch.full_like(query, torch.nan)  # as on a GPU, nothing is written for tokens of no sequence
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        assert stop - start <= longest
        q, k, v = (part[start:stop].transpose(0, 1) for part in (query, key, value))
        out[start:stop] = (torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v).transpose(0, 1)
    return out


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Repeating:
    recorder = Repeating()
    monkeypatch.setattr(attention, "varlen_attn", varlen)
    for module in (attention, encoder):
        monkeypatch.setattr(module, "has_varlen", lambda *_: True)
    monkeypatch.setattr(encoder, "CudaRecorder", lambda _: recorder)
    return recorder


def recording_encoder() -> Encoder:
    return encoder_of(random_model(11))


@pytest.mark.parametrize("masked", ["none", "one", "by row", "cut"])
def test_replays_score_as_the_cpu_does(
    recorder: Repeating, masked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    ours = recording_encoder()
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

    assert recorder.recorded >= 1
    assert recorder.replayed > recorder.recorded
    monkeypatch.undo()
    plain = recording_encoder()
    for scores, (pairs, weights) in zip(found, batches, strict=True):
        np.testing.assert_allclose(scores, logits_of(plain, pairs, weights), atol=1e-5)


@pytest.mark.usefixtures("recorder")
def test_shapes_and_live_heads_have_recordings_of_their_own() -> None:
    rng = np.random.default_rng(2)
    ours = recording_encoder()
    small, large = ([random_pair(rng, 6, 180) for _ in range(count)] for count in (2, 9))
    mask = np.array([[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]], np.float32)
    for _ in range(4):
        for pairs in (small, large):
            for weights in (None, mask):
                logits_of(ours, pairs, weights)
    assert ours.recordings is not None
    # The mask's heads are cut out when it comes a second time, so each shape has up to three kinds of heads.
    assert 4 <= len(ours.recordings) <= 6
    assert not ours.recordings.off


def test_a_pass_of_many_tokens_is_never_recorded(
    recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "RECORDED_TOKENS", 32)
    rng = np.random.default_rng(3)
    ours = recording_encoder()
    for _ in range(3):
        logits_of(ours, [random_pair(rng, 20, 180) for _ in range(4)])
    assert recorder.recorded == 0


def double(inputs: Sequence[Tensor]) -> Tensor:
    return inputs[0] * 2


def test_the_least_used_recording_goes_first() -> None:
    recordings = Recordings(Repeating(), most=2)
    for key in ("a", "a", "b", "b", "a", "c", "c"):
        assert recordings.run(key, [torch.ones(2)], double).tolist() == [2, 2]
    assert list(recordings._kept) == ["a", "c"]


@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_a_recording_that_fails_ends_recording_but_no_pass(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(Repeating):
        def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
            if fault == "raises":
                raise RuntimeError("operation not permitted when stream is capturing")
            return lambda: None, torch.zeros_like(compute())

    recordings = Recordings(Faulty())
    for value in range(1, 5):
        assert recordings.run("key", [torch.full((2,), value)], double).tolist() == [2 * value] * 2
    assert recordings.off
    assert len(recordings) == 0
    assert "not recorded" in caplog.text
