"""Prints changes for people: with a sign, and none if they are rounded to 0. (`models` has its own: the load
tester knows no other room.)"""

from __future__ import annotations


def signed(value: float, digits: int = 1) -> str:
    """Return a number with its sign and so many decimals."""
    text = f"{value:+,.{digits}f}"
    return f"{0:.{digits}f}" if float(text.replace(",", "")) == 0 else text


def percent(share: float) -> str:
    """Return a change as a share in percent."""
    return f"{signed(100 * share)}%"
