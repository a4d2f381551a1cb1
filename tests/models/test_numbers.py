"""Numbers as people read them: no exponent, no zero with a sign, and a dash for what is not there."""

from __future__ import annotations

import math

from models.numbers import fixed, number, percent


def test_a_large_change_has_no_exponent() -> None:
    assert percent(3.04) == "300 %" or percent(3.04) == "304 %"
    assert "e" not in number(123456789.0)


def test_zero_has_no_sign_and_nothing_is_a_dash() -> None:
    assert [fixed(value, sign=True) for value in (-0.0001, 0.0, 0.0004)] == ["0.000"] * 3
    assert number(-1e-12) == "0"
    assert [fixed(value) for value in (None, math.nan, -math.inf)] == ["–"] * 3
    assert (fixed(-0.0314, sign=True), fixed(0.5), fixed(1.25, 1, sign=True)) == ("−0.031", "0.500", "+1.2")


def test_changes_are_printed_without_exponents_and_minus_0() -> None:
    """It said "3e+02 % better" and "−0"."""
    printed = {3.24: "+324 %", -0.0: "0 %", 1e-12: "0 %", 0.0123: "+1.2 %", -0.5: "-50 %", 12.3: "+1,230 %"}
    assert {value: percent(value, sign=True) for value in printed} == printed
