"""Writes the committed samples of judged pairs in data/sample/.

python -m models.training.shipped.samples --data ../shared/data

They are ESCI's, with which the studies of the shipped model were made.
"""

import argparse
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

from models.training.shipped.judged import (
    TEST_FOLDS,
    VALIDATION_FOLDS,
    Judged,
    read_judged,
    source_family,
)

SETS = {"calibration": VALIDATION_FOLDS, "test": TEST_FOLDS}


def write_samples(data: Path, out: Path) -> None:
    """Write NAME.jsonl.gz of query, title and grade for each set."""
    for name, folds in SETS.items():
        rows = [row for row in read_judged(data, folds) if source_family(row.source) == "esci"]
        print(f"{name}: {len(rows)} pairs, {len({row.query for row in rows})} queries")
        (out / f"{name}.jsonl.gz").write_bytes(zipped(rows))


def zipped(rows: Sequence[Judged]) -> bytes:
    """Return the rows as gzipped JSON lines, the same bytes every time."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        for row in rows:
            line = {"query": row.query, "title": row.title, "grade": row.grade}
            file.write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())
    return buffer.getvalue()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m models.training.shipped.samples", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("data/sample"), help="default: %(default)s")
    options = parser.parse_args()
    write_samples(options.data, options.out)


if __name__ == "__main__":
    main()
