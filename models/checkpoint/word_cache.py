"""Remembers the ids of words, because new texts are made of known words.

For BERT's splitter a text's ids are those of its words, one after the other: ASCII whitespace and punctuation
always separate, and neither case nor accents change across them. Finding the words in Python and looking them
up takes a quarter of the time that the tokenizers library takes for the text
(docs/PERFORMANCE.md, "Behind the decisions").
"""

from __future__ import annotations

import re
from collections.abc import Callable

WORDS = 32_768
"""How many words are remembered: some 6 MiB."""

LONGEST = 32
"""Characters of the longest word that is remembered."""

_find_words = re.compile(r"[^\t\n\r !-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]").findall


class WordCache:
    """Encodes texts word by word. Threads may share it.

    encode: returns the ids of each text of a list, as bytes.
    """

    def __init__(self, encode: Callable[[list[str]], list[bytes]], size: int = WORDS) -> None:
        self._encode = encode
        self._size = size
        self._ids: dict[str, bytes] = {}

    def ids(self, text: str) -> bytes:
        """Return the ids of a text."""
        words = _find_words(text)
        try:
            return b"".join(map(self._ids.__getitem__, words))
        except KeyError:
            return self._learn(words)

    def _learn(self, words: list[str]) -> bytes:
        """Return the ids of the words of a text, and remember those that are not too long."""
        known = self._ids
        missing = [word for word in dict.fromkeys(words) if word not in known]
        if len(known) + len(missing) > self._size:
            known, missing = {}, list(dict.fromkeys(words))
            self._ids = known  # other threads finish with the one before
        new = dict(zip(missing, self._encode(missing), strict=True))
        known.update((word, ids) for word, ids in new.items() if len(word) <= LONGEST)
        return b"".join([new[word] if word in new else known[word] for word in words])
