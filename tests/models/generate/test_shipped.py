"""The shipped generator: what the documentation shows."""

import re
from pathlib import Path

import pytest

from headroom import Classifier

PAGE = (Path(__file__).parents[3] / "docs" / "condense.md").read_text("utf-8")


@pytest.fixture(scope="module")
def shipped() -> Classifier:
    return Classifier.load(device="cpu")


def test_the_documentations_example_is_what_the_model_writes(shipped: Classifier) -> None:
    examples = re.findall(r'^\$ headroom condense "([^"]+)" --generate\n(.+)$', PAGE, re.MULTILINE)
    assert examples
    for question, query in examples:
        assert shipped.generate_query(question)[0].query == query
        assert not set(query.split()) <= set(question.split())  # a word that the question does not have


@pytest.mark.parametrize("question", ["mouse", "where can i buy a NVIDIA H200", "12345", "best coffee"])
def test_an_english_question_gets_no_korean_or_chinese_word(shipped: Classifier, question: str) -> None:
    assert all(one.query.isascii() for one in shipped.generate_query(question))


@pytest.mark.parametrize(
    "question",
    ["ノートパソコンのおすすめを教えてください", "a", "can you recommend shoes for flat feet under $100"],
)
def test_queries_have_no_unknown_piece_and_single_spaces(shipped: Classifier, question: str) -> None:
    for one in shipped.generate_query(question):
        assert "unk" not in one.query
        assert one.query == " ".join(one.query.split())
