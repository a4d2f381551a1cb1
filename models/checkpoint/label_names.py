"""Reads from the names of a checkpoint's labels which of them means more relevant."""

from __future__ import annotations

import re
from collections.abc import Sequence

SCALES: tuple[tuple[str, ...], ...] = (
    ("irrelevant", "related", "partial", "close", "exact"),  # of the shipped model, and ESCI's
    ("i", "c", "s", "e"),
    ("bad", "fair", "good", "excellent", "perfect"),  # web search, https://arxiv.org/abs/1306.2597
    ("irrelevant", "marginally relevant", "partially relevant", "relevant", "fairly relevant",
     "highly relevant", "perfectly relevant"),
    ("irrelevant", "related", "relevant", "highly relevant", "perfectly relevant"),  # TREC Deep Learning
    ("contradiction", "neutral", "entailment"),  # inference between sentences
    ("not entailment", "entailment"),
    ("very negative", "negative", "neutral", "positive", "very positive"),
    ("very low", "low", "medium", "high", "very high"),
    ("poor", "average", "good", "excellent"),
    ("no", "maybe", "yes"),
    ("no match", "partial match", "match", "exact match"),
    ("not duplicate", "duplicate"),
    ("false", "true"),
    ("worst", "bad", "neutral", "good", "best"),
)  # fmt: skip
"""Words that say their order, least relevant first. Labels are understood if all are on one of the scales."""

SAME_WORD = {
    "complement": "partial",  # ESCI, https://arxiv.org/abs/2206.06588
    "substitute": "close",
    "not relevant": "irrelevant",
    "non relevant": "irrelevant",
    "nonrelevant": "irrelevant",
    "unrelated": "irrelevant",
    "somewhat relevant": "partially relevant",
    "very relevant": "highly relevant",
    "non match": "no match",
    "not match": "no match",
}

_NUMBERED = re.compile(r"(\D*?)([-+]?\d+(?:\.\d+)?)(\D*)")


def order_by_name(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the indices of labels, least relevant first, if their names say their order; else None.

    Understood are the words of one of SCALES in any capitals; numbers, alone or with one word that all names
    share, such as `LABEL_0`, `grade 3` or `4 stars`; and rows of stars. A higher number is more relevant.

    >>> order_by_name(["Exact", "Substitute", "Complement", "Irrelevant"])
    (3, 2, 1, 0)
    >>> order_by_name(["5 stars", "1 star"])
    (1, 0)
    >>> order_by_name(["shoes", "hats"]) is None
    True
    """
    ranks = _numbers(names) or _ranks(names)
    if ranks is None or len(set(ranks)) < len(names):
        return None
    return tuple(sorted(range(len(names)), key=ranks.__getitem__))


def _numbers(names: Sequence[str]) -> list[float] | None:
    """Return the number that is in each name, if nothing else differs between them."""
    texts = [name.strip().casefold() for name in names]
    if all(text and set(text) == {"★"} for text in (text.replace("☆", "") for text in texts)):
        return [float(text.count("★")) for text in texts]
    found = [_NUMBERED.fullmatch(text) for text in texts]
    if not all(found):
        return None
    matches = [match for match in found if match is not None]
    words = {(match[1].strip(" _-:"), match[3].strip(" _-:").removesuffix("s")) for match in matches}
    return [float(match[2]) for match in matches] if len(words) == 1 else None


def _ranks(names: Sequence[str]) -> list[float] | None:
    """Return the rank of each name on the first scale that has all of them."""
    words = [" ".join(re.findall(r"\w+", name.casefold().replace("_", " "))) for name in names]
    words = [SAME_WORD.get(word, word) for word in words]
    for scale in SCALES:
        if set(words) <= set(scale):
            return [float(scale.index(word)) for word in words]
    return None
