"""The words of a query as people write them: what stands between spaces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from models.condense.particles import strip_particle

LANGUAGES: dict[str, Callable[[str], str]] = {"ko": strip_particle}
"""The languages with a rule for particles, and the rule."""

_RUN = re.compile(r"\S+")
_OPENING = "\"'“”„‘’«»‹›([{<¿¡「『《〈（【"
_CLOSING = ".,;:?!…\"'“”‘’«»‹›)]}>。？！、，．；：」』》〉）】"
_INCHES = "\"'”’″′"
"""Quotation marks that stand for inches and feet after a digit, unless the query opened a quotation."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a query.

    text: as it was typed. form: as a shorter query has it, without the quotation marks, brackets and
    sentence marks around it and, by a language's rule, without its particle. start, end: its place in the
    query, query[start:end] == text.
    """

    text: str
    form: str
    start: int
    end: int


def read_words(query: str, language: str | None = None) -> tuple[Word, ...]:
    """Return the words of a query in their order; a query that is not blank has at least one.

    A run of punctuation alone is no word, unless there is nothing else. language: one of LANGUAGES.
    """
    runs = [(match.group(), match.start(), match.end()) for match in _RUN.finditer(query)]
    said = [run for run in runs if not _is_punctuation(run[0])]
    rule = LANGUAGES[language] if language else str
    opened = any(run[0][0] in _INCHES for run in runs)
    return tuple(
        Word(text, rule(_bare(text, opened)), start, end) if said else Word(text, text, start, end)
        for text, start, end in said or runs
    )


def count_words(query: str) -> int:
    """Return how many words `read_words` returns; it takes a fraction of the time."""
    runs = query.split()
    return sum(not _is_punctuation(run) for run in runs) or len(runs)


def join(words: Iterable[Word]) -> str:
    """Return the query of these words."""
    return " ".join(word.form for word in words)


def _is_punctuation(run: str) -> bool:
    """Return whether a run holds neither a letter, a digit nor a symbol such as ⚽ or +."""
    return all(unicodedata.category(char)[0] in "PZC" for char in set(run))


def _bare(text: str, opened: bool) -> str:
    """Return a run without the marks around it; the inches of a 24" stay unless a quotation was opened."""
    text = text.lstrip(_OPENING)
    bare = text.rstrip(_CLOSING)
    mark = text[len(bare) : len(bare) + 1]
    return bare + mark if mark and mark in _INCHES and bare[-1:].isdigit() and not opened else bare
