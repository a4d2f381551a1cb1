"""Numbers in the reports: one way to write a change, and never "nan"."""

from __future__ import annotations

import math

from models.quality.bootstrap import Interval
from models.study.wording import bound, p_value, percent, signed


def test_an_undefined_number_is_a_dash() -> None:
    nothing = Interval(math.nan, math.nan, math.nan)
    texts = [
        signed(math.nan),
        p_value(math.nan),
        nothing.text(),
        percent(nothing),
    ]
    assert texts == ["–"] * 4
    assert signed(-math.inf) == "–"


def test_negative_numbers_have_a_minus_sign_and_changes_a_plus() -> None:
    assert (signed(-0.0314), signed(0.0314), signed(-0.0001)) == ("−0.031", "+0.031", "0.000")
    assert Interval(0.0294, -0.0294, 0.7).text() == "0.029 (−0.029 to 0.700)"
    assert Interval(0.0294, -0.0294, 0.7).text(2, sign=True) == "+0.03 (−0.03 to +0.70)"
    assert percent(Interval(-1.2, -4.0, -0.9)) == "−120.0 % (−120.0 to −90.0)"
    assert percent(Interval(-0.2, math.nan, math.nan)) == "−20.0 % (no interval)"


def test_a_bound_shows_on_which_side_of_the_margin_it_is() -> None:
    assert (bound(-0.0196, 0.02), bound(-0.0204, 0.02)) == ("−0.0196", "−0.0204")
    assert (bound(-0.01999, 0.02), bound(-0.016, 0.02), bound(-0.02, 0.02)) == (
        "−0.01999",
        "−0.016",
        "−0.020",
    )
    assert (bound(0.0204, 0.02), bound(-math.inf, 0.02)) == ("+0.020", "–")
