"""What a person tries first comes out as that person would grade it."""

import pytest

from default_model.checks import contradiction_answers
from headroom.models.classifier import Classifier


@pytest.fixture(scope="module")
def shipped() -> Classifier:
    return Classifier.load(device="cpu")


# A query of the page or the README, a title, and the grades that a person could give it.
EXAMPLES = [
    ("wireless mouse", "Logitech M185 Wireless Mouse", {4}),
    ("wireless mouse", "Logitech M185 Wireless Mouse, 2.4 GHz with USB Receiver, Black", {4}),
    ("wireless mouse", "Wired optical mouse", {1, 2, 3}),
    ("wireless mouse", "Wired optical mouse with 1.8 m USB cable", {1, 2, 3}),
    ("wireless mouse", "Mouse pad, 300 × 250 mm, non-slip rubber base", {1, 2}),
    ("wireless mouse", "Cotton dish towel, set of 4", {0}),
    ("무선 마우스", "로지텍 M185 무선 마우스 블랙 USB 나노 수신기 포함", {4}),
    ("무선 마우스", "유선 광 마우스 1.8m USB 케이블", {1, 2, 3}),
    ("무선 마우스", "면 행주 4장 세트", {0}),
    ("无线鼠标", "罗技 M185 无线鼠标 2.4G 带 USB 接收器 黑色", {4}),
    ("无线鼠标", "有线光电鼠标 1.8 米 USB 线", {1, 2, 3}),
    ("无线鼠标", "纯棉擦碗布 4 条", {0}),
    ("red dress", "Red summer dress", {4}),
    ("red dress", "Blue summer dress", {1, 2, 3}),
    ("苹果手机壳", "苹果15手机壳", {3, 4}),
    ("苹果手机壳", "新鲜红富士苹果 5斤", {0, 1}),
    ("sugar free jam", "Strawberry jam with cane sugar", {1, 2, 3}),
]


@pytest.mark.parametrize(("query", "title", "grades"), EXAMPLES)
def test_a_first_example_is_graded_as_by_a_person(
    shipped: Classifier, query: str, title: str, grades: set[int]
) -> None:
    assert int(shipped.score(query, [title]).grade[0]) in grades


def test_titles_that_contradict_the_query_are_told_from_those_that_fit(shipped: Classifier) -> None:
    first, clear, exact, close = contradiction_answers(lambda pairs: shipped.score(list(pairs)))
    assert first.value >= 0.95, first
    assert clear.value >= 0.80, clear
    assert exact.value <= 0.15, exact  # 0.10 is aimed at
    assert close.value >= 0.90, close
