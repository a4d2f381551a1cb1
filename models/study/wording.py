"""The wording of numbers and tests in the reports."""

from collections.abc import Sequence

from models.numbers import fixed
from models.quality.bootstrap import MIN_TESTED, Interval
from models.study.base import Head

NAMES = {"accuracy": "accuracy", "macro_f1": "macro-F1", "qwk": "QWK", "ndcg10": "NDCG@10"}
"""The names of the metrics in texts."""

CHANGES = tuple(f"Δ {name}" for name in NAMES.values())
"""The heads of a table's columns with the change of each metric."""

MAX_DIGITS = 6

TOO_FEW = (
    f"too few queries: nothing is called harmless if fewer than {MIN_TESTED} have titles of different grades"
)
"""Why one-sided tests claim nothing."""


def head_name(head: Head) -> str:
    """Return a head as the mask grammar writes it: 3.11."""
    return f"{head[0]}.{head[1]}"


def layer_range(layers: range) -> str:
    """Return a range of layers as the mask grammar writes it: 0-5."""
    return f"{layers.start}-{layers.stop - 1}" if len(layers) > 1 else str(layers.start)


def signed(value: float, digits: int = 3) -> str:
    """Return a change with its sign, −0.031, or a dash if it is undefined or has no bound."""
    return fixed(value, digits, sign=True)


def bound(value: float, margin: float) -> str:
    """Return the lower bound of a change, with as many digits as tell on which side of −margin it is."""
    digits = 3
    while digits < MAX_DIGITS and round(value, digits) == round(-margin, digits) and value != -margin:
        digits += 1
    return signed(value, digits)


def percent(change: Interval, digits: int = 1) -> str:
    """Return a relative change and its interval in per cent: −5.2 % (−8.0 to −2.4)."""
    # Only QWK can fall by more than 100 %, and how much more is not worth telling.
    low = max(change.low, min(-1.0, change.value))
    text = Interval(100 * change.value, 100 * low, 100 * change.high).text(digits, sign=True)
    return text.replace(" (", " % (", 1)


def p_value(p: float) -> str:
    """Return a p-value to two or three decimals, never 0; "–" for nan."""
    if p != p:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def listed(items: Sequence[str]) -> str:
    """Join the items: a, b and c."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else "none"
