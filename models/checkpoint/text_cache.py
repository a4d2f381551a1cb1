"""Remembers encoded texts, because search traffic repeats itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
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
