"""What reports and commands claim, and what they leave open."""

import math

import pytest

from headroom.models.quality.bootstrap import Interval
from headroom.models.study.wording import speed_claim


@pytest.mark.parametrize(
    ("low", "high", "wanted", "claim"),
    [
        (1.02, 1.33, 1.0, "runs at 1.12 × (1.02 to 1.33) the speed of it"),
        (0.7, 0.93, 1.0, ", so it is not faster"),
        (1.9, 2.2, 2.0, ", which does not show that it is 2 × as fast"),
        (math.nan, math.nan, 1.0, "(no interval) the speed of it, which does not show that it is faster"),
    ],
)
def test_a_speed_is_claimed_only_if_its_interval_shows_it(
    low: float, high: float, wanted: float, claim: str
) -> None:
    assert speed_claim(Interval(1.12, low, high), "it", wanted).endswith(claim)
