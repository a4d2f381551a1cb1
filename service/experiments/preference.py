"""Judges an interleaving experiment: which arm's titles the units prefer, from −1 (control's) to 1.

A unit's value is (clicks on the treatment's titles − clicks on control's) / (both), over its lists that
count; a unit without a click on a team's title has none. The estimate is the mean of the units' values, so a
unit counts once, however often it clicks. Its interval is a confidence sequence, as in `estimates`: it holds
at any look.
"""

import math

import numpy as np

from headroom.models.numbers import GIVEN, number, percent, rounded
from headroom.service.experiments.clicks import Interleaved, Rows
from headroom.service.experiments.definition import Metric
from headroom.service.experiments.estimates import ALPHA, MIN_UNITS, Boundary, Floats, error_of_bounded
from headroom.service.experiments.report import Decision, MetricReport, Preference
from headroom.service.experiments.verdicts import decide, sentence


def preference_report(
    metric: Metric, arm: str, seen: Interleaved, boundary: Boundary, end: float
) -> MetricReport:
    """Return the preference for an arm by the clicks of a metric.

    A list that was shown before the end counts, whatever the traffic was: its unit saw both arms. A click
    counts within the metric's window after its list was shown, also if the experiment has ended since.
    end: of the experiment; inf while it runs.
    """
    lists = seen.lists[seen.lists["shown"] < end]
    clicks = seen.clicks[metric.name]
    counts = clicks["shown"] < end
    if metric.window_s is not None:
        counts &= clicks["clicked"] < clicks["shown"] + metric.window_s
    found = preference(metric.name, lists, unit_values(clicks[counts]), boundary)
    decision, text = _verdict(metric, arm, found)
    low, high = found.interval
    has_interval = found.units >= MIN_UNITS
    return MetricReport(
        arm=arm,
        metric=metric.name,
        difference=found.estimate if found.units else None,
        low=low if has_interval else None,
        high=high if has_interval else None,
        relative=None,
        relative_low=None,
        relative_high=None,
        kind="preference",
        units=found.units,
        control_units=found.units,
        value=None,
        control_value=None,
        p_value=found.p,
        margin=metric.margin,
        margin_relative=False,
        better="higher",
        decision=decision,
        text=text,
        preference=found,
    )


def unit_values(clicks: Rows) -> Floats:
    """Return the value of each unit that has one, (units,). clicks: (titles,) CLICK."""
    _, unit = np.unique(clicks["unit"], return_inverse=True)
    return np.asarray(np.bincount(unit, clicks["sign"]) / np.bincount(unit))


def preference(metric: str, lists: Rows, values: Floats, boundary: Boundary) -> Preference:
    """Return the judgement at one look. lists: (lists,) LIST. values: (units,), from −1 to 1."""
    units = len(values)
    estimate = math.fsum(values) / units if units else 0.0  # the same in any order of the units
    low = -1.0
    high = 1.0
    p = 1.0
    if units >= MIN_UNITS:
        variance = math.fsum((values - estimate) ** 2) / (units - 1)
        error = float(error_of_bounded(units, estimate, variance))
        radius = float(boundary.multiplier(units)) * error
        low = max(low, estimate - radius)
        high = min(high, estimate + radius)
        p = float(boundary.p_value(estimate / error, units))
    wins = int(np.count_nonzero(values > 0))
    losses = int(np.count_nonzero(values < 0))
    return Preference(
        metric=metric,
        estimate=estimate,
        interval=(low, high),
        p=p,
        units=units,
        impressions=len(lists),
        differing=int(np.count_nonzero(lists["differs"])),
        viewers=len(np.unique(lists["unit"])),
        wins=wins,
        losses=losses,
        ties=units - wins - losses,
    )


def most_affected(units: int) -> float:
    """Return the upper 95 % limit of the share of units that see a list that differs, if none of `units` did.

    It is the exact one-sided limit (Clopper & Pearson 1934), and it holds at any look: it is wrong at some
    look only if the first units, up to one fixed number, all saw no difference.
    """
    return 1.0 - math.exp(math.log(ALPHA) / units)


def _verdict(metric: Metric, arm: str, found: Preference) -> tuple[Decision, str]:
    """Return the verdict on a preference, and a sentence.

    If no list differed, the verdict rests on `most_affected`: at most that share of all units sees another
    list, so over all units the preference cannot be further below 0 than that.
    """
    subject = f"{arm} on {metric.name}"
    if not found.impressions:
        return "undecided", f"{subject}: no list has been shown yet."
    margin = metric.margin
    allowed = "" if margin is None else f"; the margin is {number(margin, digits=GIVEN)}"
    lists = f"{found.impressions:,} lists of {found.viewers:,} units"
    if not found.differing:
        share = most_affected(found.viewers)
        affected = percent(rounded(share, up=True), digits=3)
        decision: Decision = "good_enough" if margin is not None and share <= margin else "undecided"
        return decision, (
            f"{arm} showed control's order in all {lists}, so at most {affected} of the units ever see "
            f"another order{allowed}."
        )
    differing = f" {percent(found.differing / found.impressions)} of {lists} differed."
    if found.units < MIN_UNITS:
        text = f"{subject}: too few clicks for an interval: {found.units:,} units clicked a title of one arm."
        return "undecided", text + differing
    low, high = found.interval
    within = None if margin is None else (low + margin, high + margin)
    decision = decide(found.interval, 1, within)
    votes = (
        f" {found.wins:,} units clicked more of its titles, {found.losses:,} more of control's, "
        f"{found.ties:,} as many of each."
    )
    return decision, sentence(subject, decision, found.interval, number, allowed) + votes + differing
