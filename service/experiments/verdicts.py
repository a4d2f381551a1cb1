"""Turns an interval into a verdict: a code for programs and a sentence for people."""

import math
from collections.abc import Callable

from headroom.models.numbers import number, percent
from headroom.service.experiments.definition import Metric
from headroom.service.experiments.estimates import Contrast
from headroom.service.experiments.report import Decision

GOOD: frozenset[Decision] = frozenset({"better", "good_enough", "worse_within_margin"})
BAD: frozenset[Decision] = frozenset({"worse", "too_bad"})

Interval = tuple[float, float]


def verdict(metric: Metric, arm: str, effect: Contrast, to_margin: Contrast | None) -> tuple[Decision, str]:
    """Return the verdict on one metric of one arm: a code and a sentence.

    to_margin: the contrast arm − (1 ∓ margin) · control, which judges a margin that is a share of control's
        value.
    """
    subject = f"{arm} on {metric.name}"
    margin = metric.margin
    low = float(effect.low)
    high = float(effect.high)
    change = (low, high)
    if not math.isfinite(low):
        return "undecided", f"{subject}: too little data for an interval."
    if margin is None:
        return judge(subject, change, metric.sign)
    if to_margin is None:
        within = (low + metric.sign * margin, high + metric.sign * margin)
        return judge(subject, change, metric.sign, within, f"; the margin is {number(margin)}")
    within = (float(to_margin.low), float(to_margin.high))
    allowed = f"; the margin is {percent(margin)}"
    if math.isfinite(float(effect.relative_low)):
        relative = (float(effect.relative_low), float(effect.relative_high))
        return judge(subject, relative, metric.sign, within, allowed, percent)
    if not math.isfinite(within[0]):
        return (
            "undecided",
            f"{subject}: control's value is below 0, so a margin relative to it says nothing; give the "
            f"metric {metric.name!r} a margin in its own unit with `relative: false`.",
        )
    allowed += " of control's value, which is not clearly above 0"
    return judge(subject, change, metric.sign, within, allowed)


def judge(
    subject: str,
    change: Interval,
    sign: int,
    within: Interval = (-math.inf, math.inf),
    allowed: str = "",
    size: Callable[[float], str] = number,
) -> tuple[Decision, str]:
    """Return the verdict on an interval of a change, arm against control.

    sign: 1 if more is better, else -1. within: the interval of the change and the margin together; above 0
    (with the sign) the arm is within the margin. allowed: names the margin. size: formats a number.
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


def _gains(interval: Interval, sign: int) -> Interval:
    """Return an interval turned so that above 0 is better: its worst and its best end."""
    low, high = interval
    return (low, high) if sign > 0 else (-high, -low)
