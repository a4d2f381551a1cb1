"""Queries that no title answers, and lines of prose graded by the words they share."""

import random

from models.quality.lexical import stems_of
from models.training.demo.prose import coverage, new_prose, prose_group
from models.training.demo.strangers import nonsense, stranger_pair

TITLES = ("Volta Cordless Drill", "Nordhem Sofa, Grey", "Kettle Bath Towel")
LINES = (
    "Building permits of the city of Chicago",
    "Business licenses of the city of Austin",
    "Crime reports by district",
    "District of Columbia",
    "x",
)


def test_a_stranger_shares_no_word_with_its_title_and_is_irrelevant() -> None:
    rng = random.Random(0)
    for _ in range(300):
        pair = stranger_pair(["sofas", "grey towel", "cordless drill"], ["towel", "anvil"], TITLES, rng)
        assert not set(stems_of(pair.query)) & set(stems_of(pair.title))
        assert pair.target[0] > 0.95


def test_nonsense_is_different_each_time() -> None:
    rng = random.Random(1)
    queries = {nonsense(rng) for _ in range(300)}
    assert len(queries) > 250
    assert all(query.strip() for query in queries)


def test_prose_is_graded_by_the_rare_words_that_a_line_has() -> None:
    prose = new_prose(LINES)
    assert len(prose.lines) == 4  # one word says nothing
    assert coverage(["permits", "chicago"], LINES[0], prose) == 1
    assert coverage(["permits", "chicago"], LINES[1], prose) == 0
    rare = coverage(["permits", "city"], "Permits", prose)
    assert rare > 0.5 > coverage(["permits", "city"], "City", prose) > 0


def test_a_line_answers_the_query_drawn_from_it_better_than_the_others() -> None:
    rng = random.Random(2)
    prose = new_prose(LINES)
    for _ in range(100):
        group = prose_group(prose, rng)
        grades = [sum(grade * share for grade, share in enumerate(one.target)) for one in group]
        assert grades[0] == max(grades)
        assert len({one.query for one in group}) == 1
