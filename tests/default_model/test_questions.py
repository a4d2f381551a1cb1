"""The pairs that the query generator learns from and is judged on."""

import gzip
import json
from pathlib import Path

import pytest

from default_model.groups import fold_of
from default_model.question_figures import is_exact, rouge_l
from default_model.questions import (
    made_up,
    read_sae4k,
    read_webquestions,
    training_pairs,
    venues,
    without_function_words,
)

EXAMPLE = "강남역에서 가장 회식 하기 좋은 오리고기 맛있는 집은 어디야?"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write SAE4K with 400 questions, of which each phrase has two."""
    directory = tmp_path / "multilingual" / "sae4k"
    directory.mkdir(parents=True)
    rows = [
        {"query": f"질문 {number} 알려줘", "title": f"답 {number // 2}", "grade": 4, "source": "sae4k"}
        for number in range(400)
    ]
    rows.append({"query": "질문 1 알려줘", "title": "다른 답", "grade": 1, "source": "sae4k_near"})
    with gzip.open(directory / "pairs.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row | {"lang": "ko"}, ensure_ascii=False) + "\n" for row in rows)
    return tmp_path


def test_nothing_of_the_held_out_questions_is_trained_on(data: Path) -> None:
    parts = read_sae4k(data)
    assert {fold_of(row.question) for row in parts["test"]} <= {0, 1}
    assert {fold_of(row.question) for row in parts["choosing"]} == {2}
    assert min(map(len, parts.values())) > 10
    held_out = {row.query for row in (*parts["test"], *parts["choosing"])}
    assert not held_out & {row.query for row in parts["training"]}  # nor a paraphrase's answer
    assert "다른 답" not in {row.query for part in parts.values() for row in part}
    assert parts == read_sae4k(data)


def test_the_sources_example_is_not_trained_on(data: Path) -> None:
    pairs = training_pairs(data, None)
    assert {pair.source for pair in pairs} == {"sae4k", "made_en", "made_ko", "made_zh"}
    assert not [pair for pair in pairs if "오리고기" in pair.question]
    assert EXAMPLE not in {pair.question for pair in pairs}
    assert not [pair for pair in venues(5000, seed=0) if "강남역" in pair.question]


@pytest.mark.parametrize("language", ["en", "ko", "zh"])
def test_made_up_questions_hold_what_is_asked_for(language: str) -> None:
    pairs = list(made_up(language, 50, seed=3))
    assert pairs == list(made_up(language, 50, seed=3))
    for pair in pairs:
        assert len(pair.question) > len(pair.query)
        assert "{" not in pair.question
        assert all(word in pair.question for word in pair.query.split())


def test_questions_about_places_get_a_word_that_they_do_not_have() -> None:
    pairs = list(venues(200, seed=0))
    written = [pair for pair in pairs if "맛집" in pair.query]
    assert len(written) > 100
    assert not [pair for pair in written if "맛집" in pair.question]


def test_english_questions_of_people_lose_their_function_words(tmp_path: Path) -> None:
    assert without_function_words("What is the name of Justin Bieber's brother?") == "justin bieber's brother"
    file = tmp_path / "trainmodel.json"
    rows = [{"qText": "what does jamaican people speak?"}, {"qText": "who is it?"}]
    file.write_text(json.dumps(rows), encoding="utf-8")
    assert [pair.query for pair in read_webquestions(file)] == ["jamaican speak"]


def test_measures() -> None:
    assert rouge_l("강남역 오리고기 맛집", "강남역 오리고기 맛집") == 1
    assert rouge_l("가나", "가다라") == pytest.approx(2 * 1 / 5)
    assert rouge_l("라가", "가라") == pytest.approx(0.5)
    assert rouge_l("", "가") == 0
    assert is_exact("가 나다", "가나 다") == 1
    assert is_exact("가나", "가") == 0
