"""Lists that differ in an attribute: what has all that is asked for stands first."""

import random

import pytest

from default_model.attributes import LANGUAGES, OTHERS, AttributeLists
from default_model.groups import Example
from default_model.yardstick import read_short_lists

pytestmark = pytest.mark.more


def expected(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_title_that_has_what_is_asked_for_is_the_best_of_its_list(language: str) -> None:
    lists = AttributeLists(language)
    rng = random.Random(0)
    for _ in range(500):
        best, *others = lists.group(rng)
        assert 2 <= len(others) <= OTHERS
        assert {other.query for other in others} == {best.query}
        assert best.query.strip()
        assert all(example.title.strip() for example in (best, *others))
        assert all(expected(other) < expected(best) for other in others)


def test_grades_of_rules_teach_the_order_alone_unless_they_are_taught() -> None:
    rng = random.Random(0)
    assert {example.weight for example in AttributeLists("ko").group(rng)} == {0.0}
    assert {example.weight for example in AttributeLists("ko", taught=True).group(rng)} == {1.0}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_query_and_no_title_of_the_short_lists_is_drawn(language: str) -> None:
    asked = [one for one in read_short_lists() if one.language == language]
    titles = {title.lower() for one in asked for title in one.titles}
    lists = AttributeLists(language, without=[one.query for one in asked])
    rng = random.Random(3)
    drawn = [example for _ in range(2000) for example in lists.group(rng)]
    assert not {example.query.lower() for example in drawn} & {one.query.lower() for one in asked}
    best = {one.titles[0].lower() for one in asked}
    assert not {example.title.lower() for example in drawn} & best
    assert len({example.title.lower() for example in drawn} & titles) < 0.02 * len(drawn)
