"""Finds where words begin among a tokenizer's pieces, and how they are spelled."""

from collections.abc import Callable
from typing import NamedTuple, Self

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordPiece

_METASPACE = "▁"


class Piece(NamedTuple):
    """A token without the marks of its vocabulary.

    text: "" for a space alone. spaced: a space precedes it. begins, ends: its first and its last character
    are part of a word; punctuation is not.
    """

    text: str
    spaced: bool
    begins: bool
    ends: bool

    def begins_word(self, before: Self) -> bool:
        """Return whether a word begins here, after the piece `before` of the same text.

        Words end at spaces and around punctuation, about as BERT's pre-tokenizer splits a text.
        """
        return self.spaced or (bool(before.text) and not (before.ends and self.begins))


def piece_reader(tokenizer: Tokenizer) -> Callable[[str], Piece]:
    """Return the function that makes a Piece of a token of this tokenizer."""
    model = tokenizer.model
    if isinstance(model, WordPiece):
        prefix = model.continuing_subword_prefix

        def of_word_piece(token: str) -> Piece:
            later = token.startswith(prefix)  # WordPiece itself says where words begin
            return Piece(token.removeprefix(prefix) if later else token, not later, begins=True, ends=True)

        return of_word_piece
    if isinstance(model, BPE) and "ByteLevel" in str(tokenizer.pre_tokenizer):
        byte_level = decoders.ByteLevel()

        def of_bytes(token: str) -> Piece:
            text = byte_level.decode([token])
            return _piece(token if "\ufffd" in text else text, partial="\ufffd" in text)

        return of_bytes
    return lambda token: _piece(token.replace(_METASPACE, " "))


def _piece(text: str, *, partial: bool = False) -> Piece:
    """Return a piece that is written with its space. partial: it holds some bytes of a letter."""
    word = text.strip()
    begins, ends = (partial or word[:1].isalnum(), partial or word[-1:].isalnum())
    return Piece(word, text[:1].isspace(), begins, ends)
