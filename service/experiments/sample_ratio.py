"""Tests whether the arms have the units that the config gives them. If not, an arm loses units somewhere.

The test is valid for any number of looks, as a guardrail needs. The units of each epoch are tested alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from service.experiments.definition import ExperimentConfig
from service.experiments.report import EpochRatio, SampleRatio
from service.experiments.state import Epoch

ALARM = 0.001
"""Below this p-value a mismatch is reported. It is the conventional limit: a mismatch voids all results."""

CONCENTRATION = 1000.0
"""Weight of the prior at the expected shares. It is most sensitive to deviations of a few percent."""


def sequential_p(counts: Mapping[str, int], shares: Mapping[str, float]) -> float:
    """Return an anytime-valid p-value: without mismatch, the chance that it is ever below α is at most α.

    It is one over the Bayes factor of a Dirichlet(CONCENTRATION x shares) mixture against the expected
    multinomial (Lindon & Malek 2022, "Anytime-Valid Inference For Multinomial Count Data").
    counts, shares: by arm; the shares are above 0 and sum to 1.
    """
    total = sum(counts.values())
    log_factor = math.lgamma(CONCENTRATION) - math.lgamma(CONCENTRATION + total)
    for arm, share in shares.items():
        prior = CONCENTRATION * share
        log_factor += math.lgamma(prior + counts[arm]) - math.lgamma(prior) - counts[arm] * math.log(share)
    return math.exp(min(0.0, -log_factor))


def epoch_ratio(
    config: ExperimentConfig, label: str, counts: Mapping[str, int], rolled_back: Collection[str] = ()
) -> EpochRatio | None:
    """Compare the units of an epoch with the buckets that were exposed in it; None if there are no units.

    counts: the new units of the epoch by arm. rolled_back: arms that get no units now, which are left out.
    """
    epoch = Epoch.parse(label)
    exposed = config.exposed(epoch.traffic, {*epoch.rolled_back, *rolled_back})
    total = sum(exposed.values())
    expected = {arm: buckets / total for arm, buckets in exposed.items() if buckets}
    units = {arm: counts.get(arm, 0) for arm in expected}
    if len(units) < 2 or not any(units.values()):
        return None
    return EpochRatio(epoch.traffic, units, expected, sequential_p(units, expected))


def check(
    config: ExperimentConfig, counts: Mapping[str, Mapping[str, int]], rolled_back: Collection[str]
) -> SampleRatio:
    """Check all epochs. counts: new units by epoch, in order of time, and by arm."""
    ratios = (epoch_ratio(config, label, of_epoch, rolled_back) for label, of_epoch in counts.items())
    epochs = [ratio for ratio in ratios if ratio is not None]
    worst = min(epochs, key=lambda ratio: ratio.sequential_p, default=None)
    if worst is None:
        return SampleRatio(1.0, False, "No two arms have units to compare.", [])
    alarm = worst.sequential_p < ALARM
    shown = worst if alarm else epochs[-1]
    seen = ", ".join(f"{arm} {units:,}" for arm, units in shown.units.items())
    if alarm:
        text = "The arms do not have the units they should"
        text += f" ({seen} at traffic {shown.traffic:g}): find out why before trusting any result."
        if shown is not epochs[-1]:
            text += " What was exposed has changed since, but those units are in all results."
    elif len(epochs) == 1:
        text = f"The arms have the units they should ({seen})."
    else:
        text = f"The arms have the units they should, in each of {len(epochs)} epochs (now: {seen})."
    return SampleRatio(shown.sequential_p, alarm, text, epochs)
