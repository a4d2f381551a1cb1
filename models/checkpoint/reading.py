"""Reads texts in two more ways, for other servers' clients: one text alone, and the end of long texts."""

import sys
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from models.checkpoint.texts import EncodedText, TextCache
from models.checkpoint.tokenizer import EncodedPair, PairTokenizer


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
        self._cache = TextCache(0)
        self._keep_end = keep_end
        self._alone = alone if self.prompt is None else ()
        if keep_end:
            self.reach = sys.maxsize

    def characters(self, text: str) -> int:
        """Return about how many characters of a text are read."""
        return len(text) if self._keep_end else super().characters(text)

    def join(self, pairs: Sequence[tuple[str, str]], texts: Mapping[str, EncodedText]) -> list[EncodedPair]:
        """Return one EncodedPair per (query, title), in order. texts: from `encode_texts`."""
        parts = []
        for index, (query_text, title_text) in enumerate(pairs):
            query, title = texts[query_text], texts[title_text]
            kept = self.kept(query.tokens, title.tokens)
            if index in self._alone:
                kept = min(query.tokens, self.max_tokens - 2), 0
            truncated = sum(kept) < query.tokens + title.tokens
            parts.append((self._part(query, kept[0]), self._part(title, kept[1]), truncated))
        encoded = self.together(parts)
        for index, pair in enumerate(encoded):
            if index in self._alone:
                pair.ids = np.concatenate((pair.ids[: 1 + pair.query_tokens], pair.ids[-1:]))
        return encoded

    def _part(self, text: EncodedText, tokens: int) -> EncodedText:
        """Return the first tokens of a text, or the last ones."""
        start = len(text.ids) // 4 - tokens if self._keep_end else 0  # of int32
        return self.part(text, start, start + tokens)
