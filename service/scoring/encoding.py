"""The tokens of a request's texts, read without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from models.checkpoint.tokenizer import EncodedPair, EncodedText, PairTokenizer

INLINE_CHARS = 4_000
"""Texts of up to this many characters together are tokenised at once; more would hold up the event loop."""

PORTION_CHARS = 65_536
"""Longer texts are tokenised in portions of this size on a thread, where requests take turns."""


class Encoder:
    """Tokenises the texts of requests; long ones on a thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    async def encode(self, tokenizer: PairTokenizer, texts: Sequence[tuple[str, str]]) -> list[EncodedPair]:
        """Return the tokens of (query, title) pairs, in their order."""
        if sum(len(query) + len(title) for query, title in texts) <= INLINE_CHARS:
            return tokenizer.encode(texts)
        loop = asyncio.get_running_loop()
        encoded: dict[str, EncodedText] = {}
        for portion in _portions(text for pair in texts for text in pair):
            encoded |= await loop.run_in_executor(self._thread, tokenizer.encode_texts, portion)
        return await loop.run_in_executor(self._thread, tokenizer.join, texts, encoded)

    def close(self) -> None:
        """End the thread after the portion in hand."""
        self._thread.shutdown(wait=False)


def _portions(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the distinct texts in lists of about PORTION_CHARS characters."""
    portion: list[str] = []
    chars = 0
    for text in dict.fromkeys(texts):
        portion.append(text)
        chars += len(text)
        if chars >= PORTION_CHARS:
            yield portion
            portion, chars = [], 0
    if portion:
        yield portion
