"""Lists that are written or changed for training hold nothing that the model is judged with."""

import random

import pytest

from default_model.changed_lists import (
    NegatedTitles,
    StuffedLists,
)
from default_model.drawers import measured_texts, written_drawers
from default_model.written_lists import ShopLists
from default_model.yardstick import read_short_lists

pytestmark = pytest.mark.more

TITLES = {
    "en": ["Anker Portable Fan White", "Zojirushi Rice Cooker Steel", "Levis Denim Jacket Blue"],
    "ko": ["한일 선풍기 화이트 리모컨", "쿠쿠 전기밥솥 스텐 6인용", "리바이스 데님 자켓 블루"],
    "zh": ["美的 电风扇 白色 静音", "苏泊尔 电饭煲 不锈钢 家用", "李维斯 牛仔 外套 蓝色"],
}


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
    written = written_drawers(language)
    groups += [
        draw(rng)
        for name, draw in written.items()
        if name.startswith(("shops", "stuffed", "without"))
        for _ in range(500)
    ]
    drawn = {text.lower() for group in groups for one in group for text in (one.query, one.title)}
    assert sorted(drawn & judged) == []
    titles = {title.lower() for one in lists for title in one.titles}
    branded = [one for _ in range(300) for one in written[f"brands_{language}"](rng)]
    assert titles.isdisjoint(one.title.lower() for one in branded)
    varied = [one for _ in range(2000) for one in written[f"attributes_{language}"](rng)]
    assert judged.isdisjoint(one.query.lower() for one in varied)
    assert {one.titles[0].lower() for one in lists}.isdisjoint(one.title.lower() for one in varied)
