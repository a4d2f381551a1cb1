"""Writes the committed samples in data/sample/: ESCI's pairs of the validation and test folds.

python -m models.training.demo.samples --data ../shared/data --out data/sample
"""

import argparse
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

from models.training.data import TEST_FOLDS, VALIDATION_FOLDS, Judged, read_judged, source_family

SETS = {"calibration": VALIDATION_FOLDS, "test": TEST_FOLDS}


def write_samples(data: Path, out: Path) -> dict[str, int]:
    """Write NAME.jsonl.gz of query, title and grade for each set. Returns the numbers of pairs."""
    out.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name, folds in SETS.items():
        rows = [row for row in read_judged(data, folds) if source_family(row.source) == "esci"]
        (out / f"{name}.jsonl.gz").write_bytes(zipped(rows))
        counts[name] = len(rows)
    return counts


def zipped(rows: Sequence[Judged]) -> bytes:
    """Return the rows as gzipped JSON lines, the same bytes every time."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        for row in rows:
            line = json.dumps(
                {"query": row.query, "title": row.title, "grade": row.grade}, ensure_ascii=False
            )
            file.write(f"{line}\n".encode())
    return buffer.getvalue()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m models.training.demo.samples", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("data/sample"), help="default: %(default)s")
    options = parser.parse_args()
    for name, count in write_samples(options.data, options.out).items():
        print(f"{options.out / name}.jsonl.gz: {count} pairs")


if __name__ == "__main__":
    main()
