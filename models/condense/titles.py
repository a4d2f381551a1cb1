"""The candidates of a query: tokenized once, and each distinct one scored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.checkpoint.tokenizer import EncodedPair, EncodedText, PairTokenizer
from models.condense.loss import Floats
from models.condense.search import Condensed


class Titles:
    """The titles of one request, at least one. encoded: the distinct ones, once they are read."""

    def __init__(self, tokenizer: PairTokenizer, titles: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.distinct = list(dict.fromkeys(titles))
        numbers = {title: number for number, title in enumerate(self.distinct)}
        self._number_of = np.array([numbers[title] for title in titles])
        self.encoded: dict[str, EncodedText] = {}

    def encode(self, queries: Sequence[str]) -> list[EncodedPair]:
        """Return each query with each distinct title, query by query."""
        if not self.encoded:
            self.encoded = self.tokenizer.encode_texts(self.distinct)
        pairs = [(query, title) for query in queries for title in self.distinct]
        return self.tokenizer.join(pairs, self.encoded | self.tokenizer.encode_texts(queries))

    def spread(self, judged: Floats, queries: int) -> Floats:
        """Return the judgments of `encode`'s pairs as (queries, titles, grades), repeated titles included."""
        return judged.reshape(queries, len(self.distinct), -1)[:, self._number_of]


def with_unknown(tokenizer: PairTokenizer, query: str, condensed: Condensed) -> Condensed:
    """Return the result with a note if the model's vocabulary cannot read all of the query."""
    text = tokenizer.encode_texts([query])[query]
    if not text.unknown:
        return condensed
    unread = f"The model's vocabulary cannot read {text.unknown} of the query's {text.tokens} tokens."
    return replace(condensed, note=" ".join(filter(None, (unread, condensed.note))))
