"""Sums up the requests that were scored under both arms."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from models.numbers import number
from service.experiments.analysis import aggregates
from service.experiments.analysis.estimates import estimate, finite
from service.experiments.analysis.findings import ShadowMeasure, ShadowReport
from service.experiments.analysis.moments import DENOMINATOR, Moments
from service.experiments.analysis.sequences import Boundary, one_sample
from service.experiments.storage import absolute_differences
from service.experiments.storage.store import Store

RANGES = {
    "mean_delta": (-1.0, 1.0),
    "mean_abs_delta": (0.0, 1.0),
    "rank_correlation": (-1.0, 1.0),
    "top10_overlap": (0.0, 1.0),
    "ndcg_delta": (-1.0, 1.0),
}
"""The values that a measure can have; an interval says nothing beyond them."""


def shadow_reports(
    store: Store, experiment: str, arms: Collection[str], alpha: float
) -> dict[str, ShadowReport]:
    """Return the shadow reports by arm, without the arms that have no shadow results.

    alpha: the error rate of each arm's intervals.
    Results are deleted by the second and histograms by the day, so an old arm may have only the latter.
    """
    moments = aggregates.shadow_moments(store, experiment)
    histograms = aggregates.shadow_histogram(store, experiment)
    return {
        arm: _shadow_report(
            arm,
            {name: by_arm[arm] for name, by_arm in moments.items() if arm in by_arm},
            histograms[arm],
            alpha,
        )
        for arm in arms
        if arm in histograms and arm in moments["mean_delta"]
    }


def _shadow_report(
    arm: str, moments: Mapping[str, Moments], histogram: Mapping[int, int], alpha: float
) -> ShadowReport:
    measures = {}
    for name, measure in moments.items():
        sign = -1 if name == "ndcg_delta" else 1
        mean = estimate(measure, measure)
        least, largest = RANGES.get(name, (-math.inf, math.inf))
        ends = one_sample(mean, Boundary(alpha, 1000), largest if math.isfinite(largest) else 0.0)
        low, high = sorted(sign * min(max(float(end), least), largest) for end in ends)
        measures["ndcg_loss" if name == "ndcg_delta" else name] = ShadowMeasure(
            requests=round(float(measure.units * measure.mean[DENOMINATOR])),
            units=int(measure.units),
            mean=sign * float(mean.value) + 0.0,  # never -0
            low=finite(low),
            high=finite(high),
        )
    p99 = absolute_differences.quantile(histogram, 0.99)
    delta = measures["mean_delta"]
    text = (
        f"{arm}: {delta.requests:,} requests of {delta.units:,} units scored under both; scores move by "
        f"{number(delta.mean, digits=2, sign=True)} on average"
    )
    if delta.low is not None and delta.high is not None:
        low_text, high_text = (number(end, digits=2, sign=True) for end in (delta.low, delta.high))
        text += f" ({low_text} to {high_text})"
    text += f", 99 % of pairs by less than {number(p99 or 0.0)}"
    if (ranks := measures.get("rank_correlation")) is not None:
        text += f"; rank correlation {number(ranks.mean)}"
    if (loss := measures.get("ndcg_loss")) is not None:
        text += f"; NDCG@10 loss {number(loss.mean, digits=2, sign=True)}"
    return ShadowReport(
        pairs=sum(histogram.values()),
        abs_delta_p50=absolute_differences.quantile(histogram, 0.5),
        abs_delta_p99=p99,
        measures=measures,
        text=text + ".",
    )
