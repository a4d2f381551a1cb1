"""Decoders in one call for all sequences of a pack, as on a GPU, with an exact stand-in for its kernel.

Only the kernel is not torch's own: what it is given and what is made of its results is the code of a GPU.
"""

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from headroom.models.batch import Beginning, PackedBatch, pack
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.ops import choose_on_gpu
from headroom.models.ops.torch import CudaOps
from headroom.models.ops.trial import disagreement
from headroom.models.ops.varlen import VarlenAttention
from headroom.models.selection import RowMasks
from tests.decoders import FAMILIES, model_of
from tests.models.ops.varlen_stand_in import exact_varlen
from tests.models.reference import CPU, network_of, reference

pytestmark = pytest.mark.usefixtures("one_thread")

BEFORE = {"a": 23, "b": 7}
"""Tokens that the pairs of a query begin with, which are computed once."""
QUERIES = [*"aaaaaabbbc"]
LAYERS = 3
HEADS = 4


takes_torchs_arguments = functools.wraps(exact_varlen, assigned=())
"""Gives a function the signature of torch's."""


def without_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *offsets_and_longest: Any,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """The same attention in a release of torch that has no `enable_gqa`."""
    return exact_varlen(query, key, value, *offsets_and_longest, scale=scale, window_size=window_size)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return model_of(request.param, 5, vocab_size=180, hidden_size=64)


def pairs_of(seed: int = 1) -> list[EncodedPair]:
    """Pairs of three queries; one has a single pair, whose beginning is not cut off."""
    rng = np.random.default_rng(seed)
    beginnings = {query: rng.integers(4, 180, BEFORE.get(query, 11)) for query in "abc"}
    own = [rng.integers(4, 180, int(length)) for length in rng.integers(1, 40, len(QUERIES))]
    texts = [np.concatenate([beginnings[query], title]) for query, title in zip(QUERIES, own, strict=True)]
    return [EncodedPair(text.astype(np.int32).tobytes(), 1, 0, False) for text in texts]


def packed(pairs: list[EncodedPair], *, shared: bool = True) -> PackedBatch:
    beginnings = [Beginning(query, BEFORE.get(query, 11)) for query in QUERIES]
    batch = pack(pairs, device=CPU, beginnings=beginnings if shared else None)
    assert (batch.prefixes is not None) == shared
    return batch


def on_gpu(model: PreTrainedModel, function: Callable[..., Tensor]) -> Network:
    """The network with a GPU's operators, on the CPU."""
    return network_of(model, ops=CudaOps(CPU, torch.float32, VarlenAttention(function)))


def masks_of(seed: int = 2) -> np.ndarray:
    """A mask for each pair, with fractions; those of a query are equal, because they share its beginning."""
    rng = np.random.default_rng(seed)
    by_query = rng.choice([0.0, 0.3, 1.0], (3, LAYERS, HEADS), p=[0.3, 0.2, 0.5]).astype(np.float32)
    by_query[1, 1] = 0
    return by_query[["abc".index(query) for query in QUERIES]]


UNEVEN = np.tile(np.array([1, 0.3, 0, 1], np.float32), (LAYERS, 1))
"""Cut out, it leaves two heads of queries to the first head of keys, and one to the second."""


@pytest.mark.parametrize("function", [exact_varlen, without_groups])
@pytest.mark.parametrize("shared", [True, False])
def test_logits_are_those_of_transformers_under_any_masks(
    model: PreTrainedModel, function: Callable[..., Tensor], shared: bool
) -> None:
    network = on_gpu(model, function)
    pairs = pairs_of()
    for masks, sliced in (
        (None, False),
        (masks_of(), False),
        (UNEVEN, False),
        (UNEVEN, True),
        (np.full((LAYERS, HEADS), 0.5, np.float32), False),
    ):
        of_rows = None if masks is None else RowMasks(masks)
        weights = None if masks is None else np.broadcast_to(masks, (len(pairs), LAYERS, HEADS)).copy()
        exact = reference(model, pairs, torch.float64, weights)
        ours = network.forward(packed(pairs, shared=shared), of_rows, sliced=sliced).numpy()
        assert np.abs(ours - exact).max() <= 2e-5 * max(1.0, np.abs(exact).max())


def test_pairs_that_begin_with_no_token_share_nothing(model: PreTrainedModel) -> None:
    """Such as plain pairs of an empty query."""
    pairs = pairs_of()
    nothing = [Beginning(query, 0 if query == "b" else BEFORE.get(query, 11)) for query in QUERIES]
    exact = reference(model, pairs, torch.float64)
    for deterministic in (False, True):
        batch = pack(pairs, device=CPU, beginnings=nothing, deterministic=deterministic)
        ours = on_gpu(model, exact_varlen).forward(batch).numpy()
        assert np.abs(ours - exact).max() <= 2e-5 * max(1.0, np.abs(exact).max())


@takes_torchs_arguments
def aligned_at_the_beginning(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, key_offsets: Tensor, *_: int, **__: Any
) -> Tensor:
    """The other way to read `causal`: the first query sees the first key alone."""
    heads = key.shape[1]
    key, value = (part.repeat_interleave(query.shape[1] // heads, 1) for part in (key, value))
    out = torch.full_like(query, torch.nan)
    for row in range(len(offsets) - 1):
        own, keys = (slice(*each[row : row + 2].tolist()) for each in (offsets, key_offsets))
        q, k, v = (part.transpose(0, 1) for part in (query[own], key[keys], value[keys]))
        out[own] = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)
    return out


@takes_torchs_arguments
def with_wrong_groups(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
    """Neighbouring heads of queries read different heads of keys."""
    repeats = query.shape[1] // key.shape[1]
    named["enable_gqa"] = False
    return exact_varlen(
        query, key.repeat(1, repeats, 1), value.repeat(1, repeats, 1).roll(1, 1), *rest, **named
    )


@takes_torchs_arguments
def without_a_kernel(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nStack trace")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_self_test_accepts_the_right_kernel_and_finds_wrong_ones(dtype: torch.dtype) -> None:
    def problem(function: Callable[..., Tensor]) -> str | None:
        return disagreement(CudaOps(CPU, dtype, VarlenAttention(function)), 64)

    assert problem(exact_varlen) is None
    for wrong in (aligned_at_the_beginning, with_wrong_groups):
        assert (problem(wrong) or "").startswith("causal attention")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (without_a_kernel, "FlashAttention only supports Ampere GPUs or newer."),
        (
            aligned_at_the_beginning,
            "causal attention of last tokens in torch.bfloat16 is not what plain torch computes",
        ),
        (None, "this release has none"),
    ],
)
def test_a_decoder_on_a_gpu_without_the_kernel_attends_one_sequence_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    function: Callable[..., Tensor] | None,
    reason: str,
) -> None:
    def of_torch() -> VarlenAttention:
        if function is None:
            raise ImportError("this release has none")
        return VarlenAttention(function)

    monkeypatch.setattr(VarlenAttention, "of_torch", of_torch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setitem(sys.modules, "headroom.models.ops.triton", None)
    with caplog.at_level(logging.WARNING):
        ops = choose_on_gpu(16, CPU, torch.bfloat16, ["causal", "maps"])
    assert ops.varlen is None
    assert caplog.records[0].getMessage() == (
        "the GPU is not as fast as it could be: a decoder attends to one sequence after the other: " + reason
    )
