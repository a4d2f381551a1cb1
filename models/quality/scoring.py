"""Scores many pairs, and shows how far it is."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Return the scores of at least one (query, title) pair."""
    logits = []
    with counted("pairs", len(pairs)) as advance:
        for start in range(0, len(pairs), PORTION):
            portion = pairs[start : start + PORTION]
            logits.append(clf.score(portion, head_mask=mask).logits)
            advance(len(portion))
    return clf.scores(np.concatenate(logits))
