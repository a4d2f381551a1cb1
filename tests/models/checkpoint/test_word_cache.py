"""Texts read word by word give the ids of the whole text, and known words are not encoded again."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from models.checkpoint.word_cache import LONGEST, WordCache
from tests.models.checkpoint.library import library_tokenizer

LIBRARIES = {strip: library_tokenizer(strip_accents=strip) for strip in (False, True)}
CHARACTERS = "aeLS9 -![].\t\n\0\x1f\x7f\x85\xa0éÀ\u0301\u200b\u3000中の한😀"
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
    cache = WordCache(lambda texts: [ids(text, strip_accents=strip) for text in texts], size)

    for text in (" ".join(parts), "".join(parts), "-".join(parts), " ".join(parts)):
        assert cache.ids(text) == ids(text, strip_accents=strip)


def test_only_words_that_are_not_known_are_encoded() -> None:
    asked: list[str] = []

    def encode(texts: list[str]) -> list[bytes]:
        asked.extend(texts)
        return [text.encode() for text in texts]

    cache = WordCache(encode, size=4)
    long = "x" * (LONGEST + 1)
    assert cache.ids("red lamp") == b"redlamp"
    assert cache.ids("lamp, red lamp") == b"lamp,redlamp"
    assert cache.ids(long) == cache.ids(long) == long.encode()
    assert asked == ["red", "lamp", ",", long, long]

    assert cache.ids("a b c") == b"abc"  # there is no room: what was known is forgotten
    assert cache.ids("red a") == b"reda"
    assert asked[5:] == ["a", "b", "c", "red"]
