"""What a report says in words: verdicts, the check of the units, and what does not count or has changed."""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial

from headroom.models.numbers import GIVEN, minute, number, percent, rounded
from headroom.service.experiments.buckets import ByArm
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.estimates import Contrast
from headroom.service.experiments.report import Decision, Preference, SampleRatio
from headroom.service.experiments.state import Experiment

GOOD: frozenset[Decision] = frozenset({"better", "good_enough", "worse_within_margin"})
BAD: frozenset[Decision] = frozenset({"worse", "too_bad"})

Interval = tuple[float, float]

ALPHA = 0.05
"""The chance that any interval of a metric is ever wrong, over all looks and arms."""

ALARM = 0.001
"""Below this p-value a mismatch is reported. It is the conventional limit: a mismatch voids all results."""

CONCENTRATIONS = (10.0, 1000.0)
"""Weights of the priors at the expected shares, in equal parts. The small one finds an arm that gets next to
no units after some dozens; the large one is most sensitive to deviations of a few percent."""

HOURS_PER_DAY = 24

UNMATCHED = {
    "impression": "on no stored list",
    "unit": "on another unit's list",
    "index": "on a title that was not shown",
}


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


def sequential_p(counts: ByArm, shares: Mapping[str, float]) -> float:
    """Return an anytime-valid p-value: without mismatch, the chance that it is ever below α is at most α.

    It is one over the mean Bayes factor of Dirichlet(concentration x shares) mixtures against the expected
    multinomial (Lindon & Malek 2022, "Anytime-Valid Inference For Multinomial Count Data"). A mean of such
    factors is such a factor.
    counts, shares: by arm; the shares are above 0 and sum to 1.
    """
    log_factors = [_log_factor(counts, shares, concentration) for concentration in CONCENTRATIONS]
    largest = max(log_factors)
    mean = sum(math.exp(factor - largest) for factor in log_factors) / len(log_factors)
    return math.exp(min(0.0, -(largest + math.log(mean))))


def _log_factor(counts: ByArm, shares: Mapping[str, float], concentration: float) -> float:
    """Return the logarithm of the Bayes factor of one prior."""
    total = sum(counts.values())
    log_factor = math.lgamma(concentration) - math.lgamma(concentration + total)
    for arm, share in shares.items():
        prior = concentration * share
        log_factor += math.lgamma(prior + counts[arm]) - math.lgamma(prior) - counts[arm] * math.log(share)
    return log_factor


def check_units(config: ExperimentConfig, exposures: ByArm, rolled_back: Collection[str]) -> SampleRatio:
    """Compare the units of the arms that are not rolled back with their shares of the buckets.

    A unit counts once, when it first comes: whether it comes back is an effect of its arm. Every share of
    traffic exposes the same share of each arm (`ExperimentConfig.uneven`), so ramps change no ratio.

    exposures: the units by arm.
    """
    if config.is_interleaved:
        return SampleRatio(1.0, False, "Each unit sees both arms, so there is no sample ratio to check.", {})
    widths = config.exposed(1.0, rolled_back)
    units = {arm: exposures.get(arm, 0) for arm in widths}
    if rolled_back and len(units) < 2:
        names = ", ".join(sorted(rolled_back))
        text = f"Units of a rolled-back arm ({names}) are not compared, so there is no sample ratio to check."
        return SampleRatio(1.0, False, text, {})
    if len(units) < 2 or not any(units.values()):
        return SampleRatio(1.0, False, "No two arms have units to compare.", {})
    p = sequential_p(units, {arm: width / sum(widths.values()) for arm, width in widths.items()})
    seen = ", ".join(f"{arm} {count:,}" for arm, count in units.items())
    text = f"No lost units are found so far ({seen}; p = {number(p, digits=2)})."
    if p < ALARM:
        text = (
            f"The arms do not have the units they should ({seen}): find out why before trusting any result."
        )
    return SampleRatio(p, p < ALARM, text, units)


def running_p(experiment: Experiment, exposures: ByArm) -> float | None:
    """Return the p-value of a running experiment's units; None without units to compare."""
    ratio = check_units(experiment.config, exposures, experiment.rolled_back)
    return ratio.sequential_p if experiment.is_running and ratio.units else None


def early_outcomes(config: ExperimentConfig, early: ByArm, arm: str) -> str:
    """Return a sentence on the outcomes that do not count because they came too early; empty without any."""
    of_arm = early.get(arm, 0)
    of_control = early.get(config.control, 0)
    if not of_arm and not of_control:
        return ""
    return (
        f" Outcomes from the minute before their unit's exposure do not count: {of_arm:,} of {arm}, "
        f"{of_control:,} of control. If they came after it, the sender's clock is behind ours."
    )


def units_in_both_arms(units: int) -> str:
    """Return a sentence on units that came to several arms; empty without any."""
    if not units:
        return ""
    are = "unit was" if units == 1 else "units were"
    return f" {units:,} {are} sent to more than one arm, and left out."


def unmatched_clicks(clicks: Mapping[str, int]) -> str:
    """Return a sentence on clicks that are on no shown title, by reason; empty without any."""
    total = sum(clicks.values())
    if not total:
        return ""
    reasons = ", ".join(f"{clicks[name]:,} {UNMATCHED[name]}" for name in UNMATCHED if clicks.get(name))
    return f" Clicks that count for nobody: {reasons}."


def changes(experiment: Experiment) -> str:
    """Return sentences on what the figures rest on and has changed since the start; empty without any."""
    text = ""
    for name, moment in experiment.variant_changes.items():
        text += f" The variant {name!r} was changed at {minute(moment)} UTC, so its figures mix two variants."
    return text


def retention_text(experiment: Experiment, kept_days: float) -> str | None:
    """Return what a report lacks because it is deleted, or will lack; None: nothing.

    kept_days: `outcome_days`.
    """
    config = experiment.config
    if experiment.deleted is None:
        return window_text(config, kept_days)
    what = "Lists and clicks" if config.is_interleaved else "Outcomes"
    return (
        f"{what} were deleted from {minute(experiment.deleted)} UTC on, because the experiment ended longer "
        "than outcome_days before."
    )


def window_text(config: ExperimentConfig, kept_days: float) -> str | None:
    """Return that clicks count for longer than the last lists are kept; None if they do not."""
    for metric in config.metrics:
        hours = metric.window_hours
        if config.is_interleaved and hours is not None and hours > kept_days * HOURS_PER_DAY:
            return (
                f"Clicks count as {metric.name} for {number(hours)} hours after their list, but lists are "
                f"kept for {number(kept_days)} days after the end: set outcome_days to at least "
                f"{math.ceil(hours / HOURS_PER_DAY)}."
            )
    return None
