"""Writes the committed samples of judged pairs in data/sample/.

python -m models.training.shipped.samples --data ../shared/data

Chorus is left out, because its product text may not be copied. Each query of DBpedia-Entity, which has about
a hundred entities, keeps twenty.
"""

import argparse
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from models.training.shipped.judged import TEST_FOLDS, VALIDATION_FOLDS, Judged, by_query, read_judged

SETS = {"calibration": VALIDATION_FOLDS, "test": TEST_FOLDS}
FAMILIES = ("esci", "socrata", "dbpedia")
TITLES_PER_QUERY = {"dbpedia": 20}


def write_samples(data: Path, out: Path) -> None:
    """Write NAME.jsonl.gz of query, title and grade for each set."""
    for name, folds in SETS.items():
        rows = list(sampled(read_judged(data, folds)))
        print(f"{name}: {len(rows)} pairs, {len({row.query for row in rows})} queries")
        lines = [{"query": row.query, "title": row.title, "grade": row.grade} for row in rows]
        text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
        (out / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def sampled(rows: Sequence[Judged]) -> Iterator[Judged]:
    """Yield the rows of the sources that may be copied, some titles per query."""
    queries = by_query(rows)
    rng = random.Random(0)
    for family in FAMILIES:
        for group in queries.get(family, []):
            limit = TITLES_PER_QUERY.get(family, len(group))
            yield from group if len(group) <= limit else rng.sample(group, limit)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m models.training.shipped.samples", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("data/sample"), help="default: %(default)s")
    options = parser.parse_args()
    write_samples(options.data, options.out)


if __name__ == "__main__":
    main()
