"""Cuts titles that are longer than the window into overlapping chunks; the best chunk's score counts (MaxP).

Dai & Callan, "Deeper Text Understanding for IR with Contextual Neural Language Modeling", SIGIR 2019, score
passages and take the best. Each chunk here is as long as the window allows beside the query, and a sixth of
it is in the next one too, so that a phrase of up to that length is whole in some chunk. Jina's reranker and
QAnything overlap 80 of 512 tokens, about as much; Dai & Callan half, at nearly twice the cost.
"""

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from headroom.models.checkpoint.prompt import Around
from headroom.models.checkpoint.texts import EncodedText, Portion
from headroom.models.checkpoint.tokenizer import EncodedPair, Pairs, PairTokenizer
from headroom.models.errors import ModelError

Overflow = Literal["truncate", "chunks"]

OVERLAP_PART = 6
"""Two chunks share at least one part in this many of the room for a chunk, and less than two parts."""


@dataclass(frozen=True, slots=True)
class LongTitles:
    """Limits on what is read of titles that do not fit into the window beside their query."""

    overflow: Overflow = "truncate"  # reads the beginning of each; "chunks" reads all of it, chunk by chunk
    max_tokens: int | None = None  # titles are cut off after this many tokens; None: no such limit
    max_chunks: int | None = None  # or after this many chunks

    def __post_init__(self) -> None:
        if self.overflow not in get_args(Overflow):
            raise ModelError(f"overflow {self.overflow!r} is neither 'truncate' nor 'chunks'")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A title's best chunk: the characters [start, end), in code points."""

    index: int  # its number among the title's, from 0
    chunks: int  # how many the title has
    start: int
    end: int


@dataclass(slots=True, eq=False)
class ChunkedPair:
    """A query and a title, encoded as one row per chunk of the title."""

    rows: list[EncodedPair]  # at least one
    spans: list[tuple[int, int]]  # the characters [start, end) of each chunk; none if the title is not cut up
    truncated: bool  # whether some text of query or title is in no row

    @property
    def query_tokens(self) -> int:
        """Return the tokens of the query, which are the same in each row."""
        return self.rows[0].query_tokens

    @property
    def has_empty_title(self) -> bool:
        """Return whether nothing of the title is in the tokens."""
        return self.rows[0].has_empty_title

    @property
    def unknown_tokens(self) -> int:
        """Return how many [UNK] all rows hold."""
        return sum(row.unknown_tokens for row in self.rows)

    def __len__(self) -> int:
        """Return the tokens of all rows."""
        return sum(map(len, self.rows))


def encode_chunks(tokenizer: PairTokenizer, pairs: Pairs, long_titles: LongTitles) -> list[ChunkedPair]:
    """Return one ChunkedPair per (query, title), in order. Raises ModelError for a lone surrogate."""
    pairs = tokenizer.padded_pairs(pairs)
    texts = tokenizer.encode_texts({text for pair in pairs for text in pair})
    return [pair for pair in chunk_pairs(tokenizer, pairs, texts, long_titles) if pair is not None]


def chunk_pairs(
    tokenizer: PairTokenizer,
    pairs: Pairs,
    texts: Mapping[str, EncodedText],
    long_titles: LongTitles,
) -> Iterator[ChunkedPair | None]:
    """Yield one ChunkedPair per (query, title), in order, and None after each portion of a long title.

    pairs: from `PairTokenizer.padded_pairs`. texts: from `encode_texts` of them. A title that fits, and each
    with "truncate", is encoded whole or cut at the window's end. Beside a title that is cut up, a query
    keeps at most half of the window, in a prompt three quarters.
    """
    max_tokens = long_titles.max_tokens or sys.maxsize
    for query_text, title_text in pairs:
        query = texts[query_text]
        title = texts[title_text]
        is_shortened = title.tokens > max_tokens
        if is_shortened:
            title = tokenizer.part(title, 0, max_tokens)
        query_tokens, room = tokenizer.kept(query.tokens, title.tokens)
        if long_titles.overflow == "truncate" or title.tokens <= room or not room:
            (pair,) = tokenizer.join([("query", "title")], {"query": query, "title": title})
            yield ChunkedPair([pair], [], pair.truncated or is_shortened)
            continue
        whole = _WholeTitle()
        limit = max_tokens
        if long_titles.max_chunks is not None:
            limit = min(limit, long_titles.max_chunks * room)
        for portion in tokenizer.portions(title_text):
            whole.append(portion)
            yield None
            if len(whole.ids) > limit:
                break
        windows = chunk_windows(whole.word_starts[:max_tokens], room, long_titles.max_chunks)
        beginning = tokenizer.part(query, 0, query_tokens)
        title = EncodedText(whole.ids.tobytes(), len(whole.ids), unknown=0)
        yield ChunkedPair(
            rows=[tokenizer.pair(beginning, tokenizer.part(title, *window)) for window in windows],
            spans=whole.spans(windows, len(title_text), tokenizer.around_title),
            truncated=windows[-1][1] < title.tokens or query_tokens < query.tokens,
        )


class _WholeTitle:
    """The tokens of a long title that are read, in arrays: lists take ten times the memory."""

    def __init__(self) -> None:
        self.ids = array("i")
        self.starts = array("i")  # the first character of each token
        self.word_starts = bytearray()  # whether each token begins a word

    def append(self, portion: Portion) -> None:
        """Add the tokens that follow."""
        self.ids.extend(portion.ids)
        self.starts.extend(portion.starts)
        self.word_starts.extend(portion.word_starts)

    def spans(
        self, windows: Sequence[tuple[int, int]], characters: int, around: Around
    ) -> list[tuple[int, int]]:
        """Return the title's own characters [start, end) of each window of tokens. characters: of the title
        with what is encoded `around` it."""
        token_starts = [*self.starts, characters]
        lead = len(around.lead)
        title_end = characters - len(around.trail)
        spans = []
        for first, end in windows:
            start = max(0, token_starts[first] - lead) if first else 0
            spans.append((start, min(token_starts[end], title_end) - lead))
        return spans


def chunk_windows(
    word_starts: Sequence[int], room: int, max_chunks: int | None = None
) -> list[tuple[int, int]]:
    """Return the tokens [start, end) of each chunk of a title of at least one token.

    word_starts: whether each token begins a word. A chunk has at most `room` tokens. It begins and ends
    between two words, unless a word is so long that the chunk would stay half empty, or overlap the one
    before by twice as much as it should. The last chunk is moved back until it is full, because a few words
    without context are judged badly. The `max_chunks`-th is as full as a truncated title.
    """
    overlap = room // OVERLAP_PART
    windows: list[tuple[int, int]] = []
    start = 0
    while (end := start + room) < len(word_starts):
        if len(windows) + 1 == max_chunks:
            return [*windows, (start, end)]
        end = _last_word_start(word_starts, end, after=end - (room + 1) // 2)
        windows.append((start, end))
        start = _last_word_start(word_starts, end - overlap, after=end - 2 * overlap)
    full = max(0, len(word_starts) - room)
    last = next((index for index in range(full, start) if word_starts[index]), start)
    return [*windows, (last, len(word_starts))]


def best_chunks(
    scores: Sequence[float], pairs: Sequence[ChunkedPair]
) -> tuple[list[int], list[Chunk | None]]:
    """Return the row with the highest score of each pair, the first of equal ones, and its chunk, None if the
    title is not cut up. scores: one per row of all pairs, in order."""
    best: list[int] = []
    chunks: list[Chunk | None] = []
    end = 0
    for pair in pairs:
        start = end
        end += len(pair.rows)
        best_row = max(range(start, end), key=scores.__getitem__)
        best.append(best_row)
        index = best_row - start
        chunks.append(Chunk(index, len(pair.rows), *pair.spans[index]) if pair.spans else None)
    return best, chunks


def _last_word_start(word_starts: Sequence[int], index: int, *, after: int) -> int:
    """Return the last word start in (after, index]; `index` if there is none."""
    return next((start for start in range(index, after, -1) if word_starts[start]), index)
