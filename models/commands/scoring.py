"""Scores many pairs with a progress bar on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.commands.terminal import counted

if TYPE_CHECKING:
    from models import Classifier, HeadMask
    from models.classifier import Scores

PORTION = 1024
"""Pairs that are scored between two movements of the bar."""


def scored(clf: Classifier, pairs: Sequence[tuple[str, str]], mask: HeadMask | None = None) -> Scores:
    """Return the scores of at least one (query, title) pair."""
    import numpy as np

    logits = []
    with counted("pairs", len(pairs)) as advance:
        for start in range(0, len(pairs), PORTION):
            portion = pairs[start : start + PORTION]
            logits.append(clf.score(portion, mask).logits)
            advance(len(portion))
    return clf.scores(np.concatenate(logits))
