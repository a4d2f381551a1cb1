"""The tokens of a request's texts, read without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from models.checkpoint.chunks import ChunkedPair, LongTitles, chunk_pairs, encode_chunks
from models.checkpoint.tokenizer import EncodedPair, EncodedText, PairTokenizer

INLINE_CHARS = 4_000
"""Texts of up to this many characters together are tokenised at once; more would hold up the event loop."""

PORTION_CHARS = 65_536
"""Longer texts are tokenised in portions of this size on a thread, where requests take turns."""

STEPS = 32
"""How many titles, or portions of a title that is cut into chunks, are read before others take their turn."""


class Encoded(NamedTuple):
    """The tokens of a request's (query, title) pairs.

    rows: the sequences to score, in the order of the pairs: one per pair, or one per chunk of a long title.
    counts: how many rows each pair has; None: one.
    """

    pairs: Sequence[EncodedPair | ChunkedPair]
    rows: Sequence[EncodedPair]
    counts: Sequence[int] | None = None

    @classmethod
    def of_chunks(cls, pairs: Sequence[ChunkedPair]) -> Encoded:
        """Return pairs whose long titles are in chunks."""
        return cls(pairs, [row for pair in pairs for row in pair.rows], [len(pair.rows) for pair in pairs])

    def of_pairs(self, places: Sequence[int]) -> Encoded:
        """Return the pairs at these places, with their rows."""
        pairs = [self.pairs[place] for place in places]
        if self.counts is None:
            return Encoded(pairs, [self.rows[place] for place in places])
        return Encoded.of_chunks([pair for pair in pairs if isinstance(pair, ChunkedPair)])

    def tokens_of_pairs(self, places: Sequence[int]) -> list[int]:
        """Return the tokens of the rows of each of these pairs."""
        return [len(self.pairs[place]) for place in places]


class Encoder:
    """Tokenises the texts of requests; long ones on a thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    async def encode(
        self,
        tokenizer: PairTokenizer,
        texts: Sequence[tuple[str, str]],
        long_titles: LongTitles | None = None,
    ) -> Encoded:
        """Return the tokens of (query, title) pairs, long titles truncated or as `long_titles` says."""
        if long_titles is not None:
            return Encoded.of_chunks(await self._encode_chunks(tokenizer, texts, long_titles))
        pairs = await self._encode(tokenizer, texts)
        return Encoded(pairs, pairs)

    def close(self) -> None:
        """End the thread after the portion in hand."""
        self._thread.shutdown(wait=False)

    async def _encode(self, tokenizer: PairTokenizer, texts: Sequence[tuple[str, str]]) -> list[EncodedPair]:
        if _are_short(texts):
            return tokenizer.encode(texts)
        encoded = await self._encode_texts(tokenizer, texts)
        return await asyncio.get_running_loop().run_in_executor(self._thread, tokenizer.join, texts, encoded)

    async def _encode_chunks(
        self, tokenizer: PairTokenizer, texts: Sequence[tuple[str, str]], long_titles: LongTitles
    ) -> list[ChunkedPair]:
        if _are_short(texts):
            return encode_chunks(tokenizer, texts, long_titles)
        encoded = await self._encode_texts(tokenizer, texts)
        reading = chunk_pairs(tokenizer, texts, encoded, long_titles)
        chunked: list[ChunkedPair] = []
        while steps := await asyncio.get_running_loop().run_in_executor(
            self._thread, list, islice(reading, STEPS)
        ):
            chunked += [pair for pair in steps if pair is not None]
        return chunked

    async def _encode_texts(
        self, tokenizer: PairTokenizer, texts: Sequence[tuple[str, str]]
    ) -> dict[str, EncodedText]:
        loop = asyncio.get_running_loop()
        encoded: dict[str, EncodedText] = {}
        for portion in _portions(text for pair in texts for text in pair):
            encoded |= await loop.run_in_executor(self._thread, tokenizer.encode_texts, portion)
        return encoded


def _are_short(texts: Sequence[tuple[str, str]]) -> bool:
    return sum(len(query) + len(title) for query, title in texts) <= INLINE_CHARS


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
