"""Remembers the ids of words, because new texts are made of known words.

For BERT's splitter a text's ids are those of its words, one after the other: ASCII whitespace and punctuation
always separate, and neither case nor accents change across them. Looking words up takes a seventh of the time
that the tokenizers library takes for their text (docs/PERFORMANCE.md, "014 Feeding a GPU").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain

WORDS = 32_768
"""How many words fill a generation. The last two are kept, some 14 MiB at most. A word that comes again moves
to the younger one, so common words are never forgotten."""

LONGEST = 32
"""Characters of the longest word that is remembered."""

_find_words = re.compile(r"[^\t\n\r !-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]").findall


class WordCache:
    """Encodes texts word by word. Threads may share it.

    encode: returns the ids of each text of a list. size: of a generation.
    """

    def __init__(self, encode: Callable[[list[str]], list[bytes]], size: int = WORDS) -> None:
        self._encode = encode
        self._size = size
        self._ids: dict[str, bytes] = {}
        self._older: dict[str, bytes] = {}

    def ids(self, texts: list[str]) -> list[bytes]:
        """Return the ids of each text."""
        words_of = [_find_words(text) for text in texts]
        known = self._ids
        try:
            return [b"".join(map(known.__getitem__, words)) for words in words_of]
        except KeyError:
            return self._learn(words_of)

    def _learn(self, words_of: list[list[str]]) -> list[bytes]:
        """Return the ids of texts, given as their words, and remember the words that are not too long."""
        known, older = self._ids, self._older
        found: dict[str, bytes] = {}
        missing = []
        for word in set(chain.from_iterable(words_of)):
            ids = known.get(word)
            if ids is None and (ids := older.get(word)) is not None:
                known[word] = ids
            if ids is None:
                missing.append(word)
            else:
                found[word] = ids
        for word, ids in zip(missing, self._encode(missing), strict=True):
            found[word] = ids
            if len(word) <= LONGEST:
                known[word] = ids
        if len(known) > self._size:
            self._older, self._ids = known, {}
        return [b"".join(map(found.__getitem__, words)) for words in words_of]
