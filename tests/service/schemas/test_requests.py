"""Requests as values: the same rules for whoever builds one, over HTTP or not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from service.config.settings import Settings
from service.errors import InvalidRequest
from service.schemas.limits import check_attention, check_compare, check_score
from service.schemas.requests import (
    AttentionRequest,
    CompareRequest,
    ScoreRequest,
)
from service.schemas.responses import ScoreResult, Timing, to_json

SETTINGS = Settings(max_pairs=10, max_compare_rows=200, request_timeout_s=2.0)


def test_both_forms_give_the_same_pairs() -> None:
    by_titles = ScoreRequest(query="a", titles=["x", ""])
    by_pairs = ScoreRequest.model_validate({"pairs": [["a", "x"], ["a", ""]]})
    assert by_titles.texts() == by_pairs.texts() == [("a", "x"), ("a", "")]


@pytest.mark.parametrize("query", ["a", " a ", "é", "日本", "😀", "\x00a", "-"])
def test_a_query_with_anything_to_read_is_accepted(query: str) -> None:
    request = ScoreRequest(query=query, titles=[""])
    check_score(request, SETTINGS)
    assert request.texts() == [(query, "")]


@pytest.mark.parametrize("query", ["", " ", "\n\t", "\u2003\u00a0", "\x00", "\u200b\ufeff", "\x1f \x7f"])
def test_a_query_with_nothing_to_read_is_refused(query: str) -> None:
    with pytest.raises(InvalidRequest, match="blank"):
        check_score(ScoreRequest(query=query, titles=["a"]), SETTINGS)
    with pytest.raises(InvalidRequest, match="blank"):
        check_attention(AttentionRequest(query=query, title="a", heads="0.0"))


def test_text_of_a_megabyte_is_not_a_matter_of_validation() -> None:
    request = ScoreRequest(query="q" * 1_000_000, titles=["t" * 1_000_000])
    check_score(request, SETTINGS)
    assert [tuple(map(len, pair)) for pair in request.texts()] == [(1_000_000, 1_000_000)]


def test_counts_are_allowed_up_to_the_limit_itself() -> None:
    check_score(ScoreRequest(query="a", titles=["t"] * 10, deadline_ms=2000), SETTINGS)
    with pytest.raises(InvalidRequest, match="11 are more than the 10"):
        check_score(ScoreRequest(query="a", titles=["t"] * 11), SETTINGS)
    check_compare(CompareRequest(query="a", titles=["t"] * 3, masks=["none"] * 64), SETTINGS)
    with pytest.raises(InvalidRequest, match="240 rows; the limit is 200") as caught:
        check_compare(
            CompareRequest(pairs=[("a", "b")] * 10, masks=["none"] * 20, variants=["x"] * 4), SETTINGS
        )
    assert caught.value.param == "pairs"
    with pytest.raises(InvalidRequest, match="65 masks and variants") as caught:
        check_compare(CompareRequest(query="a", titles=["t"], variants=["x"] * 65), SETTINGS)
    assert caught.value.param == "variants"


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


def test_a_mask_is_passed_on_as_it_was_written() -> None:
    form = {"weights": [[0.5, 1]]}
    assert ScoreRequest(query="a", titles=["b"], head_mask=form).head_mask == form


def test_a_request_cannot_be_changed_on_its_way() -> None:
    request = ScoreRequest(query="a", titles=["b"])
    with pytest.raises(ValidationError):
        request.query = "b"  # type: ignore[misc]


def test_timings_go_out_in_the_form_browsers_show() -> None:
    timing = Timing(0.2, 0.4, 6.1, 7.0)
    assert timing.server_timing() == (
        "tokenize;dur=0.200, queue;dur=0.400, inference;dur=6.100, total;dur=7.000"
    )


def test_a_model_without_grades_answers_with_nulls_in_their_place() -> None:
    result = ScoreResult(0, None, None, None, 0.5, None, 7, 1, True)
    assert to_json(result) == (
        b'{"index":0,"grade":null,"label":null,"expected_grade":null,"score":0.5,"probabilities":null,'
        b'"tokens":7,"unknown_tokens":1,"truncated":true,"raw_score":0.0,"empty":false,"chunk":null,"stage":null}'
    )
