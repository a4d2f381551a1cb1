"""Remembers encoded texts, because search traffic repeats itself, and words, because new texts are made of
known words.

For BERT's splitter a text's ids are those of its words, one after the other: ASCII whitespace and punctuation
always separate, and neither case nor accents change across them. What stands between two spaces ("12-gauge,")
is looked up first, and if it is not known, its words ("12", "-", "gauge", ","). That takes a seventh of the
time that the tokenizers library takes for the text.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")

_CACHED_CHARACTERS = 512  # longer texts are rare, and 65,536 of them would take too much memory


class TextCache(Generic[T]):
    """A cache of the texts that were encoded last. Threads may share it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._texts: OrderedDict[str, T] = OrderedDict()
        self._lock = Lock()

    def get(self, texts: Iterable[str]) -> tuple[dict[str, T], list[str]]:
        """Return the texts that are cached, and a list of the others."""
        cached: dict[str, T] = {}
        missing: list[str] = []
        with self._lock:
            for text in texts:
                if (encoded := self._texts.get(text)) is None:
                    missing.append(text)
                else:
                    self._texts.move_to_end(text)
                    cached[text] = encoded
        return cached, missing

    def put(self, texts: dict[str, T]) -> None:
        short = {text: encoded for text, encoded in texts.items() if len(text) <= _CACHED_CHARACTERS}
        with self._lock:
            self._texts.update(short)
            while len(self._texts) > self._size:
                self._texts.popitem(last=False)


WORDS = 65_536
"""How many words are remembered, in some 14 MiB."""

LONGEST = 32
"""Characters of the longest word that is remembered."""

_find_words = re.compile(r"[^\t\n\r !-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]").findall


class WordCache:
    """Encodes texts word by word. Threads may share it.

    encode: returns the ids of a word, or of one punctuation character. size: how many are remembered.
    """

    def __init__(self, encode: Callable[[str], bytes], size: int = WORDS) -> None:
        self._encode = encode
        self._remembered = lru_cache(size)(self._ids)

    def ids(self, texts: list[str]) -> list[bytes]:
        """Return the ids of each text."""
        return [self._joined(text.split(" ")) for text in texts]

    def _joined(self, words: list[str]) -> bytes:
        if max(map(len, words), default=0) <= LONGEST:  # nearly always
            return b"".join(map(self._remembered, words))
        return b"".join(self._ids(word) if len(word) > LONGEST else self._remembered(word) for word in words)

    def _ids(self, word: str) -> bytes:
        """Return the ids of what stands between two spaces."""
        words = [word] if word.isalnum() else _find_words(word)
        return self._encode(word) if words == [word] else self._joined(words)
