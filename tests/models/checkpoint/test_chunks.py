"""Long titles are read whole, in overlapping chunks, and the best chunk's score counts."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headroom.models.checkpoint.chunks import (
    OVERLAP_PART,
    Chunk,
    ChunkedPair,
    LongTitles,
    best_chunks,
    chunk_windows,
    encode_chunks,
)
from headroom.models.checkpoint.texts import ID_BYTES
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from tests.checkpoints import write_checkpoint
from tests.families import byte_level_tokenizer, unigram_tokenizer
from tests.models.checkpoint.library import SIZE, library_tokenizer, load, write

CHUNKS = LongTitles("chunks")
SHORT = EncodedPair(bytes(4 * ID_BYTES), 1, 0, truncated=False)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PairTokenizer:
    return load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")), max_tokens=24)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory, tokenizer: PairTokenizer) -> dict[str, PairTokenizer]:
    """Tokenizers of every kind, with a window of 24 tokens; one cannot read a text in segments."""
    added = library_tokenizer()
    added.add_tokens(["steel wood"])
    directory = write(tmp_path_factory.mktemp("added"), added)
    readers = {"word pieces": tokenizer, "added": load(directory, max_tokens=24, vocab_size=SIZE + 1)}
    for kind, text in (("byte level", byte_level_tokenizer()), ("unigram", unigram_tokenizer())):
        directory = tmp_path_factory.mktemp("family")
        (directory / "tokenizer.json").write_text(text, encoding="utf-8")
        readers[kind] = load(directory, max_tokens=24, vocab_size=400)
    return readers


def one(tokenizer: PairTokenizer, query: str, title: str, long_titles: LongTitles = CHUNKS) -> ChunkedPair:
    return encode_chunks(tokenizer, [(query, title)], long_titles)[0]


def title_ids(pair: ChunkedPair) -> list[list[int]]:
    return [row.ids.tolist()[row.title_start : -1] for row in pair.rows]


@given(st.lists(st.booleans(), min_size=1, max_size=200), st.integers(1, 40))
@example([False] * 100, 12)
@example([True] * 13, 12)
@example([True] * 12, 12)
def test_windows_cover_every_token_and_overlap_as_said(word_starts: list[bool], room: int) -> None:
    windows = chunk_windows(word_starts, room)
    overlap = room // OVERLAP_PART

    assert (windows[0][0], windows[-1][1]) == (0, len(word_starts))
    assert all(0 < end - start <= room for start, end in windows)
    for before, after in pairwise(windows):
        assert before[0] < after[0]
        assert before[1] < after[1]
        assert after[0] <= before[1] - overlap
        if after is not windows[-1]:  # which is moved back until it is full
            assert after[0] > before[1] - max(1, 2 * overlap)
    assert len(windows) <= 1 + max(0, len(word_starts) - room) // (room // 2 + 1 - 2 * overlap or 1) + 1


@given(st.lists(st.integers(1, 6), min_size=1, max_size=60), st.integers(24, 40))
def test_no_word_is_split_between_chunks(words: list[int], room: int) -> None:
    """Words of 1 to 6 tokens, none longer than the overlap may grow."""
    if max(words) > room // OVERLAP_PART:
        words = [min(word, room // OVERLAP_PART) for word in words]
    word_starts = [place == 0 for word in words for place in range(word)]

    for start, end in chunk_windows(word_starts, room):
        assert word_starts[start]
        assert end == len(word_starts) or word_starts[end]


WORDS = "lamp red, 中文 é e\u0301 \0 \u200b 12-gauge [SEP] 한 😀 \n".split(" ")
WORDS += ["steel wood", "q" * 30]


@given(st.lists(st.sampled_from(WORDS), max_size=60), st.sampled_from([" ", "", "  "]))
def test_every_character_of_a_title_is_in_some_chunk(
    readers: dict[str, PairTokenizer], words: list[str], gap: str
) -> None:
    title = gap.join(words)
    for reader in readers.values():
        pair = one(reader, "angle bracket", title)
        assert all(len(row) <= 24 for row in pair.rows)
        if not pair.spans:
            assert pair.rows[0].ids.tolist() == reader.encode([("angle bracket", title)])[0].ids.tolist()
            continue
        assert (pair.spans[0][0], pair.spans[-1][1]) == (0, len(title))
        assert all(after[0] <= before[1] for before, after in pairwise(pair.spans))
        whole = [id_ for portion in reader.portions(title) for id_ in portion.ids]
        read = 0
        for ids in title_ids(pair):  # each begins in what was read, and together they are the title
            start = next(at for at in range(read, -1, -1) if whole[at : at + len(ids)] == ids)
            read = max(read, start + len(ids))
        assert read == len(whole)


@given(st.lists(st.sampled_from(["lamp", "steel", "red,", "gauge", "12-gauge", "中"]), min_size=30))
def test_a_chunks_text_alone_gives_its_tokens(tokenizer: PairTokenizer, words: list[str]) -> None:
    title = " ".join(words)
    pair = one(tokenizer, "angle bracket", title)

    assert len(pair.spans) > 1
    for (start, end), row in zip(pair.spans, pair.rows, strict=True):
        assert row.ids.tolist() == tokenizer.encode([("angle bracket", title[start:end])])[0].ids.tolist()


def test_a_query_longer_than_half_the_window_leaves_half_to_the_chunks(tokenizer: PairTokenizer) -> None:
    pair = one(tokenizer, "angle bracket " * 30, "steel wood lamp " * 20)

    assert {row.query_tokens for row in pair.rows} == {10}
    assert max(len(ids) for ids in title_ids(pair)) == 11
    assert pair.truncated
    # A short title keeps what it needs, and the query the rest.
    fits = one(tokenizer, "angle bracket " * 30, "steel wood lamp")
    assert ([row.query_tokens for row in fits.rows], fits.spans, fits.truncated) == ([18], [], True)


def test_limits_cut_a_title_off_and_say_so(tokenizer: PairTokenizer) -> None:
    title = "steel wood lamp red " * 30
    cut = one(tokenizer, "angle", title, LongTitles("chunks", max_tokens=50))
    assert sum(map(len, title_ids(cut))) >= 50
    assert cut.truncated
    assert title[: cut.spans[-1][1]].split() == title.split()[:50]

    few = one(tokenizer, "angle", title, LongTitles("chunks", max_chunks=2))
    assert (len(few.rows), few.truncated) == (2, True)
    assert few.spans[0] == one(tokenizer, "angle", title).spans[0]

    short = one(tokenizer, "angle", title, LongTitles("truncate", max_tokens=5))
    assert tokenizer.tokens(short.rows[0]) == ["[CLS]", "angle", "[SEP]", *title.split()[:5], "[SEP]"]
    assert (short.truncated, short.spans) == (True, [])
    assert not one(tokenizer, "angle", "steel wood", LongTitles("truncate", max_tokens=5)).truncated

    # One chunk is what truncation reads.
    single = one(tokenizer, "angle", title, LongTitles("chunks", max_chunks=1))
    assert single.rows[0].ids.tolist() == tokenizer.encode([("angle", title)])[0].ids.tolist()


def test_the_first_of_equally_good_chunks_counts() -> None:
    spans = [(0, 5), (4, 9), (8, 12)]
    pairs = [ChunkedPair([SHORT] * count, spans[:count], truncated=False) for count in (3, 1, 2)]
    best, chunks = best_chunks([1, 3, 3, 2, 5, 5], pairs)
    assert best == [1, 3, 4]
    assert chunks == [Chunk(1, 3, 4, 9), Chunk(0, 1, 0, 5), Chunk(0, 2, 0, 5)]
