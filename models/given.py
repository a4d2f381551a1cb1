"""Checks what callers give to be scored: a query with its titles, or pairs in any usual form."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headroom.models.errors import ModelError
from headroom.models.frame import column_names, values_by_row, with_article
from headroom.models.masks.head_mask import HeadMask


def pairs_of_query(query: str, titles: object) -> list[tuple[str, str]]:
    """Return a query with each of its titles. Raises ModelError for anything else."""
    wanted = "give a list, as in score(query, [title, …])"
    if titles is None:
        raise ModelError(f"titles: {query[:40]!r} is a query without titles; {wanted}")
    if column_names(titles) is not None:
        raise ModelError(
            f"titles: {with_article(titles)} has columns; give one of them, as in table['title']"
        )
    is_unordered = isinstance(titles, Mapping | set | frozenset)
    if isinstance(titles, str | HeadMask) or is_unordered or not isinstance(titles, Iterable):
        raise ModelError(
            f"titles: {'one string' if isinstance(titles, str) else with_article(titles)}; {wanted}"
        )
    texts = [(query, title) for title in titles]
    for index, (_, title) in enumerate(texts):
        if not isinstance(title, str):
            raise ModelError(f"titles[{index}]: {title!r} is not text")
    return texts


def checked_pairs(pairs: Iterable[object]) -> list[tuple[str, str]]:
    """Return pairs as tuples: of a table its columns query and title, of mappings these keys.

    Raises ModelError for anything else.
    """
    columns = column_names(pairs)
    if columns is not None:
        for name in ("query", "title"):
            if columns.count(name) != 1:
                raise ModelError(
                    f"pairs: {with_article(pairs)} needs one column {name!r}; found "
                    f"{', '.join(map(repr, columns[:10])) or 'none'}"
                )
        pairs = values_by_row(pairs, ("query", "title"))
    elif isinstance(pairs, Mapping | set | frozenset) or not isinstance(pairs, Iterable):
        raise ModelError(f"pairs: {pairs!r:.60}; give a query and its titles, or pairs (query, title)")
    return [_pair(index, pair) for index, pair in enumerate(pairs)]


def _pair(index: int, pair: object) -> tuple[str, str]:
    """Return a pair of texts. Raises ModelError for anything else; a set has no order."""
    query = title = None
    if isinstance(pair, Mapping):
        query = pair.get("query")
        title = pair.get("title")
    elif isinstance(pair, Sequence | np.ndarray) and not isinstance(pair, str) and len(pair) == 2:
        query, title = pair
    if not isinstance(query, str) or not isinstance(title, str):
        raise ModelError(
            f"pairs[{index}]: {pair!r:.60} is not a pair of texts (query, title), nor a dict of both"
        )
    return query, title
