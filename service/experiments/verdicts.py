"""Turns an interval into a verdict: a code for programs and a sentence for people."""

import math
from collections.abc import Callable

from models.numbers import number, percent
from service.experiments.definition import Metric
from service.experiments.estimates import Contrast
from service.experiments.report import Decision

GOOD: frozenset[Decision] = frozenset({"better", "good_enough", "worse_within_margin"})
BAD: frozenset[Decision] = frozenset({"worse", "too_bad"})

Verdict = tuple[Decision, str]
"""The answer to an experiment's question about one metric: a code and a sentence."""


def verdict(metric: Metric, arm: str, found: Contrast, gap: Contrast | None) -> Verdict:
    """Return the verdict on one metric of one arm.

    gap: the contrast arm − (1 ∓ margin) · control, which judges a margin that is a share of control's value.
    """
    subject, margin = f"{arm} on {metric.name}", metric.margin
    low, high = float(found.low), float(found.high)
    if not math.isfinite(low):
        return "undecided", f"{subject}: too little data for an interval."
    if margin is None:
        return judge(subject, (low, high), metric.sign)
    if gap is None:
        within = low + metric.sign * margin, high + metric.sign * margin
        return judge(subject, (low, high), metric.sign, within, f"; the margin is {number(margin)}")
    within, allowed = (float(gap.low), float(gap.high)), f"; the margin is {percent(margin)}"
    if math.isfinite(float(found.relative_low)):
        share = float(found.relative_low), float(found.relative_high)
        return judge(subject, share, metric.sign, within, allowed, percent)
    if not math.isfinite(within[0]):
        return (
            "undecided",
            f"{subject}: control's value is below 0, so a margin relative to it says nothing; give the "
            f"metric {metric.name!r} a margin in its own unit with `relative: false`.",
        )
    allowed += " of control's value, which is not clearly above 0"
    return judge(subject, (low, high), metric.sign, within, allowed)


def judge(
    subject: str,
    change: tuple[float, float],
    sign: int,
    within: tuple[float, float] = (-math.inf, math.inf),
    allowed: str = "",
    size: Callable[[float], str] = number,
) -> Verdict:
    """Return the verdict on an interval of a change, arm against control.

    sign: 1 if more is better, else -1. within: the interval of the change and the margin together; above 0
    (with the sign) the arm is within the margin. allowed: says the margin. size: writes a number.
    """
    worst, best = _gains(change, sign)
    worst_within, best_within = _gains(within, sign)
    loss = f"by {size(max(0.0, -best))} to {size(-worst)}"
    if worst > 0:
        return "better", f"{subject} is better, by {size(worst)} to {size(best)}."
    if worst_within > 0 and best < 0:
        return "worse_within_margin", f"{subject} is worse, but within the margin: {loss}{allowed}."
    if worst_within > 0:
        return (
            "good_enough",
            f"{subject} is good enough: worse by at most {size(-worst)}, if at all{allowed}.",
        )
    if best_within < 0:
        return "too_bad", f"{subject} is too bad: worse {loss}{allowed}."
    if best < 0:
        still_open = ", so it is not yet known whether that is too bad" if allowed else ""
        return "worse", f"{subject} is worse, {loss}{allowed}{still_open}."
    between = f"between {size(-worst)} worse and {size(best)} better"
    return "undecided", f"{subject} is undecided: {between}{allowed}."


def _gains(interval: tuple[float, float], sign: int) -> tuple[float, float]:
    """Return an interval turned so that above 0 is better: its worst and its best end."""
    low, high = interval
    return (low, high) if sign > 0 else (-high, -low)
