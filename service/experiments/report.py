"""What an experiment says now: may be asked at any time, as often as one likes, without lying."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.experiments import absolute_differences, aggregates, sample_ratio
from service.experiments.estimates import Estimate, estimate
from service.experiments.findings import (
    ArmReport,
    MetricReport,
    Report,
    SampleRatio,
    ShadowMeasure,
    ShadowReport,
)
from service.experiments.metric import Metric
from service.experiments.moments import Moments, pool
from service.experiments.sequences import Boundary, contrast, one_sample
from service.experiments.store import Store
from service.experiments.verdicts import BAD, GOOD, Verdict, judge


@dataclass(frozen=True, slots=True)
class ReportSpec:
    """What the config says about an experiment.

    arms: the share of the buckets of each; alpha: the chance that any interval of a metric is ever wrong,
    over all looks and arms; planned_units: of all arms together (`headroom experiment plan`).
    rolled_back: arms that get no more units, so that the sample ratio is no longer checked on them.
    """

    experiment: str
    control: str
    arms: Mapping[str, float]
    metrics: Sequence[Metric]
    alpha: float = 0.05
    planned_units: int = 10_000
    rolled_back: Collection[str] = ()


def analyse(store: Store, spec: ReportSpec, now: float) -> Report:
    """Reads the store and says what it means. Takes seconds at millions of units; raises DatabaseUnavailable.

    now: seconds since the epoch.
    """
    counts = {arm: store.exposure_counts([spec.experiment])[spec.experiment].get(arm, 0) for arm in spec.arms}
    ratio = check_sample_ratio(
        {arm: count for arm, count in counts.items() if arm not in spec.rolled_back}, spec.arms
    )
    moments = {
        metric.name: aggregates.metric_moments(store, spec.experiment, metric, now) for metric in spec.metrics
    }
    shadow = shadow_reports(store, spec)
    arms = [
        ArmReport(
            arm,
            [compare(metric, moments[metric.name], arm, spec) for metric in spec.metrics],
            shadow.get(arm),
        )
        for arm in spec.arms
        if arm != spec.control
    ]
    recommendation, text = recommend(arms, ratio, seen=sum(counts.values()), spec=spec)
    return Report(
        experiment=spec.experiment,
        time=now,
        control=spec.control,
        alpha=spec.alpha,
        planned_units=spec.planned_units,
        exposures=counts,
        sample_ratio=ratio,
        arms=arms,
        recommendation=recommendation,
        text=text,
    )


def check_sample_ratio(counts: Mapping[str, int], shares: Mapping[str, float]) -> SampleRatio:
    """The units of the arms in `counts` beside their shares."""
    expected = {arm: shares[arm] for arm in counts}
    sequential = sample_ratio.sequential_p(counts, expected)
    alarm = sequential < sample_ratio.ALARM
    seen = ", ".join(f"{arm} {count}" for arm, count in counts.items())
    if alarm:
        text = (
            f"The arms do not have the units they should ({seen}): find out why before trusting any result."
        )
    else:
        text = f"The arms have the units they should ({seen})."
    return SampleRatio(sample_ratio.chi_square_p(counts, expected), sequential, alarm, text)


def boundary_for(spec: ReportSpec, arm: str) -> Boundary:
    """Of one arm against control: α is shared out over the arms (Bonferroni), as are the planned units."""
    comparisons = max(1, len(spec.arms) - 1)
    share = (spec.arms[arm] + spec.arms[spec.control]) / sum(spec.arms.values())
    return Boundary(spec.alpha / comparisons, spec.planned_units * share)


def compare(metric: Metric, moments: Mapping[str, Moments], arm: str, spec: ReportSpec) -> MetricReport:
    """One metric of one arm against control."""
    present = {name: moments.get(name, _NOBODY) for name in spec.arms}
    pooled = pool(present.values())
    ratio, adjusted = metric.kind == "ratio", metric.covariate is not None
    control, treated = (
        estimate(present[name], pooled, ratio=ratio, adjusted=adjusted) for name in (spec.control, arm)
    )
    overall = estimate(pooled, pooled, ratio=ratio, adjusted=adjusted)
    found = contrast(control, treated, overall, boundary_for(spec, arm))
    relative = metric.relative and metric.margin is not None
    low, high = (found.relative_low, found.relative_high) if relative else (found.low, found.high)
    subject = f"{arm} on {metric.name}"
    verdict = judge(
        subject, float(low), float(high), margin=metric.margin, sign=metric.sign, relative=relative
    )
    if relative and not math.isfinite(float(low)) and math.isfinite(float(found.low)):
        verdict = Verdict(
            "undecided",
            f"{subject}: control's value is not clearly above 0, so a relative margin says nothing.",
        )
    return MetricReport(
        metric=metric.name,
        kind=metric.kind,
        units=int(treated.units),
        control_units=int(control.units),
        value=_number(treated.value),
        control_value=_number(control.value),
        difference=_number(found.difference),
        low=_number(found.low),
        high=_number(found.high),
        relative=_number(found.relative),
        relative_low=_number(found.relative_low),
        relative_high=_number(found.relative_high),
        p_value=float(found.p_value),
        margin=metric.margin,
        variance_explained=_explained(present[spec.control], pooled, control, ratio) if adjusted else None,
        decision=verdict.decision,
        text=verdict.text,
    )


def shadow_reports(store: Store, spec: ReportSpec) -> dict[str, ShadowReport]:
    """By arm; arms without shadow results are left out."""
    moments = aggregates.shadow_moments(store, spec.experiment)
    histograms = aggregates.shadow_histogram(store, spec.experiment)
    return {
        arm: _shadow_report(
            arm,
            {name: by_arm[arm] for name, by_arm in moments.items() if arm in by_arm},
            histograms[arm],
            spec,
        )
        for arm in spec.arms
        if arm in histograms
    }


def recommend(
    arms: Sequence[ArmReport], ratio: SampleRatio, *, seen: int, spec: ReportSpec
) -> tuple[str, str]:
    """What to do, and why."""
    if ratio.alarm:
        return "invalid", ratio.text
    if not spec.metrics:
        return "wait", "No metrics are declared, so there is nothing to decide by but the shadow differences."
    running = [arm for arm in arms if arm.arm not in spec.rolled_back]
    primary = [(arm.arm, arm.metrics[0]) for arm in running]
    good = [(name, metric) for name, metric in primary if metric.decision in GOOD]
    if good:
        name, metric = max(good, key=lambda found: _gain(found[1], spec.metrics[0]))
        harmed = [
            other.text
            for arm in running
            if arm.arm == name
            for other in arm.metrics[1:]
            if other.decision in BAD
        ]
        return "ship", " ".join([metric.text, *(["But:"] if harmed else []), *harmed])
    if primary and all(metric.decision in BAD for _, metric in primary):
        return "stop", " ".join(metric.text for _, metric in primary)
    if not primary:
        return "stop", "Every arm was rolled back to control."
    progress = f"{seen:,} of {spec.planned_units:,} planned units are exposed."
    return "wait", " ".join([*(metric.text for _, metric in primary), progress])


_NOBODY = Moments(np.array(0.0), np.zeros(3), np.zeros((3, 3)), np.array(0.0))


def _gain(report: MetricReport, metric: Metric) -> float:
    return metric.sign * (report.difference or 0.0)


def _explained(arm: Moments, pooled: Moments, adjusted: Estimate, ratio: bool) -> float | None:
    plain = float(estimate(arm, pooled, ratio=ratio).variance)
    return None if not plain > 0 else _number(1 - float(adjusted.variance) / plain)


def _shadow_report(
    arm: str, moments: Mapping[str, Moments], histogram: Mapping[int, int], spec: ReportSpec
) -> ShadowReport:
    measures = {}
    for name, found in moments.items():
        sign = -1 if name == "ndcg_delta" else 1
        mean = estimate(found, found)
        ends = sorted(sign * float(end) for end in one_sample(mean, Boundary(spec.alpha, 1000)))
        measures["ndcg_loss" if name == "ndcg_delta" else name] = ShadowMeasure(
            int(found.units), sign * float(mean.value), *map(_number, ends)
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


def _number(value: float | np.ndarray) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
