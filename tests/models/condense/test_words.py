"""What counts as a word of a query, and what a shorter query has of it."""

import pytest

from headroom.models.condense import words
from headroom.models.condense.words import count_words, join, read_words, strip_particle


def forms(query: str) -> list[str]:
    return [word.form for word in read_words(query)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("where can i find ducks?", ["where", "can", "i", "find", "ducks"]),
        ('"red  shoes" (new), size 9.5!', ["red", "shoes", "new", "size", "9.5"]),
        ("C++ books - for .NET & C#", ["C++", "books", "for", ".NET", "C#"]),
        ("¿dónde está «la Sagrada Família»?", ["dónde", "está", "la", "Sagrada", "Família"]),
        ("ice\u00a0cream\tand\u3000cake", ["ice", "cream", "and", "cake"]),
        ("มือถือราคาถูก?", ["มือถือราคาถูก"]),
    ],
)
def test_words_stand_between_spaces_and_lose_the_marks_around_them(query: str, expected: list[str]) -> None:
    assert forms(query) == expected
    assert count_words(query) == len(expected)
    assert [word.text for word in read_words(query) if word.text not in query] == []


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("강남역에서", "강남역"),
        ("집은", "집"),
        ("오리는", "오리"),
        ("가격이", "가격"),
        ("친구가", "친구"),
        ("책을", "책"),
        ("사과를", "사과"),
        ("서울의", "서울"),
        ("집에", "집"),
        ("학교로", "학교"),
        ("서울로", "서울"),
        ("손으로", "손"),
        ("LG에서", "LG"),
        ("TV를", "TV"),
        ("2호선의", "2호선"),
    ],
)
def test_every_korean_particle_is_stripped(word: str, stem: str) -> None:
    assert strip_particle(word) == stem


@pytest.mark.parametrize(
    "word", ["맛있는", "없는", "오리고기", "도로", "회의", "나이", "휴가", "가", "에", "맛집", "duck", "로션"]
)
def test_words_that_only_look_like_a_noun_with_a_particle_stay(word: str) -> None:
    assert strip_particle(word) == word


def test_the_korean_example_without_its_particles() -> None:
    query = "강남역에서 가장 회식 하기 좋은 오리고기 맛있는 집은 어디야?"
    assert join(read_words(query)) == "강남역 가장 회식 하기 좋은 오리고기 맛있는 집 어디야"


@pytest.mark.parametrize("jieba", [True, False])
def test_chinese_is_split_into_words_and_joined_as_it_was_typed(
    jieba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not jieba:
        monkeypatch.setattr(words, "chinese_splitter", lambda: list)
    query = "小米 Redmi5代真无线蓝牙耳机，白色！"
    split = read_words(query)
    expected = ["蓝牙", "耳机", "白色"] if jieba else list("蓝牙耳机白色")
    assert [word.form for word in split][-len(expected) :] == expected
    assert [word.form for word in split][:2] == ["小米" if jieba else "小", "Redmi5" if jieba else "米"]
    assert join(split) == "小米 Redmi5代真无线蓝牙耳机白色"
    assert join([split[0], *split[-len(expected) :]]).split(" ")[1] == "蓝牙耳机白色"
    assert len(split) <= count_words(query)
