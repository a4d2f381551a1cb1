"""Lists that say what a title lacks, and stuffed titles: the order is the one that was asked for."""

import random

import pytest

from default_model.changed_lists import (
    AS_ASKED,
    SILENT,
    NegatedTitles,
    StuffedLists,
)
from default_model.drawers import measured_texts, written_drawers
from default_model.groups import Example, Group
from default_model.written_lists import ShopLists
from default_model.yardstick import read_short_lists

pytestmark = pytest.mark.more

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
    stuffed = StuffedLists(ShopLists(language, without=judged).group, language)
    groups += [stuffed.group(rng) for _ in range(100)]
    groups += [
        draw(rng)
        for name, draw in written_drawers(language).items()
        if name.startswith(("shops", "stuffed", "without"))
        for _ in range(500)
    ]
    drawn = {text.lower() for group in groups for one in group for text in (one.query, one.title)}
    assert sorted(drawn & judged) == []
