"""Requests as values: what is right is kept as it was meant."""

import pytest
from pydantic import ValidationError

from headroom.service.config.settings import Settings
from headroom.service.schemas.experiments import OutcomesRequest
from headroom.service.schemas.requests import ScoreRequest

OUTCOME = {"experiment": "prune20", "unit": "u", "metric": "click", "value": 1, "time": 1.0, "id": "o"}


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (1_795_183_200, 1_795_183_200.0),
        (0.5, 0.5),
        ("2026-11-20T14:00:00Z", 1_795_183_200.0),
        ("2026-11-20T14:00:00", 1_795_183_200.0),
        ("2026-11-20T15:00:00+01:00", 1_795_183_200.0),
        # RFC 3339, section 5.6: "T" and "Z" may be lower case, and a second 60 is a leap second.
        ("2026-11-20t14:00:00z", 1_795_183_200.0),
        ("1990-12-31T23:59:60Z", 662_688_000.0),  # as `date -u -d "1991-01-01" +%s`
        ("1990-12-31T15:59:60-08:00", 662_688_000.0),  # the same one, in section 5.8's words
        ("2016-12-31T23:59:60.5Z", 1_483_228_800.5),
    ],
)
def test_times_are_unix_seconds_or_iso_8601(time: float | str, seconds: float) -> None:
    (outcome,) = OutcomesRequest.model_validate({"outcomes": [OUTCOME | {"time": time}]}).outcomes
    assert outcome.event().time == seconds


@pytest.mark.parametrize(
    "time",
    ["2026-11-20", "20261120", "2026-W47-5", "2026-11-20T14:00:60Z", "2026-11-20T23:59:61Z", "now", ""],
)
def test_a_date_alone_and_a_second_that_no_minute_has_are_refused(time: str) -> None:
    """A date would mean its midnight, before every exposure of that day: the outcome would never count."""
    with pytest.raises(ValidationError, match="a date and time such as 2026-11-20T14:00:00Z"):
        OutcomesRequest.model_validate({"outcomes": [OUTCOME | {"time": time}]})


SETTINGS = Settings(max_pairs=10, max_compare_rows=200, request_timeout_s=2.0)


@pytest.mark.parametrize("query", ["a", " a ", "é", "日本", "😀", "\x00a", "-"])
def test_a_query_with_anything_to_read_is_accepted_in_either_form(query: str) -> None:
    by_titles = ScoreRequest(query=query, titles=["x", ""])
    by_pairs = ScoreRequest.model_validate({"pairs": [[query, "x"], [query, ""]]})
    by_titles.check(SETTINGS)
    by_pairs.check(SETTINGS)
    assert by_titles.texts() == by_pairs.texts() == [(query, "x"), (query, "")]
