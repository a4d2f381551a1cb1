"""Turns an interval into a verdict: a code for programs and a sentence for people."""

from __future__ import annotations

import math

from models.numbers import number, percent
from service.experiments.report import Decision

GOOD: frozenset[Decision] = frozenset({"better", "good_enough", "worse_within_margin"})
BAD: frozenset[Decision] = frozenset({"worse", "too_bad"})


Verdict = tuple[Decision, str]
"""The answer to an experiment's question about one metric: a code and a sentence."""


def judge(
    subject: str,
    low: float,
    high: float,
    *,
    margin: float | None,
    sign: int = 1,
    relative: bool = False,
    gap: tuple[float, float] | None = None,
) -> Verdict:
    """Return the verdict on a change of `low` to `high` (arm against control); NaN means no interval yet.

    margin: how much worse is still good enough, in the unit of low and high. sign: 1 if more is better.
    relative: low and high are shares of control's value, so the sentence gives them in percent.
    gap: the interval of arm − (1 ∓ margin) · control. It decides on a margin that is a share of control's
        value if that value is too near 0 for a change in percent; low and high are then in the metric's unit.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return "undecided", f"{subject}: too little data for an interval."

    def size(value: float) -> str:
        return percent(value) if relative else number(value)

    worst, best = _gains((low, high), sign)
    if margin is None:
        worst_gap, best_gap, allowed = -math.inf, math.inf, ""
    elif gap is None:
        worst_gap, best_gap = worst + margin, best + margin
        allowed = f"; the margin is {size(margin)}"
    else:
        worst_gap, best_gap = _gains(gap, sign)
        allowed = f"; the margin is {percent(margin)} of control's value, which is not clearly above 0"
    loss = f"by {size(max(0.0, -best))} to {size(-worst)}"
    if worst > 0:
        return "better", f"{subject} is better, by {size(worst)} to {size(best)}."
    if worst_gap > 0 and best < 0:
        return "worse_within_margin", f"{subject} is worse, but within the margin: {loss}{allowed}."
    if worst_gap > 0:
        return (
            "good_enough",
            f"{subject} is good enough: worse by at most {size(-worst)}, if at all{allowed}.",
        )
    if best_gap < 0:
        return "too_bad", f"{subject} is too bad: worse {loss}{allowed}."
    if best < 0:
        still_open = "" if margin is None else ", so it is not yet known whether that is too bad"
        return "worse", f"{subject} is worse, {loss}{allowed}{still_open}."
    between = f"between {size(-worst)} worse and {size(best)} better"
    return "undecided", f"{subject} is undecided: {between}{allowed}."


def _gains(interval: tuple[float, float], sign: int) -> tuple[float, float]:
    """Return an interval turned so that above 0 is better: its worst and its best end."""
    low, high = interval
    return (low, high) if sign > 0 else (-high, -low)
