"""Writes the table of document frequencies behind `condense`'s IDF baseline.

python -m models.training.demo.frequencies --data ../shared/data

A document is a line of prose (WordNet's definitions and examples, Amazon's product texts), a title of DBpedia
outside the test folds, or a query outside them. Only counts are kept.
"""

import argparse
import gzip
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from models.condense.frequencies import TABLE, parts_of
from models.training.data import TRAINING_FOLDS, VALIDATION_FOLDS, read_judged

TEXTS = ("oewn_text/text.txt.gz", "esci_us_150q/text.txt.gz")
LEAST = 5
"""A term of fewer documents is left out: it counts as unknown, which is about as rare."""


def documents(data: Path) -> Iterator[str]:
    """Yield every document. data: a directory with the prepared data (`models.training.demo.fetch`)."""
    for name in TEXTS:
        with gzip.open(data / name, "rt", encoding="utf-8") as lines:
            yield from lines
    judged = [row for row in read_judged(data, TRAINING_FOLDS + VALIDATION_FOLDS) if _is_free(row.source)]
    yield from sorted({row.query for row in judged})
    yield from sorted({row.title for row in judged if row.source.startswith("dbpedia")})


def _is_free(source: str) -> bool:
    return not source.startswith("chorus")


def table(data: Path) -> bytes:
    """Return the file: the number of documents, then a line of term, tab and documents per term, gzipped."""
    counts: Counter[str] = Counter()
    total = 0
    for document in documents(data):
        total += 1
        counts.update(set(parts_of(document)))
    kept = sorted(term for term, count in counts.items() if count >= LEAST)
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=9) as file:
        file.write(f"{total}\n".encode())
        for term in kept:
            file.write(f"{term}\t{counts[term]}\n".encode())
    return buffer.getvalue()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m models.training.demo.frequencies", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=TABLE, help="default: %(default)s")
    options = parser.parse_args()
    options.out.write_bytes(table(options.data))
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
