"""A cut vocabulary must not change how a text is read whose pieces it keeps."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from default_model.base import tokenizer_of

pytestmark = pytest.mark.more

LETTERS = "abc"
PIECES = [
    *((piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")),
    ("\u2581", -3.0),
    *((letter, -6.0 - index) for index, letter in enumerate(LETTERS)),
    ("\u2581ab", -4.0),
    ("bc", -5.0),
    ("cab", -5.5),
    ("한국", -7.0),
    ("\u2581漢字", -8.0),
]
WHOLE = tokenizer_of(PIECES)


@cache
def without(cut: frozenset[int]) -> Tokenizer:
    """The tokenizer without the pieces of these numbers."""
    return tokenizer_of([piece for index, piece in enumerate(PIECES) if index not in cut])


@given(
    st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=4),
    st.frozensets(st.integers(8, 10)),
)
def test_a_text_whose_pieces_are_kept_is_split_as_before(words: list[str], cut: frozenset[int]) -> None:
    text = " ".join(words)
    whole = WHOLE.encode(text, add_special_tokens=False)
    pieces = without(cut).encode(text, add_special_tokens=False).tokens
    if cut.isdisjoint(whole.ids):
        assert pieces == whole.tokens
    assert "".join(pieces).replace("\u2581", " ").split() == words
