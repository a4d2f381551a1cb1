"""The baselines that the default model must beat: overlap of words, and of pairs of letters."""

import math

import pytest

from default_model.yardstick import bigrams_of, overlap


def test_pairs_of_letters_do_not_cross_words_and_single_letters_count() -> None:
    assert bigrams_of("무선 마우스 A") == ["무선", "마우", "우스", "a"]
    assert bigrams_of("无线鼠标，2.4G") == ["无线", "线鼠", "鼠标", "2", "4g"]
    assert bigrams_of(" - ") == []


def test_korean_words_with_endings_match_in_part_where_whole_words_do_not() -> None:
    titles = ["무선마우스는 조용하다", "유선 키보드", "파란 의자"]
    assert overlap(titles, "ko")("무선 마우스", titles[0]) == 1
    assert overlap(titles, "ko")("무선 마우스", titles[2]) == 0


def test_a_rare_pair_of_letters_weighs_more_by_the_usual_idf() -> None:
    titles = ["ab", "ab cd", "ab", "ef"]

    def idf(count: int) -> float:
        return math.log(1 + (len(titles) - count + 0.5) / (count + 0.5))

    share = overlap(titles, "ko")("ab cd", "xx cd")
    assert share == pytest.approx(idf(1) / (idf(1) + idf(3)))


def test_an_empty_query_overlaps_with_nothing() -> None:
    assert overlap(["a title"], "en")("", "a title") == 0
    assert overlap(["a title"], "ko")("!", "a title") == 0
