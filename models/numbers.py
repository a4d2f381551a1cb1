"""Prints numbers and times for people: no exponents, no "−0", as many digits as say something."""

import math
from datetime import UTC, datetime

SMALLEST = 1e-9
"""What is nearer to 0 is printed as 0."""


def number(value: float, *, digits: int = 3, sign: bool = False) -> str:
    """Return a number with `digits` significant digits, all digits before the point, and no zeros at its end.

    sign: a number above 0 gets a plus.
    """
    if abs(value) < SMALLEST:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:{'+' if sign else ''},.{decimals}f}"
    text = text.replace("-", "−")
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float, *, digits: int = 2, sign: bool = False) -> str:
    """Return a share in percent."""
    return f"{number(100 * share, digits=digits, sign=sign)} %"


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
