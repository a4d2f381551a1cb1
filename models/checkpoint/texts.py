"""Reads texts as token ids, each distinct one once, and a long one no further than it is kept.

Texts are remembered, because search traffic repeats itself, and words, because new texts are made of known
words: with the splitters of BERT, SentencePiece, GPT-2 and Qwen, a text's ids are those of its words, one
after the other. That takes a small part of the time that the tokenizers library takes.
"""

import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from tokenizers import Tokenizer

from headroom.models.checkpoint.tokenizer_files import unknown_id
from headroom.models.checkpoint.words import stands_alone, way_of_words, words_apart, words_with_spaces
from headroom.models.errors import ModelError, TokenizerFailed

V = TypeVar("V")

ID_BYTES = 4  # of an int32
_CHARACTERS_PER_TOKEN = 8  # plenty: English text has four to five
_LONG = 1024  # characters: a text of fewer is read at once, for any window
_CACHED_CHARACTERS = 512  # longer texts are rare, and 65,536 of them would take too much memory
_REMEMBERED = 32_768  # texts, or words, in the younger of two generations; words take some 7 MiB
_LONGEST = 32  # characters of a word that is remembered
_WORDS_AT_ONCE = 1024  # new words that are read in one call

_find_cuts = re.compile(r"(?<=\S) (?=[A-Za-z0-9])").finditer
"""Find where a text may be cut. BERT ends words at spaces; for GPT-2's pattern and for Metaspace, a single
space belongs to the word after it."""

_are_plain = re.compile(r"[A-Za-z0-9]+(?: [A-Za-z0-9]+)*").fullmatch


class EncodedText(NamedTuple):
    """One encoded text, without special tokens."""

    ids: bytes  # int32 values, at most as many as a reader keeps
    tokens: int  # the number of tokens of the whole text
    unknown: int  # the number of unknown tokens in `ids`


class Portion(NamedTuple):
    """A part of a text; per token: its id, its first character, and whether it begins a word."""

    ids: list[int]
    starts: list[int]
    word_starts: list[bool]


class Generations(Generic[V]):
    """A store of what was read lately, by its text. Threads may share one.

    A full younger generation becomes the older one, in place of that; what is met in the older one moves to
    the younger. Finding a text so costs less than keeping all of them in the order of their last use.
    """

    def __init__(self) -> None:
        self.younger: dict[str, V] = {}
        self.older: dict[str, V] = {}

    def age(self, younger: dict[str, V]) -> None:
        """Make a full younger generation the older one. Its texts of one huge call are forgotten at once."""
        if len(younger) > _REMEMBERED and younger is self.younger:
            self.older = younger if len(younger) < 2 * _REMEMBERED else {}
            self.younger = {}


class WordCache:
    """The ids of words, as far as they were met lately. Threads may share one.

    encode: returns the ids of each word, int32 values; None: they depend on the words beside it. split:
    returns the words of a text.
    """

    def __init__(
        self, encode: Callable[[list[str]], Sequence[bytes | None]], split: Callable[[str], list[str]]
    ) -> None:
        self._encode = encode
        self._split = split
        self._known = Generations[bytes]()

    def encode(self, texts: Sequence[str]) -> Sequence[bytes | None]:
        """Return the ids of each text: those of its words, one after the other.

        None: it has a word whose ids depend on those beside it.
        """
        words = list(map(self._split, texts))
        known = self._known.younger
        unknown = set[str]().union(*words).difference(known)
        odd = self._learn(unknown, known) if unknown else {}
        if odd:
            found = [[odd[word] if word in odd else known[word] for word in each] for each in words]
            return [None if None in each else b"".join(filter(None, each)) for each in found]
        return [b"".join(map(known.__getitem__, each)) for each in words]

    def _learn(self, unknown: Collection[str], known: dict[str, bytes]) -> dict[str, bytes | None]:
        """Put words into a younger generation, and return those that are not remembered: the long ones, and
        those that have no ids of their own."""
        older = self._known.older
        new = []
        for word in unknown:
            if (ids := older.get(word)) is None:
                new.append(word)
            else:
                known[word] = ids
        odd: dict[str, bytes | None] = {}
        for word, ids in zip(new, self._encode(new), strict=True):
            if ids is not None and len(word) <= _LONGEST:
                known[word] = ids
            else:
                odd[word] = ids
        self._known.age(known)
        return odd


class TextReader:
    """Encodes texts by themselves, without special tokens. Threads may share one.

    A text longer than 1,024 characters and than 8 characters per kept token (2 if it is not ASCII) is read
    only until it has more tokens than are kept.

    reach: how many tokens of a text are kept. forbidden: the ids that no text gets: the unknown token takes
    their place, or none if there is no unknown one.
    """

    def __init__(self, tokenizer: Tokenizer, *, reach: int) -> None:
        tokenizer.encode_special_tokens = True  # structural tokens inside a text are text
        self._tokenizer = tokenizer
        self.reach = reach
        self.unknown = unknown_id(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        special = {id_ for id_, token in added.items() if token.special}
        self.forbidden = special - {self.unknown}
        self._piece_characters = max(_LONG, 2 * reach)
        self._whole_characters = max(_LONG, _CHARACTERS_PER_TOKEN * reach)
        self._unknown_bytes = array("i", [self.unknown]).tobytes()
        usual = [token.content for token in added.values() if not token.special]
        self._longest_added = max((2 * len(content) + _LONGEST for content in usual), default=0)
        self._way = way_of_words(tokenizer)
        normalizer = tokenizer.normalizer
        self._normal: Callable[[str], str] = str if normalizer is None else normalizer.normalize_str
        self._mark = "" if self._way == "BERT" else "▁"
        if self._way == "bytes":
            self._words = WordCache(self.encode_batch, words_with_spaces)
        else:
            self._words = WordCache(self._encode_words, words_apart)
        self._known = Generations[EncodedText]()

    def characters(self, text: str) -> int:
        """Return about how many characters of a text are read."""
        if self.reach == sys.maxsize:
            return len(text)
        return min(len(text), self._whole_characters if text.isascii() else self._piece_characters)

    def encode_texts(self, texts: Iterable[str]) -> dict[str, EncodedText]:
        """Encode each text by itself. Raises ModelError for a lone surrogate."""
        encoded: dict[str, EncodedText] = {}
        for part in self.reading(texts, sys.maxsize):
            encoded |= part
        return encoded

    def reading(self, texts: Iterable[str], portion: int) -> Iterator[dict[str, EncodedText]]:
        """Encode each text by itself, step by step: about `portion` characters, or a part of a long text.
        Yields the texts that are done. Raises ModelError for a lone surrogate, and TokenizerFailed."""
        texts = list(texts)
        known = self._known.younger
        older = self._known.older
        met = {text: older[text] for text in texts if text in older and text not in known}
        known.update(met)
        cached = {text: known[text] for text in texts if text in known}
        yield cached
        batches: list[list[str]] = []
        characters = portion
        for text in texts:
            if text in cached:
                continue
            is_ascii = text.isascii()
            if not is_ascii:
                check_surrogates(text)
            if len(text) > (self._whole_characters if is_ascii else self._piece_characters):
                ids = array("i")
                for part in self.portions(text):
                    ids.extend(part.ids)
                    if len(ids) > self.reach:
                        break
                    yield {}
                yield {text: self._text(ids.tobytes())}
                continue
            if characters >= portion:
                batches.append([])
                characters = 0
            batches[-1].append(text)
            characters += len(text)
        for batch in batches:
            with without_panics():
                encoded = dict(zip(batch, map(self._text, self._encode(batch)), strict=True))
            known = self._known.younger
            known.update((text, one) for text, one in encoded.items() if len(text) <= _CACHED_CHARACTERS)
            self._known.age(known)
            yield encoded

    def portions(self, text: str) -> Iterator[Portion]:
        """Encode a text that `reading` accepts to its end, however long it is, piece by piece.

        The tokens are those of the whole text, unless a piece has no word boundary, as in Chinese: then a
        token may differ at its end.
        """
        start = 0
        while start < len(text):
            with without_panics():
                end = self._end_of_piece(text, start)
                encoding = self._tokenizer.encode_batch([text[start:end]], add_special_tokens=False)[0]
            ids = [self.unknown if id_ in self.forbidden else id_ for id_ in encoding.ids]
            kept = [index for index, id_ in enumerate(ids) if id_ >= 0]
            offsets = encoding.offsets
            words = encoding.word_ids
            yield Portion(
                [ids[index] for index in kept],
                [start + offsets[index][0] for index in kept],
                [index == 0 or words[index] != words[index - 1] for index in kept],
            )
            start = end

    def _end_of_piece(self, text: str, start: int) -> int:
        """Return where a piece of a text ends: between two words that no added token joins."""
        limit = start + 2 * self._piece_characters
        for cut in _find_cuts(text, start + self._piece_characters, limit):
            end = cut.start()
            if not self._longest_added:
                return end
            left = text[max(start, end - self._longest_added) : end]
            right = text[end : end + self._longest_added]
            if self.encode_batch([left + right]) == [b"".join(self.encode_batch([left, right]))]:
                return end
        return limit

    def part(self, text: EncodedText, start: int, end: int) -> EncodedText:
        """Return the tokens [start, end) of an encoded text."""
        ids = text.ids[start * ID_BYTES : end * ID_BYTES]
        unknown = int(np.count_nonzero(np.frombuffer(ids, np.int32) == self.unknown))
        return EncodedText(ids, end - start, unknown)

    def encode_batch(self, texts: list[str]) -> list[bytes]:
        """Return the ids of each text, int32 values."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [self._allowed(encoding.ids) for encoding in encodings]

    def _encode(self, texts: list[str]) -> list[bytes]:
        """Return the ids of each text, word by word where they are the same."""
        if self._way is None:
            return self.encode_batch(texts)
        encoded = self._words.encode(texts)
        whole = [text for text, ids in zip(texts, encoded, strict=True) if ids is None]
        read = iter(self.encode_batch(whole) if whole else ())
        return [next(read) if ids is None else ids for ids in encoded]

    def _encode_words(self, words: list[str]) -> list[bytes | None]:
        """Return the ids of each word; none holds a space. None: they depend on the words beside it."""
        plain = [word for word in words if word.isascii() and word.isalnum()]
        encoded = dict(zip(plain, self._encode_plain(plain), strict=True))
        others = [word for word in words if word not in encoded]
        if self._way == "SentencePiece":
            normal = {word: self._normal(word) for word in others}
            others = [word for word in others if normal[word] == word and stands_alone(word, word)]
            changed = [word for word in normal if normal[word] != word and stands_alone(word, normal[word])]
            # Where a charsmap changes a text, the offsets do not tell whose a token is.
            encoded |= zip(changed, self.encode_batch(changed), strict=True)
        if others:
            encoded |= zip(others, self._encode_joined(others), strict=True)
        return [encoded.get(word) for word in words]

    def _encode_plain(self, words: list[str]) -> list[bytes]:
        """Return the ids of each word of ASCII letters and digits, such as a size or an article's number.

        Nothing splits it, so the tokenizer's model reads it alone, in a third of the time of all steps.
        """
        text = self._normal(" ".join(words))
        if not _are_plain(text) or text.count(" ") + 1 != len(words):
            return self._encode_joined(words)
        tokenize = self._tokenizer.model.tokenize
        normal = text.split(" ")
        return [self._allowed([token.id for token in tokenize(self._mark + word)]) for word in normal]

    def _encode_joined(self, words: list[str]) -> list[bytes]:
        """Return the ids of each word. They are read as one text, which takes half the time of many."""
        encoded: list[bytes] = []
        for first in range(0, len(words), _WORDS_AT_ONCE):
            some = words[first : first + _WORDS_AT_ONCE]
            encoding = self._tokenizer.encode_batch([" ".join(some)], add_special_tokens=False)[0]
            spaces = accumulate([len(word) + 1 for word in some], initial=-1)
            positions = [start for start, _ in encoding.offsets]
            # SentencePiece's first token of a word begins at the space before it.
            cuts = [bisect_left(positions, space) for space in spaces]
            ids = encoding.ids
            encoded += [self._allowed(ids[cut:end]) for cut, end in pairwise(cuts)]
        return encoded

    def _allowed(self, ids: list[int]) -> bytes:
        """Return the ids with forbidden ones replaced by the unknown one, or left out if there is none."""
        if not self.forbidden.isdisjoint(ids):
            ids = [self.unknown if id_ in self.forbidden else id_ for id_ in ids]
            ids = [id_ for id_ in ids if id_ >= 0]
        return array("i", ids).tobytes()

    def _text(self, ids: bytes) -> EncodedText:
        """Return the text of all these ids."""
        whole = EncodedText(ids, len(ids) // ID_BYTES, 0)
        if self._unknown_bytes not in ids and whole.tokens <= self.reach:  # nearly always
            return whole
        return self.part(whole, 0, min(whole.tokens, self.reach))._replace(tokens=whole.tokens)


@contextmanager
def without_panics(
    kind: type[ModelError] = TokenizerFailed, what: str = "the tokenizer failed on a text"
) -> Iterator[None]:
    """Raise `kind` where a library in Rust panics: a panic is no Exception, and handlers would miss it."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as panic:
        raise kind(f"{what}: {panic}") from panic


def check_surrogates(text: str) -> None:
    """Raise ModelError if a text is not valid Unicode."""
    try:
        text.encode()  # takes a tenth of the time of a search
    except UnicodeEncodeError as error:
        raise ModelError(
            f"character {error.start} of a text is the lone surrogate U+{ord(text[error.start]):04X}; "
            "text must be valid Unicode"
        ) from None
