"""Minimal pairs of real titles: a changed one is worse, and codes are left alone."""

import random

from default_model.changed_titles import ChangedTitles, ShortTitles, beginning
from default_model.groups import Example
from headroom.models.quality.labelled import LabelledPair


def expected(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


def english(title: str) -> list[str]:
    return title.lower().split()


def test_the_real_title_stands_above_the_one_with_another_value_and_the_one_without_it() -> None:
    titles = ["Acme wireless trackball, small hands", "Bosch cordless saw"]
    lists = ChangedTitles(titles, "en", english)
    rng = random.Random(0)
    changed = set()
    for _ in range(100):
        best, *others = lists.group(rng)
        assert best.title in titles
        assert all(expected(other) < expected(best) for other in others)
        changed |= {other.title for other in others if expected(other) == 2.5}
    assert "Acme wired trackball, small hands" in changed
    assert "Bosch corded saw" in changed
    assert not any("wireless" in title and "wired" in title.replace("wireless", "") for title in changed)


def test_a_title_that_names_two_values_of_an_attribute_is_not_changed_there() -> None:
    lists = ChangedTitles(["men's and women's gloves 2 pairs"], "en", english)
    rng = random.Random(1)
    for _ in range(50):
        assert all("men's and women's" in example.title for example in lists.group(rng))


def test_a_number_is_changed_as_a_whole_and_not_inside_a_code() -> None:
    lists = ChangedTitles(["Kabel X200-15 Länge 3.5 m 40 Watt"], "en", english)
    rng = random.Random(2)
    titles = {example.title for _ in range(50) for example in lists.group(rng)}
    assert all("X200-15" in title and "3.5 m" in title for title in titles)
    assert any("41 Watt" in title for title in titles)


def test_chinese_values_are_found_without_spaces() -> None:
    lists = ChangedTitles(["小熊无线搅拌机家用"], "zh", lambda title: [title[:2], title[4:7], title[7:]])
    rng = random.Random(3)
    titles = {example.title for _ in range(20) for example in lists.group(rng)}
    assert titles == {"小熊无线搅拌机家用", "小熊有线搅拌机家用", "小熊搅拌机家用"}


def test_the_beginning_of_a_title_keeps_its_grade() -> None:
    rows = [
        LabelledPair("pool pump", "Intex Krystal Clear 1500 GPH pump", 4),
        LabelledPair("pool pump", "Hose for pool pumps", 2),
    ]
    lists = ShortTitles([rows, [LabelledPair("lamp", "IKEA Tertial work lamp", 4)]], english)
    grades = dict[str, float]()
    for seed in range(50):
        group = lists.group(random.Random(seed))
        grades |= {example.title: expected(example) for example in group if example.query == "pool pump"}
    assert grades["Intex Krystal"] == 4
    assert grades["Hose for"] == 2
    assert grades["IKEA Tertial"] == 0
    assert not any(example.weight for example in group)


def test_a_beginning_ends_after_its_last_word() -> None:
    assert beginning("Canon DCC-75 Black", ["canon", "dcc", "75"]) == "Canon DCC-75"
    assert beginning("小米电磁炉 米家", ["小米", "电磁炉"]) == "小米电磁炉"
    assert beginning("Canon", []) == "Canon"
