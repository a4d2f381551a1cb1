"""Sums up the requests that were scored under both arms."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from service.experiments.analysis import aggregates
from service.experiments.analysis.estimates import estimate, finite
from service.experiments.analysis.findings import ShadowMeasure, ShadowReport
from service.experiments.analysis.moments import Moments
from service.experiments.analysis.sequences import Boundary, one_sample
from service.experiments.storage import absolute_differences
from service.experiments.storage.store import Store


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
        largest = 0.0 if name == "seconds_delta" else 1.0
        ends = sorted(sign * float(end) for end in one_sample(mean, Boundary(alpha, 1000), largest))
        measures["ndcg_loss" if name == "ndcg_delta" else name] = ShadowMeasure(
            int(measure.units), sign * float(mean.value), *map(finite, ends)
        )
    p99 = absolute_differences.quantile(histogram, 0.99)
    delta = measures["mean_delta"]
    text = (
        f"{arm}: {delta.requests:,} requests scored under both; scores move by {delta.mean:+.4f} on average"
    )
    if delta.low is not None and delta.high is not None:
        text += f" ({delta.low:+.4f} to {delta.high:+.4f})"
    text += f", 99 % of pairs by less than {p99:.3g}"
    if (ranks := measures.get("rank_correlation")) is not None:
        text += f"; rank correlation {ranks.mean:.3f}"
    if (loss := measures.get("ndcg_loss")) is not None:
        text += f"; NDCG@10 loss {loss.mean:+.4f}"
    return ShadowReport(
        pairs=sum(histogram.values()),
        abs_delta_p50=absolute_differences.quantile(histogram, 0.5),
        abs_delta_p99=p99,
        measures=measures,
        text=text + ".",
    )
