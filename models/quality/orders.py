"""Reads the order of a search engine's results: TREC's runs, Quepid's snapshots, UBI's queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headroom.models.errors import ModelError, reading_problem
from headroom.models.files import check_regular
from headroom.models.quality.tables import fields_of_lines, opened
from headroom.models.rows import format_of, open_text

RUN_FIELDS = 6
"""The fields of a line of a run: query id, Q0, document id, rank, score, tag. https://trec.nist.gov/"""

SNAPSHOT = ("Query Text", "Doc ID", "Doc Position")
"""The columns of a snapshot that Quepid exports."""

UBI = ("user_query", "query_response_hit_ids")
"""The fields of a query of User Behavior Insights. https://www.ubisearch.dev (1.3.0)"""

Order = dict[str, dict[str, int]]
"""The rank of each document, from 1, by the query's text or id and the document's id."""


def read_order(name: str, delimiter: str = ",") -> Order:
    """Return the order in a file: a TREC run, a snapshot of Quepid (csv) or queries of UBI (jsonl).

    A run is ordered by its scores, highest first, as trec_eval does, equal ones by document id, last first.
    Of a query that UBI has several times, the last list counts. Raises ModelError if it is none of these.
    """
    if format_of(name) is None:
        return _run(name)
    order: Order = {}
    with opened(name, delimiter) as table:
        is_ubi = set(UBI) <= set(table.names)
        if not is_ubi:
            table.check(SNAPSHOT)
        for row in table.read((), UBI if is_ubi else SNAPSHOT):
            where = table.where(row)
            values = row.values
            if is_ubi:
                query, documents = (values.get(field) for field in UBI)
                if not isinstance(query, str) or not isinstance(documents, list):
                    raise ModelError(f"{where}: {UBI[0]} must be text and {UBI[1]} a list of ids")
                ids = dict.fromkeys(map(str, documents))
                order[query] = {document: rank for rank, document in enumerate(ids, start=1)}
                continue
            query, document, rank = (values.get(field) for field in SNAPSHOT)
            order.setdefault(str(query), {})[str(document)] = _rank(where, rank)
    if not order:
        raise ModelError(f"{name} holds no results")
    return order


def _rank(where: str, rank: Any) -> int:
    text = str(rank).strip()
    if not text.isdecimal() or int(text) < 1:
        raise ModelError(f"{where}: {SNAPSHOT[2]} {rank!r} is not a whole number from 1")
    return int(text)


def _run(name: str) -> Order:
    """Return the order of a run."""
    import pyarrow

    scored: dict[str, list[tuple[float, str]]] = {}
    try:
        check_regular(name)
        with pyarrow.OSFile(name) as file:
            compression = Path(name).suffix.lstrip(".").lower()
            stream = open_text(name, file, compression if compression in ("gz", "zst") else "")
            for number, fields, _ in fields_of_lines(stream):
                where = f"{name}, line {number}"
                if len(fields) != RUN_FIELDS:
                    raise ModelError(
                        f"{where}: {len(fields)} fields; a line of a run has 6: query id, Q0, document id, "
                        "rank, score, tag"
                    )
                scored.setdefault(fields[0], []).append((_score(where, fields[4]), fields[2]))
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(reading_problem(name, error)) from None
    if not scored:
        raise ModelError(f"{name} holds no results")
    return {
        query: {document: rank for rank, (_, document) in enumerate(sorted(results, reverse=True), start=1)}
        for query, results in scored.items()
    }


def _score(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ModelError(f"{where}: the score {text!r} is not a number") from None
