"""The words of a query as people write them: between spaces, and in Chinese between characters.

Korean particles are stripped: 강남역에서 (at Gangnam station) becomes 강남역. Most have one form after a
vowel and another after a consonant, which tells a particle from a verb's ending: 맛있는 keeps its 는, because
있 ends in a consonant. Nouns that end in a particle's syllable are known by their length (도로, 회의) or
listed. There is no dictionary here, so a rare noun may lose its end.
"""

import functools
import importlib.util
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

_RUN = re.compile(r"\S+")
_SCRIPT = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]+|[^\s\u3400-\u4dbf\u4e00-\u9fff]+")
"""A run of Chinese characters, or of anything else without spaces."""

_OPENING = "\"'“”„‘’«»‹›([{<¿¡「『《〈（【"
_CLOSING = ".,;:?!…\"'“”‘’«»‹›)]}>。？！、，．；：」』》〉）】"
_INCHES = "\"'”’″′"
"""Quotation marks that stand for inches and feet after a digit, unless the query opened a quotation."""

_FIRST = 0xAC00
_LAST = 0xD7A3
_FINALS = 28
_L = 8
"""Hangul syllables in Unicode: (code − first) % 28 is the final consonant, 0 for none, 8 for ㄹ."""

CONSONANT = "consonant"
VOWEL = "vowel"
VOWEL_OR_L = "vowel or ㄹ"
ANY = "any"

PARTICLES = (
    ("에서", ANY, 1),
    ("으로", CONSONANT, 1),
    ("은", CONSONANT, 1),
    ("는", VOWEL, 1),
    ("을", CONSONANT, 1),
    ("를", VOWEL, 1),
    ("에", ANY, 1),
    ("이", CONSONANT, 2),
    ("가", VOWEL, 2),
    ("의", ANY, 2),
    ("로", VOWEL_OR_L, 2),
)
"""Each particle, the sound that it follows and the fewest syllables of its noun; longer particles first."""

WHOLE = frozenset(
    "가는 같은 고양이 귀걸이 낮은 높은 되는 떡볶이 많은 먹을 목걸이 보는 손잡이 싶은 쉬는 어린이 "
    "옷걸이 작은 적은 좋은 지팡이 하는 호랑이".split()
)
"""Frequent words that look like a noun with a particle and are none."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a query.

    text: as it was typed. form: as a shorter query has it, without the marks around it and without a Korean
    particle. run: the number of the run between spaces that it is from.
    """

    text: str
    form: str
    run: int


def read_words(query: str) -> tuple[Word, ...]:
    """Return the words of a query in their order; a query that is not blank has at least one.

    A run of punctuation alone is no word, unless there is nothing else. Chinese characters are split into
    words by jieba; without it, each is a word.
    """
    runs = _RUN.findall(query)
    spoken = [run for run in runs if not _is_punctuation(run)]
    if not spoken:
        return tuple(Word(run, run, number) for number, run in enumerate(runs))
    opened = any(run[0] in _INCHES for run in spoken)
    words: list[Word] = []
    for number, run in enumerate(spoken):
        bare = _bare(run, opened)
        parts = [part for part in _SCRIPT.findall(bare) if not _is_punctuation(part)]
        if not any(map(_is_chinese, parts)):
            words.append(Word(run, strip_particle(bare), number))
            continue
        for part in parts:
            split = chinese_splitter()(part) if _is_chinese(part) else [part]
            words += [Word(word, word, number) for word in split]
    return tuple(words)


def count_words(query: str) -> int:
    """Return how many words `read_words` returns at most; it takes a fraction of the time."""
    runs = query.split()
    parts = [part for run in runs if not _is_punctuation(run) for part in _SCRIPT.findall(run)]
    return sum(len(part) if _is_chinese(part) else 1 for part in parts) or len(runs)


def join(words: Iterable[Word]) -> str:
    """Return the query of these words. Words of one run have no space between them, as they were typed."""
    return " ".join("".join(word.form for word in run) for _, run in groupby(words, lambda word: word.run))


def has_jieba() -> bool:
    """Return whether jieba is installed."""
    return importlib.util.find_spec("jieba") is not None


@functools.cache
def chinese_splitter() -> Callable[[str], list[str]]:
    """Return the function that cuts Chinese text into words: jieba's, or without jieba into characters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its regular expressions have invalid escapes
        try:
            import jieba
        except ImportError:
            return list
        jieba.setLogLevel("WARNING")
        jieba.initialize()
    split: Callable[[str], list[str]] = jieba.lcut
    return split


def _is_chinese(part: str) -> bool:
    return "\u3400" <= part[0] <= "\u9fff"


def _is_punctuation(run: str) -> bool:
    """Return whether a run holds neither a letter, a digit nor a symbol such as ⚽ or +."""
    return all(unicodedata.category(char)[0] in "PZC" for char in set(run))


def _bare(text: str, opened: bool) -> str:
    """Return a run without the marks around it; the inches of a 24" stay unless a quotation was opened."""
    text = text.lstrip(_OPENING)
    bare = text.rstrip(_CLOSING)
    mark = text[len(bare) : len(bare) + 1]
    return bare + mark if mark and mark in _INCHES and bare[-1:].isdigit() and not opened else bare


def strip_particle(word: str) -> str:
    """Return a word without its Korean particle; any other word as it is."""
    if word in WHOLE:
        return word
    for particle, after, syllables in PARTICLES:
        noun = word.removesuffix(particle)
        if noun != word and len(noun) >= syllables and _ends_in(noun[-1], after):
            return noun
    return word


def _ends_in(char: str, sound: str) -> bool:
    """Return whether a character ends in a sound; the sound of digits and Latin letters is not known."""
    if not _FIRST <= ord(char) <= _LAST:
        return char.isalnum()
    final = (ord(char) - _FIRST) % _FINALS
    if sound == VOWEL_OR_L:
        return final in (0, _L)
    return sound == ANY or (final == 0) == (sound == VOWEL)
