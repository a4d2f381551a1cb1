"""Checks requests for rules that types cannot express, and for the limits that the operator sets."""

from __future__ import annotations

from models.condense.search import largest_cost
from models.condense.words import count_words
from service.config.settings import Settings
from service.errors import InvalidRequest
from service.schemas.condense import CondenseRequest
from service.schemas.requests import AttentionRequest, CompareRequest, PairsRequest, ScoreRequest

MAX_COLUMNS = 64
"""Maximum masks and variants of one `/v1/compare`."""

MAX_CONDENSE_PAIRS = 20_000
"""Maximum pairs that one `/v1/condense` may have scored, with all its shorter queries."""

MAX_CONDENSE_CHARS = 20_000_000
"""How many characters the queries of one `/v1/condense` may have together. All of them are kept in memory, in
1 to 4 bytes per character, and writing so many takes about a second."""


def check_score(request: ScoreRequest, settings: Settings) -> int:
    """Check a scoring request and return its pairs. Raises InvalidRequest, which names field and limit."""
    pairs = _check_pairs(request, settings)
    if request.grades is not None and len(request.grades) != pairs:
        raise InvalidRequest(f"{len(request.grades)} grades for {pairs} titles", param="grades")
    return pairs


def check_compare(request: CompareRequest, settings: Settings) -> int:
    """Check a compare request and return its rows. Raises InvalidRequest as `check_score` does."""
    rows = _check_pairs(request, settings)
    columns = len(request.masks) + len(request.variants)
    if columns == 0:
        raise InvalidRequest("give at least one mask or variant to compare", param="masks")
    if columns > MAX_COLUMNS:
        raise InvalidRequest(
            f"{columns} masks and variants are more than the {MAX_COLUMNS} of one compare",
            param="masks" if request.masks else "variants",
        )
    if rows * columns > settings.max_compare_rows:
        raise InvalidRequest(
            f"{rows} pairs under {columns} masks and variants are {rows * columns} rows; "
            f"the limit is {settings.max_compare_rows}",
            param="titles" if request.pairs is None else "pairs",
        )
    return rows * columns


def check_attention(request: AttentionRequest) -> None:
    """Check an attention request. Raises InvalidRequest as `check_score` does."""
    _check_query(request.query, "query")


def check_condense(request: CondenseRequest, settings: Settings) -> None:
    """Check a condense request. Raises InvalidRequest as `check_score` does."""
    _check_query(request.query, "query")
    _check_count(len(request.titles), "titles", settings)
    if request.grades is not None:
        if len(request.grades) != len(request.titles):
            raise InvalidRequest(
                f"{len(request.grades)} grades for {len(request.titles)} titles", param="grades"
            )
        if len(set(request.grades)) < 2:
            raise InvalidRequest(
                "every title has the same grade, so NDCG@10 is not defined; leave them out", param="grades"
            )
    words, titles = count_words(request.query), len(set(request.titles))
    queries = largest_cost(words, request.method)
    if queries * len(request.query) > MAX_CONDENSE_CHARS:
        raise InvalidRequest(
            f"{words} words and {len(request.query)} characters make up to {queries * len(request.query)} "
            f"characters of shorter queries with the method {request.method}; the limit is "
            f"{MAX_CONDENSE_CHARS}: send fewer words or shorter ones",
            param="query",
        )
    if queries * titles > MAX_CONDENSE_PAIRS:
        max_titles = MAX_CONDENSE_PAIRS // queries
        raise InvalidRequest(
            f"{words} words and {titles} titles are up to {queries * titles} pairs to score with the method "
            f"{request.method}; the limit is {MAX_CONDENSE_PAIRS}: "
            + (f"send at most {max_titles} titles" if max_titles else "send fewer words"),
            param="titles" if max_titles else "query",
        )


def _check_pairs(request: PairsRequest, settings: Settings) -> int:
    """Return the number of pairs. Raises InvalidRequest if they are blank, too many or in two forms."""
    if request.pairs is not None:
        if request.query is not None or request.titles is not None:
            raise InvalidRequest("give either pairs, or query and titles, not both", param="pairs")
        _check_count(len(request.pairs), "pairs", settings)
        for number, (query, _) in enumerate(request.pairs):
            _check_query(query, f"pairs[{number}][0]")
        return len(request.pairs)
    if request.query is None:
        raise InvalidRequest("is missing; give query and titles, or pairs", param="query")
    if request.titles is None:
        raise InvalidRequest("is missing; give query and titles, or pairs", param="titles")
    _check_count(len(request.titles), "titles", settings)
    _check_query(request.query, "query")
    return len(request.titles)


def _check_count(count: int, param: str, settings: Settings) -> None:
    if count > settings.max_pairs:
        raise InvalidRequest(f"{count} are more than the {settings.max_pairs} of one request", param=param)


def _check_query(query: str, param: str) -> None:
    # The tokenizer drops control and other unprintable characters, so a query of those alone is blank too.
    # A set, because there may be millions. The space is the only blank that counts as printable.
    if not query.strip() or not (query.isprintable() or any(map(str.isprintable, set(query) - {" "}))):
        raise InvalidRequest("must not be blank", param=param)
