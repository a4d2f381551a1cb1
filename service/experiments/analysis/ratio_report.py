"""Checks in each epoch of an experiment that the arms have the units that they should."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from service.experiments.analysis.findings import EpochRatio, SampleRatio
from service.experiments.analysis.sample_ratio import ALARM, comparisons
from service.experiments.definition.buckets import BUCKETS, exposed_buckets
from service.experiments.definition.epochs import Epoch, epoch_of


def unchecked(reason: str) -> SampleRatio:
    """Return the result of a check that was not made. reason: a sentence."""
    return SampleRatio(1.0, 1.0, False, reason, [])


def check(
    counts: Mapping[str, Mapping[str, int]],
    shares: Mapping[str, float],
    rolled_back: Collection[str],
    control: str,
) -> SampleRatio:
    """Compare the units of each epoch with the buckets that were exposed in it.

    counts: units by label and by arm (epochs.py), in order of time. shares: each arm's share of the buckets.
    rolled_back: arms that get no units now, which are left out.
    """
    arms = {arm: share for arm, share in shares.items() if arm not in rolled_back}
    epochs = [ratio for label in _epochs(counts) for ratio in _ratios_of(label, counts, arms, control)]
    worst = min(epochs, key=lambda ratio: ratio.sequential_p, default=None)
    if worst is None:
        return unchecked("No two arms have units to compare.")
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
        text = f"The arms have the units they should, in each of {len(epochs)} comparisons (now: {seen})."
    return SampleRatio(shown.chi_square_p, shown.sequential_p, alarm, text, epochs)


def _epochs(labels: Collection[str]) -> list[str]:
    """Return the labels of the epochs in order of time. One without new units has only counts beside arms.

    labels: of the counts, in order of time.
    """
    in_order = [
        epoch_of(label) for label in labels if label == epoch_of(label) or epoch_of(label) not in labels
    ]
    return sorted(dict.fromkeys(in_order), key=lambda label: Epoch.parse(label).actions)


def _ratios_of(
    label: str, counts: Mapping[str, Mapping[str, int]], shares: Mapping[str, float], control: str
) -> list[EpochRatio]:
    epoch = Epoch.parse(label)
    buckets = {
        arm: exposed_buckets(round(share * BUCKETS), epoch.traffic)
        for arm, share in shares.items()
        if arm not in epoch.rolled_back
    }
    return [
        EpochRatio(
            epoch.traffic,
            units.counts,
            {arm: number / sum(units.buckets.values()) for arm, number in units.buckets.items()},
            units.chi_square_p,
            units.sequential_p,
        )
        for units in comparisons(counts, label, buckets, control)
    ]
