"""Checkpoints whose query tokens see the query alone: transformers with a mask of attention is the reference.

A query's titles share what is computed of it, so what is shared must be the same as for each pair alone.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroom.models.batch import pack
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.tokenizer import BERT, EncodedPair, PairTemplate
from headroom.models.compress.prune import prune, transformers_refusal
from headroom.models.errors import UnsupportedCheckpoint
from headroom.models.network import Network
from headroom.models.selection import RowMasks
from headroom.models.sequences import Beginning
from headroom.models.study.runner import logits_under
from headroom.models.training.distil.running import sharing_query
from tests.checkpoints import (
    SHAPE,
    WITHOUT_DROPOUT,
    load,
    random_classifier,
    random_model,
    write_checkpoint,
    write_int8,
)
from tests.models.reference import CPU, inputs_of, logits_of, masked, network_of, random_weights

QUERIES = (0, 1, 5, 40)
"""Tokens of the queries, and of the titles."""
TITLES = (0, 2, 9, 33, 70)
ROUNDING = {torch.float32: 2e-5, torch.bfloat16: 0.04}


UNTYPED = PairTemplate((2,), (3, 3), (3,), two_segments=False)
"""As XLM-RoBERTa's, which the shipped model has: the title has no token type of its own."""


def pairs_of(template: PairTemplate = BERT, seed: int = 0) -> list[EncodedPair]:
    """Each query with each title."""
    rng = np.random.default_rng(seed)
    pairs = []
    for query in QUERIES:
        asked = rng.integers(4, 60, query + len(template.between))
        for title in TITLES:
            ids = [2, *asked, *rng.integers(4, 60, title + 1)]
            pairs.append(EncodedPair(np.array(ids, np.int32), query, 0, False, template))
    return pairs


def hidden(pair: EncodedPair) -> Tensor:
    """Return what transformers adds to scores, so that a pair's query sees the query alone: (1, 1, n, n)."""
    of_query = np.zeros(len(pair), np.bool_)
    of_query[1 : pair.title_start] = True
    return torch.from_numpy(np.where(of_query[:, None] & ~of_query, -1e9, 0.0))[None, None]


def reference(model: PreTrainedModel, pairs: list[EncodedPair], weights: np.ndarray | None) -> np.ndarray:
    """Return transformers' logits of each pair on its own, in float64. weights: of the heads."""
    model = model.double()
    rows = []
    for row, pair in enumerate(pairs):
        inputs = inputs_of(model, pair)
        with torch.no_grad(), masked(model, None if weights is None else weights[row]):
            rows.append(model(**inputs, attention_mask=hidden(pair)).logits[0].numpy())
    return np.stack(rows)


def sharing(model: PreTrainedModel, dtype: torch.dtype = torch.float32, **options: Any) -> Network:
    """Return our network of a model of transformers, whose query tokens see the query alone."""
    model.config.headroom = {"shares_query": True}
    return network_of(model, dtype, **options)


def shared_logits(
    network: Network, pairs: list[EncodedPair], weights: np.ndarray | None, keys: list[int] | None = None
) -> np.ndarray:
    """Return our logits, computed once for equal queries under equal masks. keys: of the masks."""
    keys = keys or [0] * len(pairs)
    beginnings = [
        Beginning((pair.shared_query.tobytes(), key), len(pair.shared_query), 1)
        for pair, key in zip(pairs, keys, strict=True)
    ]
    batch = pack(pairs, device=CPU, deterministic=network.deterministic, beginnings=beginnings)
    masks = None if weights is None else RowMasks(weights)
    return network.forward(batch, masks).numpy()


@pytest.mark.parametrize("family", ["bert", "electra"])
@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("template", [BERT, UNTYPED])
@pytest.mark.parametrize("is_masked", [False, True])
def test_scores_are_those_of_transformers_with_a_mask_of_attention(
    family: str, width: int, template: PairTemplate, is_masked: bool
) -> None:
    """Whole pairs, as studies and trainings pack them, and with equal queries under equal masks once. Our
    kernels compute heads of 16 numbers, torch those of 8."""
    shape = SHAPE | {"max_position_embeddings": 128, "hidden_size": width}
    model = random_classifier(family, seed=3, vocab_size=60, **shape, **WITHOUT_DROPOUT)
    pairs = pairs_of(template)
    of_mask = random_weights(np.random.default_rng(1), 2, 3, 4)
    keys = [row % 2 if is_masked else 0 for row in range(len(pairs))]
    weights = of_mask[keys] if is_masked else None
    exact = reference(model, pairs, weights)
    for dtype, rounding in ROUNDING.items():
        network = sharing(model.float(), dtype)
        for found in (logits_of(network, pairs, weights), shared_logits(network, pairs, weights, keys)):
            assert np.abs(found - exact).max() <= rounding * np.abs(exact).max()


def test_a_deterministic_network_gives_the_same_bits_alone_and_beside_any_pairs() -> None:
    network = sharing(random_model(max_position_embeddings=128, hidden_size=64), deterministic=True)
    pairs = pairs_of()
    together = shared_logits(network, pairs, None)
    for row, pair in enumerate(pairs):
        np.testing.assert_array_equal(shared_logits(network, [pair], None)[0], together[row])


def test_a_query_is_computed_once_for_its_titles_under_a_mask() -> None:
    """Two queries of three and two tokens, with [SEP]; two titles of four tokens and [SEP], with [CLS]."""
    pairs = [
        EncodedPair(np.array([2, *query, 3, 9, 9, 9, title, 3], np.int32), len(query), 0, False)
        for query in ((5, 6, 7), (5, 6))
        for title in (10, 11)
    ]
    beginnings = [Beginning(pair.shared_query.tobytes(), len(pair.shared_query), 1) for pair in pairs]
    batch = pack(pairs, device=CPU, beginnings=beginnings, fill=False)
    assert batch.lengths.tolist() == [3, 4, 6, 6, 6, 6]
    ids = [part.tolist() for part in batch.ids.split(batch.lengths.tolist())]
    positions = [part.tolist() for part in batch.positions.split(batch.lengths.tolist())]
    segments = [part.tolist() for part in batch.segments.split(batch.lengths.tolist())]
    assert ids[0] == [5, 6, 3]
    assert ids[1] == [5, 6, 7, 3]
    assert positions[:2] == [[1, 2, 3], [1, 2, 3, 4]]
    assert batch.prefixes is not None
    for row in range(2, 6):
        pair = pairs[batch.order[row]]
        prefix = int(batch.prefixes[row])
        start = pair.title_start
        assert ids[row] == [2, *pair.ids[start:]]
        assert positions[row] == [0, *range(start, len(pair))]
        assert segments[row] == [0, 1, 1, 1, 1, 1]
        assert ids[prefix] == pair.shared_query.tolist()
    assert batch.order[batch.answers].tolist() == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_checkpoint(tmp_path_factory.mktemp("sharing"), hidden_size=64)
    return share(directory)


def share(directory: Path) -> Path:
    """Let a checkpoint's config.json say that its query tokens see the query alone."""
    file = directory / "config.json"
    fields = json.loads(file.read_text())
    fields["headroom"] = fields.get("headroom", {}) | {"shares_query": True}
    file.write_text(json.dumps(fields))
    return directory


TITLE_TEXTS = ("steel angle", "red towel set", "")
TEXTS = [(query, title) for query in ("angle bracket", "usb") for title in TITLE_TEXTS]


def test_a_classifier_scores_each_pair_as_it_does_alone_under_any_mask(checkpoint: Path) -> None:
    clf = load(checkpoint)
    masks = ["none", "0.1,1.0-2", "none", "2.*", "0.1,1.0-2", "none"]
    together = clf.score(TEXTS, head_mask=masks).logits
    alone = [clf.score([text], head_mask=mask).logits[0] for text, mask in zip(TEXTS, masks, strict=True)]
    np.testing.assert_allclose(together, alone, atol=2e-5)
    whole = logits_of(clf.network, clf.tokenizer.encode(TEXTS))
    np.testing.assert_allclose(clf.score(TEXTS).logits, whole, atol=2e-5)
    usual = load(write_checkpoint(checkpoint.parent / "usual", hidden_size=64))
    assert np.abs(whole - usual.score(TEXTS).logits).max() > 0.01
    np.testing.assert_allclose(sharing_query(usual).score(TEXTS).logits, whole, atol=2e-5)


def test_a_study_of_masks_gives_the_scores_that_are_served(checkpoint: Path) -> None:
    """Of masks with most heads off, a study cuts heads out."""
    clf = load(checkpoint)
    encoded = clf.tokenizer.encode(TEXTS)
    masks = [clf.mask(spec) for spec in ("none", "keep:0.1,1.2", "0.0-2,2.3")]
    matrices = np.stack([mask.matrix for mask in masks]).astype(np.float32)
    for beginnings in (None, clf.beginnings(encoded, [None] * len(encoded))):
        batch = pack(encoded, device=CPU, beginnings=beginnings)
        for mask, logits in zip(masks, logits_under(clf.network, batch, matrices), strict=True):
            np.testing.assert_allclose(logits, clf.score(TEXTS, head_mask=mask).logits, atol=2e-5)


def test_no_token_of_a_query_attends_to_a_title(checkpoint: Path) -> None:
    attention = load(checkpoint).attention(*TEXTS[1])
    start = attention.tokens.index("[SEP]") + 1
    assert not attention.probabilities[:, 1:start, start:].any()
    assert not attention.probabilities[:, 1:start, 0].any()
    assert (attention.probabilities[:, 0] > 0).all()
    np.testing.assert_allclose(attention.probabilities.sum(-1), 1, atol=1e-5)


def test_what_is_pruned_or_quantized_shares_its_query_too(checkpoint: Path, tmp_path: Path) -> None:
    clf = load(checkpoint)
    mask = clf.mask("0.1,1.*")
    prune(checkpoint, tmp_path / "pruned", mask)
    pruned = load(tmp_path / "pruned")
    assert pruned.config.shares_query
    assert transformers_refusal(pruned.config) is not None
    np.testing.assert_allclose(pruned.score(TEXTS).logits, clf.score(TEXTS, head_mask=mask).logits, atol=2e-5)

    int8 = load(write_int8(checkpoint, tmp_path / "int8"))
    assert int8.config.shares_query
    exact = clf.score(TEXTS).logits
    assert np.abs(int8.score(TEXTS).logits - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("family", "shares", "message"),
    [
        ("bert", 1, r"headroom.shares_query is 1; it must be true or false"),
        ("modernbert", True, "for networks whose positions are embeddings alone"),
    ],
)
def test_a_checkpoint_that_cannot_share_its_query_is_refused(
    tmp_path: Path, family: str, shares: object, message: str
) -> None:
    directory = write_checkpoint(tmp_path)
    fields = json.loads((directory / "config.json").read_text())
    fields |= {"model_type": family, "headroom": {"shares_query": shares}}
    (directory / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UnsupportedCheckpoint, match=message):
        read_config(directory)
