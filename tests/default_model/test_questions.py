"""The pairs that the query generator learns from and is judged on."""

import gzip
import json
from pathlib import Path

import pytest

from default_model.groups import fold_of
from default_model.questions import (
    read_sae4k,
    training_pairs,
    venues,
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
