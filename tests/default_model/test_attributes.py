"""Lists that differ in an attribute: what has all that is asked for stands first."""

import random

import pytest

from default_model.attributes import LANGUAGES, AttributeLists
from default_model.yardstick import read_short_lists

pytestmark = pytest.mark.more


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
