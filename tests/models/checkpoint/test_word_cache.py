"""Texts read word by word give the ids of the whole text, and known words are not encoded again."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from models.checkpoint.caches import LONGEST, WordCache
from tests.models.checkpoint.library import library_tokenizer

LIBRARIES = {strip: library_tokenizer(strip_accents=strip) for strip in (False, True)}
CHARACTERS = "aeLS9 -![].\t\n\0\x1f\x7f\x85\xa0éÀ\u0301\u200b\u3000中の한😀"
UNKNOWN = LIBRARIES[True].token_to_id("[UNK]")
words = st.sampled_from(["lamp", "Red", "q" * 101, "é", "e\u0301", "\0", "[SEP]", "#", "12-gauge"])


def ids(text: str, *, strip_accents: bool) -> bytes:
    """Return the library's ids of a whole text."""
    library = LIBRARIES[strip_accents]
    library.encode_special_tokens = True
    found = library.encode(text, add_special_tokens=False).ids
    return struct.pack(f"{len(found)}i", *found)


@given(st.lists(words | st.text(CHARACTERS, max_size=12)), st.booleans(), st.integers(1, 8))
@example(["\u0301", "-\u0301", "=\u0338"], True, 2)
def test_a_text_read_word_by_word_has_the_ids_of_the_whole(parts: list[str], strip: bool, size: int) -> None:
    cache = WordCache(lambda word: ids(word, strip_accents=strip), size)

    texts = [" ".join(parts), "".join(parts), "-".join(parts)]
    for some in (texts[:1], texts, texts[2:]):
        assert cache.ids(some) == [ids(text, strip_accents=strip) for text in some]


def test_only_words_that_are_not_known_are_encoded() -> None:
    asked: list[str] = []

    def encode(word: str) -> bytes:
        asked.append(word)
        return word.encode()

    cache = WordCache(encode, size=3)
    long = "x" * (LONGEST + 1)
    assert cache.ids(["red lamp"]) == [b"redlamp"]
    assert cache.ids(["lamp, red", "lamp"]) == [b"lamp,red", b"lamp"]
    assert cache.ids([long]) == cache.ids([long]) == [long.encode()]
    assert asked[2:] == [",", long, long]

    for number in range(100):  # what comes again is never forgotten, and what does not is
        assert cache.ids([f"lamp {number}"]) == [f"lamp{number}".encode()]
    assert asked[5:] == [str(number) for number in range(100)]
    assert cache.ids(["red 99"]) == [b"red99"]
    assert asked[105:] == ["red"]
