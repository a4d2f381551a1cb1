"""The importance of a query's words by attention: how much the title looks at each word."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from models.classifier import Classifier
from models.condense.words import Word
from models.masks.head_mask import HeadMask


def attention_to_query(
    classifier: Classifier,
    pair: EncodedPair,
    heads: Sequence[tuple[int, int]],
    head_mask: HeadMask | None = None,
) -> NDArray[np.float32]:
    """Return the attention that each query token gets from the title, the mean over heads and title tokens.

    heads: (layer, head) each, at least one. From an empty title, all tokens look. Returns (query tokens,).
    """
    maps = classifier.attention(pair, heads, head_mask)  # (heads, n, n)
    special = set(pair.special)
    looking = [place for place in range(pair.title_start, len(pair)) if place not in special]
    received = maps[:, looking or slice(None)].mean((0, 1))
    return np.asarray(received[pair.query_start : pair.query_start + pair.query_tokens], np.float32)


def importance_of_words(
    tokenizer: PairTokenizer,
    query: str,
    words: Sequence[Word],
    received: Sequence[NDArray[np.float32]],
) -> list[float]:
    """Return the attention that each word gets, summed over its pieces, the mean over titles.

    received: by title, what `attention_to_query` returned for the query and that title. Pieces beyond the
    model's window get none.
    """
    starts = [start for portion in tokenizer.portions(query) for start in portion.starts]
    ends = [word.end for word in words]
    totals = np.zeros(len(words))
    for of_title in received:
        for start, value in zip(starts, of_title, strict=False):
            place = bisect_right(ends, start)  # a piece may begin with the space before its word
            if place < len(words):
                totals[place] += float(value)
    return [float(total) / max(len(received), 1) for total in totals]
