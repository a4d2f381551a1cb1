"""Changes as the load tester prints them."""

from loadtest.numbers import percent, signed


def test_a_change_that_is_rounded_to_zero_has_no_sign():
    assert [percent(share) for share in (-0.0001, 0.0004, 0.0)] == ["0.0%"] * 3
    assert (percent(0.142), percent(-0.19)) == ("+14.2%", "-19.0%")
    assert (signed(-0.04), signed(1234.56)) == ("0.0", "+1,234.6")
