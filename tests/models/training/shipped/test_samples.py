"""The committed samples, which the README's examples and the studies run on."""

import gzip
import json
from collections import Counter
from pathlib import Path

from models.quality.labelled import read_labelled
from models.training.shipped.samples import SETS, write_samples

SAMPLES = Path(__file__).parents[4] / "data" / "sample"
TITLES = {"esci": 60, "socr": 30, "dbpe": 20}


def test_no_query_is_both_calibrated_on_and_reported_on() -> None:
    sets = {name: read_labelled(SAMPLES / f"{name}.jsonl.gz", grades=5) for name in SETS}
    queries = {name: {pair.query for pair in pairs} for name, pairs in sets.items()}
    assert not queries["calibration"] & queries["test"]
    for pairs in sets.values():
        assert {pair.grade for pair in pairs} == {0, 1, 2, 3, 4}
        assert len({(pair.query, pair.title) for pair in pairs}) == len(pairs)


def test_only_what_may_be_copied_and_is_of_the_right_folds_is_written(tmp_path: Path) -> None:
    sources = (
        "esci_us_150q",
        "esci_us_150q:random_neg",
        "chorus_icecat",
        "socrata_arcs",
        "dbpedia_entity_v2",
    )
    rows = [
        {"query": f"{source[:4]} {fold}", "title": f"{source} {n}", "grade": n % 5}
        | {"source": source, "fold": fold}
        for fold in range(10)
        for source in sources
        for n in range(30)
    ]
    with gzip.open(tmp_path / "graded.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)

    write_samples(tmp_path, tmp_path)

    written = Counter(pair.query for pair in read_labelled(tmp_path / "test.jsonl.gz", grades=5))
    assert written == {f"{name} {fold}": count for fold in (0, 1) for name, count in TITLES.items()}
