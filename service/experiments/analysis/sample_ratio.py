"""Tests whether the arms have the units that the config gives them. If not, an arm loses units somewhere.

There are two tests: Pearson's chi-square test, which is valid for one look, and a sequential test, which is
valid for any number of looks, as a guardrail needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.experiments.definition.epochs import Epoch

ALARM = 0.001
"""Below this p-value a mismatch is reported. It is the conventional limit: a mismatch voids all results."""

CONCENTRATION = 1000.0
"""Weight of the prior at the expected shares. It is most sensitive to deviations of a few percent."""


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one epoch that can be compared, and the exposed buckets that they came from, by arm.

    tests: the number of such comparisons in the epoch, by which its p-values are multiplied.
    """

    counts: Mapping[str, int]
    buckets: Mapping[str, int]
    tests: int

    @property
    def sequential_p(self) -> float:
        """The anytime-valid p-value."""
        return min(1.0, self.tests * sequential_p(self.counts, self.buckets))

    @property
    def chi_square_p(self) -> float:
        """Pearson's p-value, for one look."""
        return min(1.0, self.tests * chi_square_p(self.counts, self.buckets))


def comparisons(
    counts: Mapping[str, Mapping[str, int]], epoch: str, buckets: Mapping[str, int], control: str
) -> list[Units]:
    """Return the comparisons of an epoch: of its new units, and of each arm that was away with control.

    The users who came while an arm was away are new in it. In control they return, and are added to its new
    units. Until then both had what control has (epochs.py).
    counts: the experiment's counts, by label and arm. buckets: those exposed in the epoch, by arm to compare.
    """
    now = Epoch.parse(epoch)
    earlier = [other for other in map(Epoch.parse, counts) if other.actions < now.actions]
    back = {arm for other in earlier for arm in other.rolled_back if buckets.get(arm)}
    units = {arm: counts.get(epoch, {}).get(arm, 0) for arm, number in buckets.items() if number}
    compared = [{arm: number for arm, number in units.items() if arm not in back}]
    for arm in sorted(back):
        returned = counts.get(replace(now, beside=arm).label, {}).get(control, 0)
        compared.append({control: units.get(control, 0) + returned, arm: units[arm]})
    compared = [of_arms for of_arms in compared if len(of_arms) > 1 and any(of_arms.values())]
    return [Units(of, {arm: buckets[arm] for arm in of}, len(compared)) for of in compared]


def chi_square_p(counts: Mapping[str, int], shares: Mapping[str, float]) -> float:
    """Return Pearson's chi-square p-value of the counts; 1 if there is nothing to compare.

    counts, shares: by arm; shares are scaled to sum to 1 over the arms given.
    """
    from scipy.stats import chisquare

    expected = _expected(counts, shares)
    total = sum(counts.get(arm, 0) for arm in expected)
    if total == 0 or len(expected) < 2:
        return 1.0
    observed = [counts.get(arm, 0) for arm in expected]
    return float(chisquare(observed, [total * share for share in expected.values()]).pvalue)


def sequential_p(counts: Mapping[str, int], shares: Mapping[str, float]) -> float:
    """Return an anytime-valid p-value: without mismatch, the chance that it is ever below α is at most α.

    It is one over the Bayes factor of a Dirichlet(CONCENTRATION x shares) mixture against the expected
    multinomial (Lindon & Malek 2022, "Anytime-Valid Inference For Multinomial Count Data"). The arguments are
    those of chi_square_p.
    """
    expected = _expected(counts, shares)
    total = sum(counts.get(arm, 0) for arm in expected)
    if total == 0 or len(expected) < 2:
        return 1.0
    log_factor = math.lgamma(CONCENTRATION) - math.lgamma(CONCENTRATION + total)
    for arm, share in expected.items():
        count = counts.get(arm, 0)
        prior = CONCENTRATION * share
        log_factor += math.lgamma(prior + count) - math.lgamma(prior) - count * math.log(share)
    return math.exp(min(0.0, -log_factor))


def _expected(counts: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, float]:
    unexpected = [arm for arm, count in counts.items() if count and not shares.get(arm)]
    if unexpected:
        raise ValueError(f"units of the arm {unexpected[0]!r}, which has no share")
    total = sum(shares.values())
    return {arm: share / total for arm, share in shares.items() if share > 0}
