"""Titles of one query share what comes before them, and nobody sees a difference but the time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom import Classifier, HeadMask
from headroom.models.batch import PackedBatch, pack
from headroom.models.ops import kernel_library
from headroom.models.study.runner import logits_under
from tests.checkpoints import WORDS
from tests.decoders import FAMILIES, write_decoder
from tests.models.reference import CPU

pytestmark = pytest.mark.usefixtures("one_thread")

TITLES = [" ".join(WORDS[start : start + 5]) for start in range(20)]
PAIRS = [
    *(("angle bracket", title) for title in TITLES[:7]),
    ("usb lamp?", TITLES[3]),
    *((query, title) for title in TITLES[5:9] for query in ("deck screws", "towel")),
    ("angle bracket", "steel " * 400),
    *((" ".join(WORDS * 12), title) for title in ("lamp", "steel " * 400, "towel")),
]
"""Of several queries, one with a single title; truncated titles, and queries that are truncated too."""
MASKS = [HeadMask.parse(spec, layers=3, heads=4) for spec in ("0.1,2.*", "1.0-1")]
SKIPPING = HeadMask.parse({"skip": [1], "off": [[0, 3]]}, layers=3, heads=4)


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("decoder") / request.param
    return write_decoder(directory, request.param, 4, max_position_embeddings=500)


@contextmanager
def packs_of(clf: Classifier) -> Iterator[list[PackedBatch]]:
    """Collect what the network computes."""
    packs: list[PackedBatch] = []
    forward = clf.network.forward

    def collect(batch: PackedBatch, *arguments: Any, **options: Any) -> Any:
        packs.append(batch)
        return forward(batch, *arguments, **options)

    clf.network.forward = collect  # type: ignore[method-assign]
    yield packs
    clf.network.forward = forward  # type: ignore[method-assign]


@pytest.mark.parametrize("kernels", [True, False])
def test_shared_beginnings_give_the_same_scores_under_any_masks(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, kernels: bool
) -> None:
    if not kernels:
        monkeypatch.setattr(kernel_library, "choice", lambda: kernel_library.Choice(None))
    clf = Classifier.load(checkpoint, "cpu", "float32")
    mixed = [[None, *MASKS, SKIPPING][row % 4] for row in range(len(PAIRS))]
    for masks in (None, MASKS[0], SKIPPING, mixed):
        of_each = masks if isinstance(masks, list) else [masks] * len(PAIRS)
        alone = [clf.score([pair], mask).logits for pair, mask in zip(PAIRS, of_each, strict=True)]
        with packs_of(clf) as packs:
            together = clf.score(PAIRS, masks).logits
        exact = np.concatenate(alone)
        assert np.abs(together - exact).max() <= 2e-5 * max(1.0, np.abs(exact).max())
        assert any(pack.prefixes is not None for pack in packs)


def test_deterministic_scores_do_not_depend_on_who_shares(checkpoint: Path) -> None:
    clf = Classifier.load(checkpoint, "cpu", "float32", deterministic=True)
    together = clf.score(PAIRS, [[None, *MASKS][row % 3] for row in range(len(PAIRS))]).logits
    for row, pair in enumerate(PAIRS):
        alone = clf.score([pair], [[None, *MASKS][row % 3]]).logits
        np.testing.assert_array_equal(together[row], alone[0])


def test_a_study_computes_a_beginning_once_and_gives_the_scores_that_are_served(checkpoint: Path) -> None:
    clf = Classifier.load(checkpoint, "cpu", "float32")
    pairs = PAIRS[:7]
    encoded = clf.tokenizer.encode(pairs)
    batch = pack(encoded, device=CPU, beginnings=clf.beginnings(encoded, [None] * len(pairs)))
    assert batch.prefixes is not None
    matrices = np.stack([mask.matrix for mask in MASKS])
    for mask, logits in zip(MASKS, logits_under(clf.network, batch, matrices), strict=True):
        ordered = np.take(logits, clf.config.label_order, axis=1)
        np.testing.assert_allclose(ordered, clf.score(pairs, mask).logits, atol=2e-5)


def test_twenty_titles_cost_their_beginning_once(checkpoint: Path) -> None:
    clf = Classifier.load(checkpoint, "cpu", "float32")
    pairs = [("angle bracket", title) for title in TITLES]
    encoded = clf.tokenizer.encode(pairs)
    start = encoded[0].title_start
    own = sum(len(pair) - start for pair in encoded)
    for masks, groups in ((None, 1), ([MASKS[row % 2] for row in range(20)], 2)):
        with packs_of(clf) as packs:
            clf.score(pairs, masks, batch_tokens=groups * start + own)
        assert sum(int(pack.lengths.sum()) for pack in packs) == groups * start + own
    with packs_of(clf) as packs:  # each pass computes it again
        clf.score(pairs, batch_tokens=start + own // 3)
    assert len(packs) > 2
    assert sum(int(pack.lengths.sum()) for pack in packs) == len(packs) * start + own
    assert all(pack.lengths.sum() <= start + own // 3 for pack in packs)
