"""Puts a report into words: verdicts, the check of the units, and what does not count or has changed."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping

from headroom.models.numbers import GIVEN, minute, number, outward, percent
from headroom.service.experiments.buckets import ByArm
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.estimates import Contrast, finite
from headroom.service.experiments.report import Decision, SampleRatio, shows_share
from headroom.service.experiments.state import Experiment

GOOD: frozenset[Decision] = frozenset({"better", "good_enough", "worse_within_margin"})
BAD: frozenset[Decision] = frozenset({"worse", "too_bad"})

Interval = tuple[float, float]

ALARM = 0.001
"""Below this p-value a mismatch is reported. It is the conventional limit: a mismatch voids all results."""

CONCENTRATIONS = (10.0, 1000.0)
"""Weights of the priors at the expected shares, in equal parts. The small one finds an arm that gets next to
no units after some dozens; the large one is most sensitive to deviations of a few percent."""

UNMATCHED = {
    "impression": "on no stored list",
    "unit": "on another unit's list",
    "index": "on a title that was not shown",
}


WORDS: Mapping[Decision, str] = {
    "better": "better",
    "good_enough": "good enough",
    "worse_within_margin": "worse, but within the margin",
    "worse": "worse",
    "too_bad": "too bad",
    "undecided": "undecided",
}


def decide(change: Interval, sign: int, within: Interval | None = None) -> Decision:
    """Return the verdict on an interval of a change, arm against control.

    sign: 1 if more is better, else -1. within: the interval of the change and the margin together; above 0
    (with the sign) the arm is within the margin. None: there is no margin.
    """
    worst, best = _gains(change, sign)
    worst_within, best_within = (-math.inf, math.inf) if within is None else _gains(within, sign)
    if worst > 0:
        return "better"
    if worst_within > 0:
        return "worse_within_margin" if best < 0 else "good_enough"
    if best_within < 0:
        return "too_bad"
    return "worse" if best < 0 else "undecided"


def sentence(
    subject: str, decision: Decision, change: Interval, write: Callable[..., str], margin: str = ""
) -> str:
    """Return a verdict as a sentence. write: formats the ends of the change. margin: what follows them."""
    return f"{subject} is {WORDS[decision]}: {outward(*change, write, sign=True)}{margin}."


def verdict(metric: Metric, arm: str, effect: Contrast, within: Interval) -> tuple[Decision, str]:
    """Return the verdict on one metric of one arm: a code and a sentence.

    within: the interval of the change and the margin together; NaN if the margin is a share of a value below
        0. Without a margin it is ignored.
    """
    subject = f"{arm} on {metric.name}"
    change = (float(effect.low), float(effect.high))
    if not math.isfinite(change[0]):
        return "undecided", f"{subject}: too little data for an interval."
    if metric.margin is not None and not math.isfinite(within[0]):
        return (
            "undecided",
            f"{subject}: control's value is below 0, so a margin relative to it says nothing; give the "
            f"metric {metric.name!r} a margin in its own unit with `relative: false`.",
        )
    decision = decide(change, metric.sign, None if metric.margin is None else within)
    has_share = shows_share(finite(effect.relative_low), metric.margin, is_relative=metric.relative)
    margin = " of control's value" if has_share else ""
    if metric.margin is not None:
        amount = percent if metric.relative else number
        margin += f"; the margin is {amount(metric.margin, digits=GIVEN)}"
        if metric.relative and not has_share:
            margin += " of control's value, which is not clearly above 0"
    if has_share:
        change = (float(effect.relative_low), float(effect.relative_high))
    return decision, sentence(subject, decision, change, percent if has_share else number, margin)


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
    widths = config.exposed(1.0, rolled_back)
    units = {arm: exposures.get(arm, 0) for arm in widths}
    if len(units) < 2 or not any(units.values()):
        return SampleRatio(
            1.0, False, "There is no sample ratio to check: no two arms have units of their own.", {}
        )
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


def early_outcomes(early: ByArm) -> str:
    """Return a sentence on the outcomes that do not count because they came too early; empty without any."""
    if not any(early.values()):
        return ""
    by_arm = ", ".join(f"{number:,} of {arm}" for arm, number in early.items())
    return (
        f"Outcomes from the minute before their unit's exposure do not count: {by_arm}. If they came after "
        "it, the sender's clock is behind ours."
    )


def units_in_both_arms(units: int) -> str:
    """Return a sentence on units that came to several arms; empty without any."""
    if not units:
        return ""
    are = "unit was" if units == 1 else "units were"
    return f"{units:,} {are} sent to more than one arm, and left out."


def unmatched_clicks(clicks: Mapping[str, int]) -> str:
    """Return a sentence on clicks that are on no shown title, by reason; empty without any."""
    if not any(clicks.values()):
        return ""
    reasons = ", ".join(f"{clicks[name]:,} {UNMATCHED[name]}" for name in UNMATCHED if clicks.get(name))
    return f"Clicks that count for nobody: {reasons}."


def changes(experiment: Experiment) -> Iterator[str]:
    """Yield sentences on what the figures rest on and has changed since the start."""
    for name, moment in experiment.variant_changes.items():
        yield f"The variant {name!r} was changed at {minute(moment)} UTC, so its figures mix two variants."


def deletion(experiment: Experiment) -> str | None:
    """Return what a report lacks because it is deleted; None: nothing."""
    if experiment.deleted is None:
        return None
    what = "Lists and clicks" if experiment.config.is_interleaved else "Outcomes"
    return (
        f"{what} were deleted from {minute(experiment.deleted)} UTC on, because the experiment ended longer "
        "than outcome_days before."
    )
