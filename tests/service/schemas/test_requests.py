"""Requests as values: the same rules for whoever builds one, over HTTP or not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from service.config.settings import Settings
from service.errors import InvalidRequest
from service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from service.schemas.responses import ScoreResult, to_json

SETTINGS = Settings(max_pairs=10, max_compare_rows=200, request_timeout_s=2.0)


@pytest.mark.parametrize("query", ["a", " a ", "é", "日本", "😀", "\x00a", "-"])
def test_a_query_with_anything_to_read_is_accepted_in_either_form(query: str) -> None:
    by_titles = ScoreRequest(query=query, titles=["x", ""])
    by_pairs = ScoreRequest.model_validate({"pairs": [[query, "x"], [query, ""]]})
    assert by_titles.check(SETTINGS) == by_pairs.check(SETTINGS) == 2
    assert by_titles.texts() == by_pairs.texts() == [(query, "x"), (query, "")]


@pytest.mark.parametrize("query", ["", " ", "\n\t", "\u2003\u00a0", "\x00", "\u200b\ufeff", "\x1f \x7f"])
def test_a_query_with_nothing_to_read_is_refused(query: str) -> None:
    for request in (
        ScoreRequest(query=query, titles=["a"]),
        AttentionRequest(query=query, title="a", heads="0.0"),
    ):
        with pytest.raises(InvalidRequest, match="blank"):
            request.check(SETTINGS)


def test_counts_are_allowed_up_to_the_limit_itself() -> None:
    ScoreRequest(query="a" * 1_000_000, titles=["t"] * 10, deadline_ms=2000).check(SETTINGS)
    assert CompareRequest(query="a", titles=["t"] * 3, masks=["none"] * 64).check(SETTINGS) == 192
    for request, says, param in (
        (ScoreRequest(query="a", titles=["t"] * 11), "11 are more than the 10", "titles"),
        (
            CompareRequest(pairs=[("a", "b")] * 10, masks=["none"] * 20, variants=["x"] * 4),
            *("240 rows; the limit is 200", "pairs"),
        ),
        (CompareRequest(query="a", titles=["t"], variants=["x"] * 65), "65 masks and variants", "variants"),
    ):
        with pytest.raises(InvalidRequest, match=says) as caught:
            request.check(SETTINGS)
        assert caught.value.param == param


@pytest.mark.parametrize(
    "wrong",
    [
        {"titles": ("a",)},
        {"titles": [b"a"]},
        {"query": True},
        {"deadline_ms": "5"},
        {"deadline_ms": False},
        {"deadline_ms": float("nan")},
        {"deadline_ms": float("inf")},
        {"head_mask": 1.5},
        {"head_mask": ["2.3"]},
        {"pairs": [["a", 1]]},
        {"unit": b"u"},
        {"experiment": "x"},
    ],
)
def test_no_type_is_bent_into_another(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, InvalidRequest)):
        ScoreRequest.model_validate({"query": "a", "titles": ["b"], **wrong})


def test_a_mask_is_passed_on_as_it_was_written_and_a_request_cannot_be_changed_on_its_way() -> None:
    form = {"weights": [[0.5, 1]]}
    request = ScoreRequest(query="a", titles=["b"], head_mask=form)
    assert request.head_mask == form
    with pytest.raises(ValidationError):
        request.query = "b"  # type: ignore[misc]


def test_a_model_without_grades_answers_with_nulls_in_their_place() -> None:
    result = ScoreResult(0, None, None, None, 0.5, None, 7, 1, True)
    assert to_json(result) == (
        b'{"index":0,"grade":null,"label":null,"expected_grade":null,"score":0.5,"probabilities":null,'
        b'"tokens":7,"unknown_tokens":1,"truncated":true,"raw_score":0.0,"empty":false,"chunk":null,"stage":null}'
    )
