"""Word matching without a model: what a relevance model must beat.

BM25 (Robertson and Zaragoza 2009) and IDF-weighted word overlap.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

TOKEN = re.compile(r"[a-z0-9]+(?:[.'’][a-z0-9]+)*|[^\sa-z0-9]")
"""A word, or a sign that is none. Letters beyond a to z are signs, so other scripts match by character."""

K1 = 1.2
B = 0.75
"""The usual constants of BM25."""

Scorer = Callable[[str, str], float]
"""Takes a query and a title."""


def stem(word: str) -> str:
    """Return the word without a plural's ending, so that "boxes" and "box" count as one."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def stems_of(text: str) -> list[str]:
    """Return the stems of a text's words in order, lower case, without punctuation: "12-Gauge Angles" is 12,
    gauge, angle."""
    return [stem(token) for token in TOKEN.findall(text.lower()) if token[0].isalnum()]


def bm25(collection: Sequence[str]) -> Scorer:
    """Return Okapi BM25 of a query against a title; words are stems."""
    documents = [stems_of(title) for title in collection]
    idf = _idf(documents)
    mean_length = sum(map(len, documents)) / len(documents)

    def score(query: str, title: str) -> float:
        words = stems_of(title)
        counts = Counter(words)
        norm = K1 * (1 - B + B * len(words) / mean_length)
        return sum(idf(word) * counts[word] * (K1 + 1) / (counts[word] + norm) for word in stems_of(query))

    return score


def idf_overlap(collection: Sequence[str], terms_of: Callable[[str], list[str]] = stems_of) -> Scorer:
    """Return the share of the query's terms that the title holds, weighted by IDF: 0 to 1, 0 if there are
    none. terms_of: returns the terms of a text."""
    idf = _idf([terms_of(title) for title in collection])

    def score(query: str, title: str) -> float:
        query_terms = terms_of(query)
        title_terms = set(terms_of(title))
        total = sum(map(idf, query_terms))
        return sum(idf(term) for term in query_terms if term in title_terms) / total if total else 0.0

    return score


def _idf(documents: Sequence[Sequence[str]]) -> Callable[[str], float]:
    """Return BM25's IDF of a term, never negative: log(1 + (N − df + ½)/(df + ½))."""
    counts = Counter(word for document in documents for word in set(document))
    return lambda term: math.log(1 + (len(documents) - counts[term] + 0.5) / (counts[term] + 0.5))


def rouge_l(written: str, wanted: str) -> float:
    """Return ROUGE-L (Lin 2004), 0 to 1: the F1 of the longest common subsequence of characters, without
    spaces.

    Characters, because Korean words change their ends.
    """
    ours = "".join(written.split())
    theirs = "".join(wanted.split())
    lengths = [0] * (len(theirs) + 1)  # of the longest common subsequence with each beginning of `theirs`
    for char in ours:
        diagonal = 0
        for column, other in enumerate(theirs, 1):
            above = lengths[column]
            lengths[column] = diagonal + 1 if char == other else max(above, lengths[column - 1])
            diagonal = above
    return 2 * lengths[-1] / (len(ours) + len(theirs)) if ours and theirs else 0.0
