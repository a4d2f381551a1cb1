"""Turns an interval into a verdict: a code for programs and a sentence for people."""

import math
from collections.abc import Callable
from functools import partial

from headroom.models.numbers import GIVEN, number, percent, rounded
from headroom.service.experiments.definition import Metric
from headroom.service.experiments.estimates import Contrast
from headroom.service.experiments.report import Decision, Preference

GOOD: frozenset[Decision] = frozenset({"better", "good_enough", "worse_within_margin"})
BAD: frozenset[Decision] = frozenset({"worse", "too_bad"})

Interval = tuple[float, float]

ALPHA = 0.05
"""The chance that any interval of a metric is ever wrong, over all looks and arms."""


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
        return judge(subject, change, metric.sign, within, f"; the margin is {number(margin, digits=GIVEN)}")
    within = (float(to_margin.low), float(to_margin.high))
    allowed = f"; the margin is {percent(margin, digits=GIVEN)}"
    if math.isfinite(float(effect.relative_low)):
        relative = (float(effect.relative_low), float(effect.relative_high))
        return judge(subject, relative, metric.sign, within, allowed, partial(percent, digits=3))
    if not math.isfinite(within[0]):
        return (
            "undecided",
            f"{subject}: control's value is below 0, so a margin relative to it says nothing; give the "
            f"metric {metric.name!r} a margin in its own unit with `relative: false`.",
        )
    allowed += " of control's value, which is not clearly above 0"
    return judge(subject, change, metric.sign, within, allowed)


def preferred(metric: Metric, arm: str, preference: Preference, viewers: int) -> tuple[Decision, str]:
    """Return the verdict on a preference, whose margin is in its own unit, and a sentence.

    viewers: units that saw an interleaved list.
    If no list differed, the verdict rests on `most_affected`: at most that share of all units sees another
    list, so over all units the preference cannot be further below 0 than that.
    """
    subject = f"{arm} on {metric.name}"
    margin = metric.margin
    if not preference.impressions or not viewers:
        return "undecided", f"{subject}: no list has been shown yet."
    lists = f"{preference.impressions:,} lists of {viewers:,} units"
    if not preference.differing:
        share = most_affected(viewers)
        affected = percent(rounded(share, up=True), digits=3)
        decision: Decision = "good_enough" if margin is not None and share <= margin else "undecided"
        limit = "" if margin is None else f"; the margin is {number(margin, digits=GIVEN)}"
        return decision, (
            f"{arm} showed control's order in all {lists}, so at most {affected} of the units ever see "
            f"another order{limit}."
        )
    differing = f" {percent(preference.differing / preference.impressions)} of {lists} differed."
    low, high = preference.interval
    if (low, high) == (-1.0, 1.0):
        text = (
            f"{subject}: too few clicks for an interval: only {preference.units:,} units have clicked "
            "a title of one arm."
        )
        return "undecided", text + differing
    within = (-math.inf, math.inf) if margin is None else (low + margin, high + margin)
    allowed = "" if margin is None else f"; the margin is {number(margin, digits=GIVEN)} of preference"
    decision, text = judge(subject, (low, high), 1, within, allowed)
    votes = f" {preference.wins:,} units clicked more of its titles, {preference.losses:,} more of control's."
    return decision, text + votes + differing


def most_affected(units: int) -> float:
    """Return the upper 95 % limit of the share of units that see a list that differs, if none of `units` did.

    It is the exact one-sided limit (Clopper & Pearson 1934), and it holds at any look: it is wrong at some
    look only if the first units, up to one fixed number, all saw no difference.
    """
    return 1.0 - math.exp(math.log(ALPHA) / units)


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
    (with the sign) the arm is within the margin. allowed: names the margin. size: formats a number of three
    digits; the ends of the interval are rounded outward.
    """
    worst, best = _gains(change, sign)
    worst_within, best_within = _gains(within, sign)
    largest_loss = size(rounded(-worst, up=True))
    largest_gain = size(rounded(best, up=True))
    loss = f"by {size(max(0.0, rounded(-best, up=False)))} to {largest_loss}"
    if worst > 0:
        return "better", f"{subject} is better, by {size(rounded(worst, up=False))} to {largest_gain}."
    if worst_within > 0 and best < 0:
        return "worse_within_margin", f"{subject} is worse, but within the margin: {loss}{allowed}."
    if worst_within > 0:
        return (
            "good_enough",
            f"{subject} is good enough: worse by at most {largest_loss}, if at all{allowed}.",
        )
    if best_within < 0:
        return "too_bad", f"{subject} is too bad: worse {loss}{allowed}."
    if best < 0:
        still_open = ", so it is not yet known whether that is too bad" if allowed else ""
        return "worse", f"{subject} is worse, {loss}{allowed}{still_open}."
    between = f"between {largest_loss} worse and {largest_gain} better"
    return "undecided", f"{subject} is undecided: {between}{allowed}."


def _gains(interval: Interval, sign: int) -> Interval:
    """Return an interval turned so that above 0 is better: its worst and its best end."""
    low, high = interval
    return (low, high) if sign > 0 else (-high, -low)
