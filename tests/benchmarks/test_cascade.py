"""The benchmark of a cascade: how its queries are filled up, and which targets count as missed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks import cascade
from models.quality.labelled import LabelledPair

JUDGED = [
    LabelledPair("nut", "hex nut", 4),
    LabelledPair("nut", "cashews", 1),
    LabelledPair("saw", "hand saw", 4),
    LabelledPair("saw", "hex nut", 0),
    LabelledPair("glue", "wood glue", 3),
]


def test_queries_are_filled_up_with_titles_of_other_queries() -> None:
    rows = cascade.filled(JUDGED, 4)
    assert rows[: len(JUDGED)] == JUDGED
    added = rows[len(JUDGED) :]
    assert {row.grade for row in added} == {0}
    for query in ("nut", "saw", "glue"):
        titles = [row.title for row in rows if row.query == query]
        assert len(titles) == len(set(titles)) == 4
    assert {row.title for row in added if row.query == "nut"} == {"hand saw", "wood glue"}
    assert cascade.filled(JUDGED, 2) == cascade.filled(JUDGED, 2)
    assert len([row for row in cascade.filled(JUDGED, 1) if row.query == "nut"]) == 2


def test_quality_counts_the_queries_whose_titles_differ_in_grade(tmp_path: Path) -> None:
    labelled = tmp_path / "judged.jsonl.gz"
    with gzip.open(labelled, "wt", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"query": row.query, "title": row.title, "grade": row.grade}) + "\n" for row in JUDGED
        )
    live, _ = cascade._cascade_of(cascade.CONFIG)
    found = cascade.quality(cascade.DEFAULT, live, labelled)
    assert found["judged"]["queries"] == 2  # "glue" has one title
    assert found["filled"]["queries"] == 3
    assert found["filled"]["pairs"] == 3 * 4  # all titles there are
    assert 0 < found["filled"]["full"] <= 1


def test_a_cascade_that_is_slow_late_or_may_rank_worse_is_named() -> None:
    judged = {"full": 0.8, "cascade": 0.8, "low": -0.03, "high": 0.03, "pairs": 9, "queries": 3}
    good: dict[str, Any] = {
        "machine": "two cores",
        "rounds": 1,
        "first": "rough",
        "kept": 10,
        "pairs_per_second": {"full": 100.0, "rough": 400.0, "cascade": 260.0},
        "factor": 2.6,
        "range": [2.5, 2.7],
        "rate": 5.0,
        "latency_ms": {"full": [200.0, 600.0], "cascade": [80.0, 200.0]},
        "latency_turns": 2,
        "latency_requests": 90,
        "failed": 0,
        "ndcg10": {"filled": judged | {"low": -0.01}, "judged": judged},
    }
    assert not cascade.missed(good)
    table = cascade.as_markdown(good)
    assert "100 titles each" in table
    assert "change +0.000 (-0.030 to +0.030)" in table
    assert "p99 200 ms; the full model 200 ms, 600 ms (median of 2 turns, of 90 requests each)" in table
    bad = good | {
        "factor": 2.4,
        "failed": 1,
        "invalid": ["saturated, turn 1, full: too slow"],
        "ndcg10": {"filled": judged, "judged": judged},
    }
    bad["latency_ms"] = {"full": [200.0, 600.0], "cascade": [80.0, 700.0]}
    assert cascade.missed(bad) == [
        "the cascade is × 2.40 as fast as the full model, not × 2.5",
        "the cascade's p99 is 700 ms, the full model's 600 ms",
        "NDCG@10 of 100 titles may be worse by 0.030, more than 0.02",
        "1 requests of the latency runs failed",
        "cascade: invalid run: saturated, turn 1, full: too slow",
    ]
