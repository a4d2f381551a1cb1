"""Importance by inverse document frequency (IDF): the rarer a word, the more it says.

Document frequencies come from a table of English text that is shipped here (document_frequencies.tsv.gz,
written by models.training.demo.frequencies) and from the titles of the request. A word of another language is
counted in the titles alone.
"""

from __future__ import annotations

import gzip
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from models.condense.words import Word

TABLE = Path(__file__).parent / "document_frequencies.tsv.gz"

_PART = re.compile(r"\w+")


def parts_of(text: str) -> list[str]:
    """Return the runs of letters and digits of a text, case-folded: the terms that are counted."""
    return _PART.findall(text.casefold())


def importance_of_words(words: Sequence[Word], titles: Iterable[str]) -> list[float]:
    """Return the IDF of each word, ln((documents + 1) / (documents with it + 1)).

    A word of several terms, such as wi-fi, has that of the rarest.
    """
    documents, table = _table()
    counts: Counter[str] = Counter()
    for title in titles:
        documents += 1
        counts.update(set(parts_of(title)))
    return [
        max(
            math.log((documents + 1) / (table.get(part, 0) + counts[part] + 1))
            for part in parts_of(word.form) or [word.form]
        )
        for word in words
    ]


@lru_cache(maxsize=1)
def _table() -> tuple[int, dict[str, int]]:
    """Return the number of documents of the table, and how many of them hold each term."""
    with gzip.open(TABLE, "rt", encoding="utf-8") as lines:
        documents = int(next(lines))
        entries = (line.rstrip("\n").split("\t") for line in lines)
        return documents, {term: int(count) for term, count in entries}
