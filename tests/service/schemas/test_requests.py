"""Requests as values: what is right is kept as it was meant."""

import pytest
from pydantic import ValidationError

from headroom.service.schemas.experiments import OutcomesRequest

OUTCOME = {"experiment": "prune20", "unit": "u", "metric": "click", "value": 1, "time": 1.0, "id": "o"}


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (1_795_183_200, 1_795_183_200.0),
        ("2026-11-20T14:00:00Z", 1_795_183_200.0),
        ("2026-11-20T15:00:00+01:00", 1_795_183_200.0),
        ("2026-11-20t14:00:00z", 1_795_183_200.0),  # RFC 3339, section 5.6: lower case is allowed
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
