"""The Korean and Chinese lists: folds, order within a list, and queries of a title's own words."""

import gzip
import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from default_model.groups import TEST_FOLDS, TRAINING_FOLDS, VALIDATION_FOLDS, Example
from default_model.multilingual import (
    LARGEST_LIST,
    GradedLists,
    ListedPair,
    PiecedTitles,
    SentencePairs,
    read_lists,
    words_of,
)
from headroom.models.checkpoint.hub import DEFAULT


def expected(example: Example) -> float:
    return sum(grade * share for grade, share in enumerate(example.target))


def test_a_query_is_in_one_fold_only_and_pairs_of_one_query_stay_together(tmp_path: Path) -> None:
    directory = tmp_path / "multilingual" / "some_set"
    directory.mkdir(parents=True)
    rows = [
        {"query": f"질문 {n}", "title": f"제목 {n} {grade}", "grade": grade, "source": "some", "lang": "ko"}
        for grade in (4, 0)
        for n in range(60)
    ]
    with gzip.open(directory / "pairs.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    parts = [
        read_lists(tmp_path, "some_set", folds) for folds in (TEST_FOLDS, VALIDATION_FOLDS, TRAINING_FOLDS)
    ]
    assert sum(map(len, parts)) == 60
    assert all(len(pairs) == 2 for part in parts for pairs in part)
    assert all(parts)


def test_a_list_is_ranked_and_its_grades_teach_no_scale() -> None:
    pairs = [ListedPair("질문", f"제목 {n}", n % 5, "some", "ko") for n in range(20)]
    one_grade = [ListedPair("다른 질문", f"제목 {n}", 4, "some", "ko") for n in range(3)]
    lists = GradedLists([pairs, one_grade])
    for seed in range(20):
        group = lists.group(random.Random(seed))
        assert len(group) == LARGEST_LIST
        assert {example.query for example in group} == {"질문"}
        assert {example.weight for example in group} == {0.0}
        assert {expected(example) for example in group} == {0, 1, 2, 3, 4}
        assert len({example.title for example in group}) == LARGEST_LIST


def test_sentence_pairs_are_ranked_across_queries() -> None:
    pairs = [[ListedPair(f"문장 {n}", f"제목 {n}", n % 5, "some", "ko")] for n in range(20)]
    group = SentencePairs(pairs).group(random.Random(0))
    assert len({example.query for example in group}) == 4
    assert not any(example.weight for example in group)


def test_a_title_with_more_and_rarer_words_of_a_query_is_better() -> None:
    titles = ["파란 램프 12인치", "파란 램프 5인치", "초록 램프 12인치", "파란 드릴", "빨간 톱"]
    lists = PiecedTitles(titles, str.split)
    rng = random.Random(3)
    grades = dict[tuple[str, str], float]()
    for _ in range(500):
        own, *others = lists.group(rng)
        assert expected(own) == 4
        grades |= {(own.query, other.title): expected(other) for other in others}
    assert grades["파란 램프", "파란 램프 5인치"] == 4
    assert grades["파란 램프", "빨간 톱"] == 0
    assert 4 > grades["램프 12인치", "파란 램프 5인치"] > 0
    assert grades["램프 12인치", "초록 램프 12인치"] == 4


def test_chinese_words_are_the_pieces_of_the_tokenizer_without_signs() -> None:
    tokenizer = Tokenizer.from_file(str(DEFAULT / "tokenizer.json"))
    title = "【小米】电磁炉 家用 2100W"
    words = words_of(title, tokenizer)
    assert "".join(words) == "小米电磁炉家用2100W"
    assert len(words) >= 4
    assert all(word == word.strip() for word in words)


@pytest.mark.parametrize("folds", [TEST_FOLDS, VALIDATION_FOLDS])
def test_a_set_that_is_not_there_has_no_lists(tmp_path: Path, folds: tuple[int, ...]) -> None:
    assert read_lists(tmp_path, "none", folds) == []
