"""Writes judgments.csv: 300 rows of query,title,grade from calibration.jsonl.gz, to try commands with.

python data/sample/make_judgments.py
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from pathlib import Path

SAMPLE = Path(__file__).parent
QUERIES = 25
TITLES = 12


def rows() -> list[dict[str, str | int]]:
    """Return 12 titles, drawn by a hash, of each of the first 25 queries with titles of different grades."""
    queries: dict[str, list[dict[str, str | int]]] = {}
    with gzip.open(SAMPLE / "calibration.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            queries.setdefault(pair["query"], []).append(pair)
    ranked = [pairs for pairs in queries.values() if len(pairs) >= TITLES]
    return [pair for pairs in ranked[:QUERIES] for pair in sorted(pairs, key=_digest)[:TITLES]]


def _digest(pair: dict[str, str | int]) -> str:
    return hashlib.sha256(str(pair["title"]).encode()).hexdigest()


def write(path: Path) -> None:
    """Write the rows as csv, the same bytes every time."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["query", "title", "grade"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows())


if __name__ == "__main__":
    write(SAMPLE / "judgments.csv")
