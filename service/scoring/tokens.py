"""The tokens of long texts, which are read on one thread, where requests take turns."""

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, NamedTuple, TypeVar

from headroom.models.checkpoint.chunks import ChunkedPair, LongTitles, chunk_pairs
from headroom.models.checkpoint.texts import EncodedText
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from headroom.service.errors import Draining, QueueFull
from headroom.service.off_loop import in_thread

T = TypeVar("T")

INLINE_CHARS = 4_000
"""Texts of up to this many characters together are tokenised on the event loop; more would hold it up. One
that is not ASCII counts twice, because it may take several times as long."""

PORTION_CHARS = 4_096
"""Longer texts are tokenised in portions of this size on the thread."""

TURN_S = 0.01
"""Seconds after which others get their turn; a single portion may take longer."""

CHARS_PER_SECOND = 500_000.0
"""Limits how much text waits. It is the rate of new Chinese text, the slowest for a BERT tokenizer. What the
last requests took says nothing about the next ones, because known texts cost next to nothing."""


Pair = EncodedPair | ChunkedPair
"""The tokens of a query and a title, whose rows may be several: one per chunk of a long title."""


class TooManyRows(Exception):
    """The long titles of a request are cut into more chunks than it may have rows.

    rows: how many there were when reading stopped.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class _Text(NamedTuple):
    """A text that waits to be read, or to be read on. used_s: how long it has had the thread so far."""

    used_s: float
    number: int
    portions: Generator[object, None, Any]
    read: asyncio.Future[Any]


class Encoder:
    """Tokenises long texts of requests on a thread of its own, one turn after the other.

    The next turn goes to the request that has had the thread for the shortest time so far, so a short request
    overtakes a long one, and equal ones take turns.

    max_wait_s: a text is refused if what is ahead of it takes longer than this, at CHARS_PER_SECOND.
    on_refused: called with the seconds that a refused text would take, at that rate.
    waiting_chars: how many characters wait to be read.
    """

    def __init__(self, max_wait_s: float = inf, on_refused: Callable[[float], None] = lambda _: None) -> None:
        self.waiting_chars = 0
        self._max_wait_s = max_wait_s
        self._on_refused = on_refused
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._requests = 0
        self._numbers = count()
        self._waiting: list[_Text] = []
        self._reading: asyncio.Task[None] | None = None

    async def encode(
        self,
        tokenizer: PairTokenizer,
        pairs: Sequence[tuple[str, str]],
        long_titles: LongTitles | None = None,
        max_rows: int = sys.maxsize,
    ) -> Sequence[Pair]:
        """Return the tokens of (query, title) pairs.

        long_titles: how titles beyond the window are cut into chunks; None: they are truncated.
        max_rows: how many rows the pairs may have together if long titles are cut into chunks.
        Raises QueueFull if too much text waits, and TooManyRows.
        """
        distinct = {text for pair in pairs for text in pair}
        # A long title is cut into chunks for each of its pairs, also if another pair has the same.
        texts = distinct if long_titles is None else [text for pair in pairs for text in pair]
        portions = _read_pairs(tokenizer, pairs, distinct, long_titles, max_rows)
        is_whole = long_titles is not None and long_titles.overflow == "chunks"
        return await self.read(portions, sum(map(len if is_whole else tokenizer.characters, texts)))

    async def encode_texts(self, tokenizer: PairTokenizer, texts: Iterable[str]) -> dict[str, EncodedText]:
        """Return the tokens of texts, for `PairTokenizer.join`. Raises QueueFull if too much text waits."""
        texts = list(texts)
        return await self.read(_read_texts(tokenizer, texts), sum(map(tokenizer.characters, texts)))

    async def read(self, portions: Generator[object, None, T], chars: int) -> T:
        """Run a generator to its end on the thread, and return its result.

        chars: about how many characters it reads.
        Raises QueueFull if too much text waits for the thread; a text that finds it free is never refused.
        """
        ahead = min(self.waiting_chars, self._requests * chars)  # nobody else gets more before it is done
        if (wait_s := ahead / CHARS_PER_SECOND) > self._max_wait_s:
            self._on_refused(chars / CHARS_PER_SECOND)
            retry_after = min(60.0, max(1.0, wait_s))
            raise QueueFull(retry_after, message="Too much text waits to be read; try again later.")
        text = _Text(0.0, next(self._numbers), portions, asyncio.get_running_loop().create_future())
        self.waiting_chars += chars
        self._requests += 1
        heappush(self._waiting, text)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all())
        try:
            result: T = await text.read
            return result
        finally:
            self.waiting_chars -= chars
            self._requests -= 1

    def close(self) -> None:
        """End the thread after its current turn."""
        self._thread.shutdown(wait=False)

    async def _read_all(self) -> None:
        """Give the thread to one text after the other, until none waits."""
        while self._waiting:
            text = heappop(self._waiting)
            if text.read.done():  # its request was given up
                continue
            try:
                end, seconds = await in_thread(self._thread, _read_for_a_turn, text.portions)
            except Draining as draining:
                end = draining
                seconds = 0.0
            if end is None:
                heappush(self._waiting, text._replace(used_s=text.used_s + seconds))
            elif not text.read.done():
                if isinstance(end, StopIteration):
                    text.read.set_result(end.value)
                else:
                    text.read.set_exception(end)
        self._reading = None


def _read_for_a_turn(portions: Generator[object, None, Any]) -> tuple[BaseException | None, float]:
    """Read portions for one turn. Return how the generator ended, None if it goes on, and the seconds taken.

    It ends with StopIteration or with an error, which may be a BaseException: a panic of the library in Rust.
    """
    began = time.monotonic()
    while True:
        try:
            next(portions)
        except BaseException as end:
            return end, time.monotonic() - began
        if (seconds := time.monotonic() - began) >= TURN_S:
            return None, seconds


def _read_texts(
    tokenizer: PairTokenizer, texts: Iterable[str]
) -> Generator[None, None, dict[str, EncodedText]]:
    encoded: dict[str, EncodedText] = {}
    for part in tokenizer.reading(texts, PORTION_CHARS):
        encoded |= part
        yield
    return encoded


def _read_pairs(
    tokenizer: PairTokenizer,
    pairs: Sequence[tuple[str, str]],
    texts: Iterable[str],
    long_titles: LongTitles | None,
    max_rows: int,
) -> Generator[None, None, Sequence[Pair]]:
    pairs = tokenizer.padded_pairs(pairs)
    if tokenizer.prompt is not None:
        texts = {text for pair in pairs for text in pair}
    encoded = yield from _read_texts(tokenizer, texts)
    if long_titles is None:
        return tokenizer.join(pairs, encoded)
    chunked: list[ChunkedPair] = []
    rows = 0
    for pair in chunk_pairs(tokenizer, pairs, encoded, long_titles):
        if pair is not None:
            chunked.append(pair)
            rows += len(pair.rows)
            if rows > max_rows:
                raise TooManyRows(rows)
        yield
    return chunked


def read_to_the_end(portions: Generator[object, None, T]) -> T:
    """Return what a generator returns."""
    while True:
        try:
            next(portions)
        except StopIteration as end:
            result: T = end.value
            return result
