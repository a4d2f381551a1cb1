"""The wording of numbers and tests in the reports."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from headroom.models.numbers import fixed
from headroom.models.quality.bootstrap import Interval
from headroom.models.quality.metrics import GRADED, NAMES, RANKED, Measures


def changes_of(measures: Measures) -> tuple[str, ...]:
    """Return the heads of a table's columns with the change of each metric."""
    return tuple(f"Δ {NAMES[name]}" for name in measures.names)


_METHODS: dict[str, str] = tomllib.loads(Path(__file__).with_name("methods.toml").read_text("utf-8"))


def method(name: str, measures: Measures) -> str:
    """Return how the tables of `name` were made, with the metrics of the model's kind."""
    tested = listed([NAMES[metric] for metric in measures.tested])
    return _METHODS[name].format(
        tested_fall=f"{tested} each fall" if len(measures.tested) > 1 else f"{tested} falls",
        tested=listed([f"of {NAMES[metric]}" for metric in measures.tested]),
        needed=_NEEDED,
        loss=_LOSS[measures],
        answers="grades differ" if measures == GRADED else "scores differ",
    )


_NEEDED = (
    "Queries that would show it: with so many, by the spread seen, a part that costs nothing is shown to "
    "cost less than the margin with a chance of 80 %."
)

_LOSS = {
    GRADED: "that of the cross-entropy of the grades",
    RANKED: "that of the score, which is half the mean square of how far the scores move",
}
"""The loss whose Fisher information orders what a search removes."""


def layer_range(layers: range) -> str:
    """Return a range of layers as the mask grammar writes it: 0-5."""
    return f"{layers.start}-{layers.stop - 1}" if len(layers) > 1 else str(layers.start)


def signed(value: float, digits: int = 3) -> str:
    """Return a change with its sign, −0.031, or a dash if it is undefined or has no bound."""
    return fixed(value, digits, sign=True)


def percent(change: Interval) -> str:
    """Return a relative change and its interval in per cent: −5.2 % (−8.0 to −2.4)."""
    # Only QWK can fall by more than 100 %, and how much more is not worth telling.
    low = max(change.low, min(-1.0, change.value))
    text = Interval(100 * change.value, 100 * low, 100 * change.high).text(1, sign=True)
    return text.replace(" (", " % (", 1)


def share_text(share: Interval) -> str:
    """Return a share and its interval in per cent: 31 % (25 to 37)."""
    scaled = Interval(100 * share.value, 100 * share.low, 100 * share.high)
    return scaled.text(0).replace(" (", " % (", 1)


def speed_claim(speedup: Interval, reference: str, wanted: float = 1.0) -> str:
    """Say how fast something is, and no more than the interval says: runs at 1.21 × (1.15 to 1.26) the speed
    of `reference`. wanted: how many times as fast it is to be."""
    claim = f"runs at {speedup.text(2).replace(' (', ' × (', 1)} the speed of {reference}"
    if speedup.is_above(wanted):
        return claim
    goal = "faster" if wanted == 1 else f"{wanted:g} × as fast"
    return (
        f"{claim}, {'so it is not' if speedup.is_below(wanted) else 'which does not show that it is'} {goal}"
    )


def p_value(p: float) -> str:
    """Return a p-value to two or three decimals, never 0; "–" for nan."""
    if p != p:
        return "–"
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def about(count: int) -> str:
    """Return a number with two significant digits, rounded up, that is no more precise than the estimate."""
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{-(-count // step) * step:,}"


def power(needed: Sequence[int | None], queries: int, parts: str) -> str:
    """Say how many queries would show that half of the parts cost less than the margin.

    needed: of each part. queries: how many there are. parts: their name. Empty if these are enough for half
    of them, or if it is not known.
    """
    known = sorted(count for count in needed if count is not None)
    if not known or known[len(known) // 2] <= queries:
        return ""
    median = about(known[len(known) // 2])
    return f"; if half of the {parts} cost nothing, about {median} queries like these would show that"


def listed(items: Sequence[str]) -> str:
    """Join the items: a, b and c; "none" if there are none."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]])) or "none"
