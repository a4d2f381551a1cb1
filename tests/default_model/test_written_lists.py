"""Lists written by hand: nothing that the model is judged with, and the right title on top."""

import random
from collections import defaultdict

import pytest

from default_model.checks import KINDS, read_quadruples
from default_model.groups import Example, Group
from default_model.written_lists import (
    EXACT,
    BrandLists,
    ShopLists,
    read_kinds,
    read_shop_lists,
    says_enough,
)
from default_model.yardstick import read_short_lists

LANGUAGES = ("en", "ko", "zh")


def grade(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


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


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_list_teaches_order_alone_and_its_exact_titles_stand_above_the_others(language: str) -> None:
    for drawer in (ShopLists(language), BrandLists(language)):
        for group in groups(drawer, 100):
            assert len({example.query for example in group}) == 1
            assert {example.weight for example in group} == {0.0}
            assert grade(group[0]) == EXACT
            assert min(map(grade, group)) < EXACT


def test_a_brand_and_a_model_without_the_noun_are_what_was_asked_for() -> None:
    models = {model for kind in read_kinds("en") for names in kind.models.values() for model in names}
    nouns = {noun for kind in read_kinds("en") for noun in kind.nouns}
    best = [group[0] for group in groups(BrandLists("en"), 3000)]
    for_noun = [example for example in best if example.query in nouns]
    assert len(for_noun) > 1000
    assert all(example.title.partition(" ")[0] not in nouns for example in for_noun)
    alone = [example for example in best if example.title in models]
    assert len(alone) > 100
    assert all(says_enough(example.title) for example in alone)


def test_a_thing_of_the_same_family_is_no_stranger() -> None:
    """A Sportage is a car too, and a hot noodle soup is a noodle soup: neither is a wrong answer."""
    of_family = defaultdict[str, set[str]](set)
    kinds = read_kinds("en")
    for kind in kinds:
        of_family[kind.family] |= {
            f"{brand} {model}" for brand, models in kind.models.items() for model in models
        }
    by_noun = {noun: kind for kind in kinds for noun in kind.nouns}
    asked = 0
    for group in groups(BrandLists("en"), 3000):
        if group[0].query in by_noun:
            asked += 1
            wrong = {example.title for example in group[1:]}
            assert not wrong & of_family[by_noun[group[0].query].family]
    assert asked > 500


@pytest.mark.parametrize(
    ("model", "enough"), [("WH-CH720N", True), ("153", False), ("Jamsil", False), ("Galaxy Buds FE", True)]
)
def test_a_model_is_a_title_alone_only_if_it_says_enough(model: str, enough: bool) -> None:
    assert says_enough(model) == enough


def test_every_row_has_every_title_in_a_language_that_is_known() -> None:
    rows = read_shop_lists()
    assert {row["language"] for row in rows} == set(LANGUAGES)
    assert all(text for row in rows for text in row.values())
    for row in rows:
        titles = [text for column, text in row.items() if column not in ("language", "queries")]
        assert len(set(titles)) == len(titles) == 6
