"""The tokens of a request's texts, read without holding up the event loop."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from math import inf
from typing import NamedTuple

from models.checkpoint.chunks import ChunkedPair, LongTitles, chunk_pairs
from models.checkpoint.tokenizer import EncodedPair, EncodedText, PairTokenizer
from service.scoring.turns import Turns

INLINE_CHARS = 4_000
"""Texts of up to this many characters together are tokenised at once; more would hold up the event loop. One
that is not ASCII counts twice, because it may take several times as long."""

PORTION_CHARS = 4_096
"""Longer texts are tokenised in portions of this size on a thread, where requests take turns."""


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
    """Tokenises the texts of requests; long ones on a thread of its own.

    max_wait_s: as `Turns` takes it.
    """

    def __init__(self, max_wait_s: float = inf) -> None:
        self._turns = Turns(max_wait_s)

    @property
    def waiting_chars(self) -> int:
        """Return how many characters wait to be read."""
        return self._turns.chars

    async def encode(
        self,
        tokenizer: PairTokenizer,
        texts: Sequence[tuple[str, str]],
        long_titles: LongTitles | None = None,
    ) -> Encoded:
        """Return the tokens of (query, title) pairs, long titles truncated or as `long_titles` says.

        Raises QueueFull if too much text waits.
        """
        reading = _read_pairs(tokenizer, texts, long_titles)
        distinct = {text for pair in texts for text in pair}
        if sum(len(text) * (1 if text.isascii() else 2) for text in distinct) <= INLINE_CHARS:
            return _result(reading)
        is_whole = long_titles is not None and long_titles.overflow == "chunks"
        return await self._turns.run(reading, sum(map(len if is_whole else tokenizer.characters, distinct)))

    async def encode_texts(self, tokenizer: PairTokenizer, texts: Iterable[str]) -> dict[str, EncodedText]:
        """Return the tokens of texts, for `PairTokenizer.join`. Raises QueueFull if too much text waits."""
        texts = list(texts)
        return await self._turns.run(_read_texts(tokenizer, texts), sum(map(tokenizer.characters, texts)))

    def close(self) -> None:
        """End the thread after the turn in hand."""
        self._turns.close()


def _read_texts(
    tokenizer: PairTokenizer, texts: Iterable[str]
) -> Generator[None, None, dict[str, EncodedText]]:
    encoded: dict[str, EncodedText] = {}
    for part in tokenizer.reading(texts, PORTION_CHARS):
        encoded |= part
        yield
    return encoded


def _read_pairs(
    tokenizer: PairTokenizer, pairs: Sequence[tuple[str, str]], long_titles: LongTitles | None
) -> Generator[None, None, Encoded]:
    encoded = yield from _read_texts(tokenizer, {text for pair in pairs for text in pair})
    if long_titles is None:
        joined = tokenizer.join(pairs, encoded)
        return Encoded(joined, joined)
    chunked: list[ChunkedPair] = []
    for pair in chunk_pairs(tokenizer, pairs, encoded, long_titles):
        if pair is not None:
            chunked.append(pair)
        yield
    return Encoded.of_chunks(chunked)


def _result(reading: Generator[None, None, Encoded]) -> Encoded:
    """Run the steps of a reading at once."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            encoded: Encoded = end.value
            return encoded
