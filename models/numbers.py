"""Prints numbers and times for people: no exponents, no "−0", as many digits as say something."""

import math
from collections.abc import Callable
from datetime import UTC, datetime

SMALLEST = 1e-9
"""What is nearer to 0 is printed as 0."""

GIVEN = 12
"""Digits of a number that a person gave: all that it has, without the noise of binary fractions."""


def number(value: float, *, digits: int = 3, sign: bool = False, whole: float | None = None) -> str:
    """Return a number with `digits` significant digits, all digits before the point, and no zeros at its end.

    sign: a number above 0 gets a plus. whole: a number that no other is printed as; others that are near it
    get more digits.
    """
    if abs(value) < SMALLEST:
        return "0"
    decimals = _decimals(value, digits)
    if whole is not None and round(abs(value), decimals) == whole:
        missing = abs(whole - abs(value))
        decimals = _decimals(missing, 1) if missing > SMALLEST else 0
    text = f"{value:{'+' if sign else ''},.{decimals}f}"
    text = text.replace("-", "−")
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float, *, digits: int = 2, sign: bool = False) -> str:
    """Return a share in percent; only the whole is 100 %."""
    return f"{number(100 * share, digits=digits, sign=sign, whole=100)} %"


def rounded(value: float, *, up: bool, digits: int = 3) -> float:
    """Return an end of an interval, rounded up or down to what `number` prints of it, so that the text claims
    no more than the interval."""
    if abs(value) < SMALLEST:
        return 0.0
    scale = 10.0 ** _decimals(value, digits)
    scaled = round(value * scale, 6)  # without the noise of binary fractions
    return (math.ceil(scaled) if up else math.floor(scaled)) / scale


def outward(low: float, high: float, write: Callable[..., str] = number, *, sign: bool = False) -> str:
    """Return both ends of an interval with three digits, rounded outward, so that they claim no more.

    write: `number` or `percent`. sign: an end above 0 gets a plus.
    """
    lowest = write(rounded(low, up=False), digits=3, sign=sign)
    return f"{lowest} to {write(rounded(high, up=True), digits=3, sign=sign)}"


def _decimals(value: float, digits: int) -> int:
    """Return how many digits after the point make `digits` significant ones of a number that is not 0."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def fixed(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Return a number with `digits` decimals; a dash if it is undefined or has no bound.

    sign: a number above 0 gets a plus. What is rounded to 0 has no sign.
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", "−")


def minute(time: float) -> str:
    """Return a time of Unix seconds to the minute, in UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}"
