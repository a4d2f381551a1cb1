"""Reads texts in two more ways, for other servers' clients: one text alone, and the end of long texts."""

import sys
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from models.checkpoint.tokenizer import EncodedPair, EncodedText, PairTokenizer


class OtherReading(PairTokenizer):
    """A tokenizer that differs from a given one in what it keeps, or in what it pairs.

    keep_end: of texts that do not fit into the window together, keep the ends; `longest_first`, as of the
    beginnings.
    alone: the pairs, by their index in `join`, whose title is empty and whose query is encoded by itself: as
    [CLS] query [SEP], or whatever tokens begin and end the model's pairs; a prompt stays whole.

    It caches no text. To keep the ends, it reads each text to its end.
    """

    def __init__(self, tokenizer: PairTokenizer, *, keep_end: bool, alone: Collection[int] = ()) -> None:
        vars(self).update(vars(tokenizer))
        self._window = self._budget
        self._cache = type(self._cache)(0)
        self._budget = sys.maxsize if keep_end else self._window + self.template.tokens
        self._keep_end = keep_end
        self._alone = alone

    def characters(self, text: str) -> int:
        """Return about how many characters of a text are read until it overflows the window."""
        return len(text) if self._keep_end else super().characters(text)

    def join(self, pairs: Sequence[tuple[str, str]], texts: Mapping[str, EncodedText]) -> list[EncodedPair]:
        """Return one EncodedPair per (query, title), in order. texts: from `encode_texts`."""
        encoded = []
        for index, (query_text, title_text) in enumerate(pairs):
            query, title = texts[query_text], texts[title_text]
            alone = index in self._alone and self.prompt is None
            if alone:
                kept = min(query.tokens, self._window + self.template.tokens - 2), 0
            else:
                kept = self.kept(query.tokens, title.tokens, self._window)
            parts = {"query": self._part(query, kept[0]), "title": self._part(title, kept[1])}
            pair = super().join([("query", "title")], parts)[0]
            if alone:
                pair.ids = np.concatenate((pair.ids[: 1 + kept[0]], pair.ids[-1:]))
            pair.truncated = sum(kept) < query.tokens + title.tokens
            encoded.append(pair)
        return encoded

    def _part(self, text: EncodedText, tokens: int) -> EncodedText:
        """Return the first tokens of a text, or the last ones."""
        ids = np.frombuffer(text.ids, np.int32)
        ids = ids[len(ids) - tokens :] if self._keep_end else ids[:tokens]
        return EncodedText(ids.tobytes(), tokens, int(np.count_nonzero(ids == self.unknown)))
