"""Tests whether the arms have the units that the config gives them. If not, an arm loses units somewhere.

The test is valid for any number of looks.
"""

import math
from collections.abc import Collection, Mapping

from headroom.models.numbers import number
from headroom.service.experiments.buckets import ByArm
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.log import State
from headroom.service.experiments.report import SampleRatio

ALARM = 0.001
"""Below this p-value a mismatch is reported. It is the conventional limit: a mismatch voids all results."""

CONCENTRATIONS = (10.0, 1000.0)
"""Weights of the priors at the expected shares, in equal parts. The small one finds an arm that gets next to
no units after some dozens; the large one is most sensitive to deviations of a few percent."""


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


def running_p(config: ExperimentConfig, state: State, exposures: ByArm) -> float | None:
    """Return the p-value of a running experiment's units; None without units to compare."""
    ratio = check_units(config, exposures, state.rolled_back)
    return ratio.sequential_p if state.is_running and ratio.units else None
