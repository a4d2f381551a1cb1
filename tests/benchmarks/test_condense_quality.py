"""The quality of condensed queries is measured on the data that anybody can fetch."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from benchmarks.condense_quality import read_queries

QUESTION, ENTITY = "who is the mayor of berlin", "szechwan dish food cuisine"


def test_fetched_data_and_a_file_of_pairs_give_the_same_queries(tmp_path: Path) -> None:
    rows = [
        {"query": query, "title": f"title {grade}", "grade": grade, "source": "dbpedia_entity_v2", "fold": 0}
        for query in (QUESTION, ENTITY)
        for grade in range(5)
    ]
    ids = {QUESTION: "QALD2_te-3", ENTITY: "INEX_LD-2009022"}
    fetched, pairs = tmp_path / "fetched", tmp_path / "pairs"
    for data in (fetched, pairs):
        _write(data / "graded.jsonl.gz", rows)
    raw = fetched / "raw" / "dbpedia_entity_v2"
    raw.mkdir(parents=True)
    (raw / "queries-v2.txt").write_text("".join(f"{number}\t{query}\n" for query, number in ids.items()))
    _write(
        pairs / "dbpedia_entity_v2" / "pairs.jsonl.gz", [{**row, "qid": ids[row["query"]]} for row in rows]
    )

    found = read_queries(fetched)

    assert list(found) == [QUESTION]
    assert len(found[QUESTION]) == 5
    assert found == read_queries(pairs)


def _write(file: Path, rows: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
