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


WORDS = 32_768
"""How many words fill a generation. The last two are kept, some 14 MiB at most. A word that comes again moves
to the younger one, so common words are never forgotten."""

LONGEST = 32
"""Characters of the longest word that is remembered."""

_find_words = re.compile(r"[^\t\n\r !-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]").findall


class WordCache:
    """Encodes texts word by word. Threads may share it.

    encode: returns the ids of a word, or of one punctuation character. size: of a generation.
    """

    def __init__(self, encode: Callable[[str], bytes], size: int = WORDS) -> None:
        self._encode = encode
        self._size = size
        self._words = _Generation(encode, {})

    def ids(self, texts: list[str]) -> list[bytes]:
        """Return the ids of each text."""
        words = self._words
        found = [b"".join(map(words.__getitem__, text.split(" "))) for text in texts]
        if len(words) > self._size:
            self._words = _Generation(self._encode, older=words)
            words.older = {}
        return found


class _Generation(dict[str, bytes]):
    """The ids of words; one that is missing is taken from the older generation, or encoded."""

    def __init__(self, encode: Callable[[str], bytes], older: dict[str, bytes]) -> None:
        self.older = older
        self._encode = encode

    def __missing__(self, word: str) -> bytes:
        ids = dict.get(self.older, word)
        if ids is None:
            words = [word] if word.isalnum() else _find_words(word)
            ids = self._encode(word) if words == [word] else b"".join(map(self.__getitem__, words))
        if len(word) <= LONGEST:
            self[word] = ids
        return ids
