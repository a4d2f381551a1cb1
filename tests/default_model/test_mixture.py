"""What the shipped model learns from: folds never leak, and made-up titles have the grades they should."""

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from default_model.checks import read_quadruples
from default_model.groups import TEST_FOLDS, TRAINING_FOLDS, VALIDATION_FOLDS, Example
from default_model.mixture import (
    Judged,
    MovieQuery,
    Sources,
    Titles,
    by_query,
    kinds,
    mixed_groups,
    read_catalogue,
    read_judged,
)

ROWS = [
    Judged(f"{colour} {thing}", f"{other} {thing.title()} {number} inch", grade, source, 4)
    for source in ("esci_us_150q", "chorus_icecat")
    for colour in ("red", "blue", "green")
    for thing in ("lamp", "drill")
    for grade, (other, number) in enumerate(
        (("Old", 3), ("New", 12), ("Big", 7), ("Small", 9), (colour.title(), 5))
    )
]


@pytest.fixture(scope="module")
def sources() -> Sources:
    movies = [MovieQuery("heat", ["Heat (1995)"], ["Cold (1995)", "Warm (1996)"])]
    shares = {"esci": 0.7, "chorus": 0.3}
    titles = dict.fromkeys(shares, Titles(row.title for row in ROWS))
    return Sources(by_query(ROWS), shares, titles, movies, read_catalogue())


def expected(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


def test_no_query_is_in_two_folds_and_test_folds_never_reach_training(tmp_path: Path) -> None:
    rows = [
        {"query": f"q{n}", "title": "t", "grade": n % 5, "source": "esci_us_150q", "fold": n % 10}
        for n in range(50)
    ]
    with gzip.open(tmp_path / "graded.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    parts = [
        {row.query for row in read_judged(tmp_path, folds)}
        for folds in (TRAINING_FOLDS, VALIDATION_FOLDS, TEST_FOLDS)
    ]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 50
    assert set(TRAINING_FOLDS) | set(VALIDATION_FOLDS) | set(TEST_FOLDS) == set(range(10))


def test_the_thing_comes_before_what_stands_in_for_it_and_another_thing_comes_last(sources: Sources) -> None:
    counts = {name: len(rows) for name, rows in sources.catalogue.items()}
    assert counts == {"en": 2382, "ko": 260, "zh": 265, "questions": 245}
    make = kinds(sources, random.Random(0))
    for _ in range(200):
        for kind in ("english", "korean", "chinese", "unrelated", "questions"):
            group = make[kind]()
            assert len({example.query for example in group}) == 1
            assert expected(group[0]) > 3.5
            assert expected(group[-1]) < 0.5


def test_no_query_of_the_tests_is_trained_on(sources: Sources) -> None:
    exact = set()
    for language in ("korean", "chinese"):
        rows = read_quadruples(language)
        assert len(rows) == 60
        exact |= {row["exact"] for row in rows}
    questions = sources.catalogue["questions"]
    things = [thing for language in ("en", "ko", "zh") for thing in sources.catalogue[language]]
    titles = {title for thing in things for title in thing["titles"]}
    assert not exact & (titles | {asked["exact"] for asked in questions})
    assert not any("오리" in asked["question"] for asked in questions)


def test_a_round_has_the_shares_that_were_asked_for_and_is_the_same_each_time(sources: Sources) -> None:
    shares = {"ranked": 0.5, "korean": 0.25, "movies": 0.25}
    groups = mixed_groups(sources, shares, count=4000, seed=3, index=7)
    assert groups == mixed_groups(sources, shares, count=4000, seed=3, index=7)
    assert groups != mixed_groups(sources, shares, count=4000, seed=3, index=8)
    pairs = Counter(
        "movies" if group[0].query == "heat" else "ranked" if group[0].query.isascii() else "korean"
        for group in groups
        for _ in group
    )
    assert pairs["movies"] == pytest.approx(1000, rel=0.05)
    assert pairs["ranked"] == pytest.approx(2000, rel=0.15)  # some Korean things are asked for in English


def test_titles_of_other_queries_and_empty_ones_are_irrelevant(sources: Sources) -> None:
    make = kinds(sources, random.Random(1))["others"]
    empty = 0
    for _ in range(200):
        own, *others = make()
        titles = {row.title for row in ROWS if row.query == own.query}
        assert own.title in titles
        assert all(expected(other) < 0.1 and other.title not in titles for other in others)
        empty += any(not other.title for other in others)
    assert 20 < empty < 90


def test_a_title_with_more_and_rarer_words_of_a_query_is_better() -> None:
    titles = Titles(["blue lamp 12", "blue lamp 5", "green lamp 12", "blue drill 3", "red saw 7"])
    rng = random.Random(3)
    grades = dict[tuple[str, str], float]()
    verbatim = 0
    for _ in range(500):
        own, *others = titles.group(rng)
        verbatim += set(own.query.split()) <= set(own.title.split())
        assert expected(own) == pytest.approx(3.8, abs=0.1)
        grades |= {(own.query, other.title): expected(other) for other in others}
    assert 250 < verbatim < 500  # the others are misspelled and the like
    assert grades["blue lamp", "blue lamp 5"] > 3.6
    assert grades["blue lamp", "red saw 7"] < 0.2
    assert grades["lamp 12", "green lamp 12"] > 3.6 > 2.5 > grades["lamp 12", "blue lamp 5"] > 0.2


def test_another_number_makes_an_exact_title_only_close(sources: Sources) -> None:
    make = kinds(sources, random.Random(2))["numbers"]
    for _ in range(100):
        exact, other = make()
        assert exact.query == other.query
        assert "5 inch" in exact.query
        assert "5" not in other.title.split()
        assert expected(exact) > 3.9 > 3 > expected(other) > 2.5
