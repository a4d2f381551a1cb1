"""Lists written by hand: nothing that the model is judged with, and the right title on top."""

import random

import pytest

from default_model.checks import KINDS, read_quadruples
from default_model.groups import Group
from default_model.written_lists import (
    BrandLists,
    ShopLists,
    read_shop_lists,
)
from default_model.yardstick import read_short_lists

pytestmark = pytest.mark.more

LANGUAGES = ("en", "ko", "zh")


def groups(drawer: BrandLists | ShopLists, count: int = 300) -> list[Group]:
    rng = random.Random(0)
    return [drawer.group(rng) for _ in range(count)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_query_and_no_title_that_the_model_is_judged_with_is_drawn(language: str) -> None:
    titles = {title for one in read_short_lists() for title in one.titles}
    judged = {text.lower() for text in titles | {one.query for one in read_short_lists()}}
    for name in ("english", "development", "korean", "chinese"):
        judged |= {row[column].lower() for row in read_quadruples(name) for column in ("query", *KINDS)}
    written = {
        text.lower()
        for row in read_shop_lists()
        for column, text in row.items()
        for text in (text.split("/") if column == "queries" else [text])
        if column != "language"
    }
    assert not written & judged
    drawn = groups(BrandLists(language, without=titles))
    assert not {example.title.lower() for group in drawn for example in group} & {
        title.lower() for title in titles
    }
