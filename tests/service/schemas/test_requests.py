"""Requests as values: what is right is kept as it was meant."""

import pytest

from service.config.settings import Settings
from service.schemas.experiments import OutcomesRequest
from service.schemas.requests import ScoreRequest

OUTCOME = {"experiment": "prune20", "unit": "u", "metric": "click", "value": 1, "time": 1.0, "id": "o"}


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
    by_titles.check(SETTINGS)
    by_pairs.check(SETTINGS)
    assert by_titles.texts() == by_pairs.texts() == [(query, "x"), (query, "")]
