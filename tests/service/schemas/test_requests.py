"""Requests as values: what is wrong is refused with its place, and what is right is kept as it was meant."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from service.api.errors import explain
from service.config.settings import Settings
from service.schemas.experiments import OutcomesRequest, RampRequest, ShipRequest, StopRequest
from service.schemas.requests import ScoreRequest

OUTCOME = {"experiment": "prune20", "unit": "u", "metric": "click", "value": 1, "time": 1.0, "id": "o"}
SCORE = {"query": "wireless mouse", "titles": ["Logitech M185"]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"time": 1_795_000_000_000}, "outcomes[0].time: should be seconds since 1970, not milliseconds"),
        ({"time": "yesterday"}, "outcomes[0].time"),
        ({"time": True}, "outcomes[0].time"),
        ({"time": -1}, "outcomes[0].time"),
        ({"value": 1e16}, "outcomes[0].value: should be less than or equal to 1000000000000000"),
        ({"value": "1"}, "outcomes[0].value"),
        ({"unit": "a\0b"}, "outcomes[0].unit: must not hold a NUL character"),
        ({"id": "a\0b"}, "outcomes[0].id: must not hold a NUL character"),
        ({"experiment": "a\0b"}, "outcomes[0].experiment: must not hold a NUL character"),
        ({"metric": "a\0b"}, "outcomes[0].metric"),
        ({"unit": ""}, "outcomes[0].unit"),
        ({"id": "x" * 257}, "outcomes[0].id"),
        ({"id": None}, "outcomes[0].id"),
        ({"metric": "two words"}, "outcomes[0].metric"),
    ],
)
def test_a_wrong_outcome_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        OutcomesRequest.model_validate({"outcomes": [OUTCOME | change]})
    assert str(explain(refused.value.errors())).startswith(said)


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        (StopRequest, {"reason": "a\0b"}),
        (RampRequest, {"reason": "a\0b"}),
        (ShipRequest, {"arm": "b", "reason": "a\0b"}),
        (ShipRequest, {"arm": "a\0b"}),
        (ScoreRequest, SCORE | {"unit": "a\0b"}),
        (ScoreRequest, SCORE | {"attributes": {"a\0b": 1}}),
        (ScoreRequest, SCORE | {"attributes": {"locale": "a\0b"}}),
    ],
)
def test_a_nul_is_refused_in_whatever_postgresql_would_have_to_keep(
    model: type[BaseModel], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(wrong)
    assert "must not hold a NUL character: PostgreSQL cannot keep it" in str(explain(refused.value.errors()))


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (1_795_183_200, 1_795_183_200.0),
        (0.5, 0.5),
        ("2026-11-20T14:00:00Z", 1_795_183_200.0),
        ("2026-11-20T14:00:00", 1_795_183_200.0),
        ("2026-11-20T15:00:00+01:00", 1_795_183_200.0),
    ],
)
def test_times_are_unix_seconds_or_iso_8601(time: float | str, seconds: float) -> None:
    (outcome,) = OutcomesRequest.model_validate({"outcomes": [OUTCOME | {"time": time}]}).outcomes
    assert outcome.event().time == seconds


SETTINGS = Settings(max_pairs=10, max_compare_rows=200, request_timeout_s=2.0)


@pytest.mark.parametrize("query", ["a", " a ", "é", "日本", "😀", "\x00a", "-"])
def test_a_query_with_anything_to_read_is_accepted_in_either_form(query: str) -> None:
    by_titles = ScoreRequest(query=query, titles=["x", ""])
    by_pairs = ScoreRequest.model_validate({"pairs": [[query, "x"], [query, ""]]})
    assert by_titles.check(SETTINGS) == by_pairs.check(SETTINGS) == 2
    assert by_titles.texts() == by_pairs.texts() == [(query, "x"), (query, "")]
