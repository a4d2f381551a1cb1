"""Scores many pairs, and shows how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headroom.models.terminal import counted

if TYPE_CHECKING:
    from headroom.models.classifier import Classifier
    from headroom.models.masks.head_mask import HeadMask
    from headroom.models.scores import Scores

PORTION = 1024
"""Pairs that are scored between two movements of a bar."""


def scored(clf: Classifier, pairs: Sequence[tuple[str, str]], mask: HeadMask | None = None) -> Scores:
    """Return the scores of at least one (query, title) pair, and show how many are done."""
    with counted("pairs", len(pairs)) as advance:
        return scored_in_portions(clf, pairs, advance, mask)


def scored_in_portions(
    clf: Classifier,
    pairs: Sequence[tuple[str, str]],
    advance: Callable[[int], None],
    mask: HeadMask | None = None,
) -> Scores:
    """Return the scores of at least one pair. advance: is told how many more are done."""
    logits = []
    for start in range(0, len(pairs), PORTION):
        portion = pairs[start : start + PORTION]
        logits.append(clf.score(portion, head_mask=mask).logits)
        advance(len(portion))
    return clf.scores(np.concatenate(logits))
