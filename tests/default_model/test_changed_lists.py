"""Lists that say what a title lacks, and stuffed titles: the order is the one that was asked for."""

import random

import pytest

from default_model.changed_lists import (
    AS_ASKED,
    SILENT,
    WITHOUT,
    NegatedTitles,
    StuffedLists,
    read_title_words,
)
from default_model.drawers import measured_texts
from default_model.groups import Example, Group
from default_model.written_lists import ShopLists, read_shop_lists
from default_model.yardstick import read_short_lists

TITLES = {
    "en": ["Anker Portable Fan White", "Zojirushi Rice Cooker Steel", "Levis Denim Jacket Blue"],
    "ko": ["한일 선풍기 화이트 리모컨", "쿠쿠 전기밥솥 스텐 6인용", "리바이스 데님 자켓 블루"],
    "zh": ["美的 电风扇 白色 静音", "苏泊尔 电饭煲 不锈钢 家用", "李维斯 牛仔 外套 蓝色"],
}


def grade(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


def negated(language: str, count: int = 400) -> list[Group]:
    rng = random.Random(0)
    drawer = NegatedTitles(TITLES[language], language, str.split)
    return [drawer.group(rng) for _ in range(count)]


@pytest.mark.parametrize("language", sorted(TITLES))
def test_the_title_that_says_what_was_asked_for_stands_above_the_silent_and_the_contrary_one(
    language: str,
) -> None:
    for group in negated(language):
        best, silent, contrary, stranger, _ = group
        assert len({example.query for example in group}) == 1
        assert {example.weight for example in group} == {0.0}
        assert [grade(best), grade(silent)] == pytest.approx([AS_ASKED, SILENT])
        grades = list(map(grade, group))
        assert grades == sorted(grades, reverse=True)
        assert best.title != contrary.title
        assert stranger.title not in {best.title, silent.title, contrary.title}


def test_who_asks_for_a_thing_without_a_feature_gets_the_one_that_lacks_it() -> None:
    """English says it in so many words, so the words can be read here."""
    lacking = ("no ", "without", "free", "non-", "zero", "not included")
    asked = 0
    for group in negated("en"):
        query = group[0].query
        if " without " not in query:
            continue
        feature = query.split(" without ")[1].lower()
        best = group[0].title.lower()
        contrary = group[2].title.lower()
        asked += 1
        assert feature in best
        assert any(word in best for word in lacking)
        assert feature in contrary
        assert feature not in group[1].title.lower()
        assert not any(word in contrary.replace(feature, "") for word in lacking)
    assert asked > 20


def test_a_feature_that_is_asked_for_turns_the_order_round() -> None:
    asked = [group for group in negated("en") if " with " in group[0].query]
    assert len(asked) > 20
    for group in asked:
        feature = group[0].query.split(" with ")[1].lower()
        contrary = group[2].title.lower()
        assert any(word in contrary for word in ("no ", "without", "free", "non-", "zero", "not included"))
        assert feature in group[0].title.lower()


@pytest.mark.parametrize("language", sorted(TITLES))
def test_nothing_that_the_model_is_judged_with_is_drawn(language: str) -> None:
    lists = [one for one in read_short_lists() if one.language == language]
    judged = {text.lower() for text in measured_texts()}
    assert {one.query.lower() for one in lists} < judged
    drawer = NegatedTitles(
        [title for one in lists for title in one.titles] + TITLES[language],
        language,
        str.split,
        without=sorted(judged),
    )
    rng = random.Random(1)
    groups = [drawer.group(rng) for _ in range(300)]
    stuffed = StuffedLists(ShopLists(language).group, language)
    groups += [stuffed.group(rng) for _ in range(100)]
    drawn = {text.lower() for group in groups for one in group for text in (one.query, one.title)}
    assert sorted(drawn & judged) == []


@pytest.mark.parametrize("language", sorted(TITLES))
def test_stuffing_leaves_query_title_and_order(language: str) -> None:
    plain = ShopLists(language)
    stuffed = StuffedLists(plain.group, language)
    for seed in range(50):
        before = plain.group(random.Random(seed))
        after = stuffed.group(random.Random(seed))
        for one, other in zip(before, after, strict=True):
            assert other.query == one.query
            assert other.target == one.target
            assert one.title.replace(" ", "") in other.title.replace(" ", "")
            assert len(other.title.replace(" ", "")) > len(one.title.replace(" ", ""))


@pytest.mark.parametrize("language", sorted(WITHOUT))
def test_the_lists_that_ask_for_something_without_something_can_be_drawn_alone(language: str) -> None:
    rng = random.Random(0)
    drawer = ShopLists(language, WITHOUT[language])
    queries = {drawer.group(rng)[0].query for _ in range(300)}
    rows = [row for row in read_shop_lists() if row["language"] == language]
    asked = [row["queries"].split("/") for row in rows if WITHOUT[language].search(row["queries"])]
    assert 15 <= len(asked) < len(rows) / 2
    assert queries == {query for forms in asked for query in forms}


@pytest.mark.parametrize("language", sorted(WITHOUT))
def test_every_form_names_what_it_is_about(language: str) -> None:
    words = read_title_words(language)
    for kind in ("asked", "wanted"):
        assert all("{thing}" in form and "{feature}" in form for form in words[kind])
    for kind in ("absent", "present"):
        assert all("{title}" in form and "{feature}" in form.lower() for form in words[kind])
    assert len(set(words["features"])) == len(words["features"]) >= 50
    assert len(set(words["fillers"])) == len(words["fillers"]) >= 15
