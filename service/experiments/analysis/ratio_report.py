"""Checks in each epoch of an experiment that the arms have the units that they should."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from service.experiments.analysis.findings import EpochRatio, SampleRatio
from service.experiments.analysis.sample_ratio import ALARM, chi_square_p, sequential_p
from service.experiments.definition.buckets import BUCKETS, exposed_buckets
from service.experiments.definition.epochs import Epoch


def check(
    counts: Mapping[str, Mapping[str, int]], shares: Mapping[str, float], rolled_back: Collection[str]
) -> SampleRatio:
    """Compare the units of each epoch with the buckets that were exposed in it.

    counts: units by the epoch's label and by arm, in order of time. shares: each arm's share of the buckets.
    rolled_back: arms that get no units now, which are left out.
    """
    arms = {arm: share for arm, share in shares.items() if arm not in rolled_back}
    epochs = [
        ratio for label, units in counts.items() if (ratio := _ratio_of(label, units, arms)) is not None
    ]
    worst = min(epochs, key=lambda ratio: ratio.sequential_p, default=None)
    if worst is None:
        return SampleRatio(1.0, 1.0, False, "No two arms have units to compare.", [])
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
        text = f"The arms have the units they should, at each of {len(epochs)} stages (now: {seen})."
    return SampleRatio(shown.chi_square_p, shown.sequential_p, alarm, text, epochs)


def _ratio_of(label: str, counts: Mapping[str, int], shares: Mapping[str, float]) -> EpochRatio | None:
    epoch = Epoch.parse(label)
    buckets = {
        arm: exposed_buckets(round(share * BUCKETS), epoch.traffic)
        for arm, share in shares.items()
        if arm not in epoch.rolled_back
    }
    buckets = {arm: number for arm, number in buckets.items() if number}
    units = {arm: counts.get(arm, 0) for arm in buckets}
    if len(buckets) < 2 or not any(units.values()):
        return None
    return EpochRatio(
        epoch.traffic,
        units,
        {arm: number / sum(buckets.values()) for arm, number in buckets.items()},
        chi_square_p(units, buckets),
        sequential_p(units, buckets),
    )
