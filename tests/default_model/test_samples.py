"""The committed samples, which the README's examples and the studies run on."""

from pathlib import Path

import pytest

from headroom.models.quality.labelled import read_labelled

pytestmark = pytest.mark.more

SAMPLES = Path(__file__).parents[2] / "data" / "sample"


def test_no_query_is_both_calibrated_on_and_reported_on() -> None:
    sets = {name: read_labelled(SAMPLES / f"{name}.jsonl.gz", grades=5) for name in ("calibration", "test")}
    queries = {name: {pair.query for pair in pairs} for name, pairs in sets.items()}
    assert not queries["calibration"] & queries["test"]
    for pairs in sets.values():
        assert {pair.grade for pair in pairs} == {0, 1, 2, 3, 4}
        assert len({(pair.query, pair.title) for pair in pairs}) == len(pairs)
