"""Bad data gets one clear sentence; huge data a sample of whole queries."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headroom.models.errors import ModelError
from headroom.models.quality.labelled import LabelledPair
from headroom.models.study.pairs import Judged, check_apart, quick_sample, read_judged, sample_queries, split
from tests.prompt import write_labelled

Row = tuple[str, str, int]


def rows(queries: int, grade: int | None = None) -> list[Row]:
    return [
        (f"q{i}", f"t{j}", (i + j) % 5 if grade is None else grade) for i in range(queries) for j in range(3)
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "holds no pairs"),
        (rows(9), "there are 9 within"),
        (rows(12, grade=4), "every pair has grade 4"),
    ],
)
def test_bad_data_is_named(tmp_path: Path, content: list[Row], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_judged(write_labelled(tmp_path / "d.csv", content), grades=5, max_pairs=1000, seed=0)


def test_a_large_file_gives_whole_queries_that_do_not_depend_on_the_order(tmp_path: Path) -> None:
    content = rows(200)
    first = read_judged(write_labelled(tmp_path / "a.csv", content), grades=5, max_pairs=100, seed=0)
    second = read_judged(write_labelled(tmp_path / "b.csv", content[::-1]), grades=5, max_pairs=100, seed=0)
    assert set(first.pairs) == set(second.pairs)
    assert len(first) == 99
    assert len(first.queries) == 33
    assert "600" in first.note
    other = read_judged(write_labelled(tmp_path / "a.csv", content), grades=5, max_pairs=100, seed=1)
    assert set(other.queries) != set(first.queries)


def test_spellings_of_a_query_are_one_query_of_a_study(tmp_path: Path) -> None:
    """They are drawn together, counted once, and each is ranked by itself."""
    spelt = [(f" {query.upper()}", title, grade) for query, title, grade in rows(200)]
    file = write_labelled(tmp_path / "a.csv", rows(200) + spelt)
    data = read_judged(file, grades=5, max_pairs=100, seed=0)
    assert len(data.queries) == 16
    assert len(data) == 16 * 6
    assert len(np.unique(data.query_of)) == data.ranked_queries == 16
    one = [LabelledPair("q", "a", 1), LabelledPair("Q", "b", 0), LabelledPair("r", "a", 1)]
    assert Judged(one, "").ranked_queries == 0
    assert Judged([*one, LabelledPair("Q", "a", 1)], "").ranked_queries == 1
    few = write_labelled(tmp_path / "b.csv", [*rows(9), ("Q8", "t", 1)])
    with pytest.raises(ModelError, match="there are 9 within"):
        read_judged(few, grades=5, max_pairs=100, seed=0)


def test_a_million_rows_are_read_in_the_memory_of_the_sample() -> None:
    def endless() -> Iterator[LabelledPair]:
        for i in range(10_000):
            yield LabelledPair(f"query {i // 10}", "a title of some length that takes up memory " * 3, i % 5)

    tracemalloc.start()
    kept, seen = sample_queries(endless, 500, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(kept), seen) == (500, 10_000)
    assert peak < 1_500_000  # 10,000 pairs take 3 MB


def test_a_quick_sample_of_few_queries_takes_more_titles_of_each() -> None:
    rows = [LabelledPair(f"query {q}", f"title {t}", t % 2) for q in range(20) for t in range(60)]
    sample = quick_sample(Judged(rows, "pairs.csv"), 250, 4, 0)
    assert 250 <= len(sample) < 250 + 13
    assert set(np.bincount(sample.query_of)) == {13}


def test_held_out_queries_that_took_part_are_refused_however_they_are_written() -> None:
    """The tokenizer makes the same tokens of both, so the same query would select a mask and prove it."""
    data = Judged([LabelledPair("red shoes", "a", 1), LabelledPair("blue shoes", "a", 0)], "data.csv")
    holdout = Judged([LabelledPair("Red  shoes ", "b", 1), LabelledPair("lamp", "b", 0)], "holdout.csv")
    with pytest.raises(ModelError, match=r"holdout\.csv shares 1 with data\.csv \(such as 'red shoes'"):
        check_apart(data, holdout)


@pytest.mark.parametrize(("margin", "ranked"), [(0.05, 108), (0.02, 266)])
def test_a_split_holds_out_the_queries_that_the_margin_needs(margin: float, ranked: int) -> None:
    """All pairs of a query are on one side; two thirds of the queries with an order are held out at most."""
    rows = [LabelledPair(f"query {q}", f"title {t}", t % 5) for q in range(400) for t in range(4)]
    rows += [LabelledPair(f"lone {q}", "title", 4) for q in range(100)]
    data, holdout = split(Judged(rows, "pairs.csv"), margin, 0)
    check_apart(data, holdout)
    assert len(data) + len(holdout) == len(rows)
    assert holdout.ranked_queries in (ranked, ranked + 1)
    assert 0.1 < (len(holdout.queries) - holdout.ranked_queries) / len(holdout.queries) < 0.3
