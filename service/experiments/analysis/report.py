"""What an experiment says now: may be asked at any time, as often as one likes, without lying."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.experiments.analysis import aggregates, ratio_report
from service.experiments.analysis.estimates import Estimate, estimate
from service.experiments.analysis.findings import (
    ArmReport,
    MetricReport,
    Report,
    SampleRatio,
    ShadowMeasure,
    ShadowReport,
    Uncapped,
)
from service.experiments.analysis.moments import Moments, pool
from service.experiments.analysis.sequences import Boundary, Contrast, contrast, one_sample
from service.experiments.analysis.treatment import Treatment, treatments
from service.experiments.analysis.verdicts import BAD, GOOD, Verdict, judge
from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.events import Action
from service.experiments.definition.metric import Metric
from service.experiments.definition.state import Run, fold, runs
from service.experiments.storage import absolute_differences
from service.experiments.storage.store import Store


@dataclass(frozen=True, slots=True)
class ReportSpec:
    """What the config says about an experiment.

    arms: the share of the buckets of each; alpha: the chance that any interval of a metric is ever wrong,
    over all looks and arms; planned_units: of all arms together (`headroom experiment plan`).
    rolled_back: arms that get no more units, so that the sample ratio is no longer checked on them.
    runs: when which buckets were exposed; None: unknown, all units and outcomes count.
    """

    experiment: str
    control: str
    arms: Mapping[str, float]
    metrics: Sequence[Metric]
    alpha: float = 0.05
    planned_units: int = 10_000
    rolled_back: Collection[str] = ()
    runs: Sequence[Run] | None = None

    @classmethod
    def of(cls, config: ExperimentConfig, actions: Sequence[Action], now: float) -> ReportSpec:
        """What the config and the log say at a time, in seconds since the epoch."""
        return cls(
            experiment=config.name,
            control=config.control,
            arms=config.shares,
            metrics=config.metrics,
            alpha=config.alpha,
            planned_units=config.planned_units,
            rolled_back=fold(config, actions, now).rolled_back,
            runs=runs(config, actions, now),
        )


def analyse(store: Store, spec: ReportSpec, now: float) -> Report:
    """Reads the store and says what it means. Takes seconds at millions of units; raises DatabaseUnavailable.

    now: seconds since the epoch.
    """
    counts = {arm: store.exposure_counts([spec.experiment])[spec.experiment].get(arm, 0) for arm in spec.arms}
    of_epochs = store.epoch_counts([spec.experiment])[spec.experiment]
    ratio = ratio_report.check(of_epochs, spec.arms, spec.rolled_back)
    treatment = _treatments(spec)
    measured = {
        (metric.name, during): aggregates.measure(store, spec.experiment, metric, now, during)
        for metric in spec.metrics
        for during in set(treatment.values())
    }
    shadow = shadow_reports(store, spec)
    arms = [
        ArmReport(
            arm,
            [compare(metric, measured[metric.name, treatment[arm]], arm, spec) for metric in spec.metrics],
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


def _treatments(spec: ReportSpec) -> dict[str, Treatment | None]:
    others = [arm for arm in spec.arms if arm != spec.control]
    if spec.runs is None:
        return dict.fromkeys(others)
    return {**treatments(spec.control, others, spec.runs)}


def boundary_for(spec: ReportSpec, arm: str) -> Boundary:
    """Of one arm against control: α is shared out over the arms (Bonferroni), as are the planned units."""
    comparisons = max(1, len(spec.arms) - 1)
    share = (spec.arms[arm] + spec.arms[spec.control]) / sum(spec.arms.values())
    return Boundary(spec.alpha / comparisons, spec.planned_units * share)


def compare(metric: Metric, measured: aggregates.Measured, arm: str, spec: ReportSpec) -> MetricReport:
    """One metric of one arm against control."""
    found, control, treated = _contrast(metric, measured.moments, arm, spec)
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
    uncapped = _uncapped(metric, measured, arm, spec)
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
        variance_explained=_explained(metric, measured.moments, control, spec),
        decision=verdict.decision,
        text=verdict.text if uncapped is None else f"{verdict.text} {_beside(uncapped)}",
        uncapped=uncapped,
    )


def _contrast(
    metric: Metric, moments: Mapping[str, Moments], arm: str, spec: ReportSpec
) -> tuple[Contrast, Estimate, Estimate]:
    """The contrast, and control's and the arm's estimates."""
    pooled = _pooled(moments, spec)
    ratio, adjusted = metric.kind == "ratio", metric.covariate is not None
    control, treated, overall = (
        estimate(part, pooled, ratio=ratio, adjusted=adjusted)
        for part in (moments.get(spec.control, _NOBODY), moments.get(arm, _NOBODY), pooled)
    )
    return contrast(control, treated, overall, boundary_for(spec, arm)), control, treated


def _pooled(moments: Mapping[str, Moments], spec: ReportSpec) -> Moments:
    return pool(moments.get(arm, _NOBODY) for arm in spec.arms)


def _uncapped(metric: Metric, measured: aggregates.Measured, arm: str, spec: ReportSpec) -> Uncapped | None:
    if measured.cap is None or measured.uncapped is None:
        return None
    found, control, treated = _contrast(metric, measured.uncapped, arm, spec)
    return Uncapped(
        cap=measured.cap,
        value=_number(treated.value),
        control_value=_number(control.value),
        difference=_number(found.difference),
        relative=_number(found.relative),
        relative_low=_number(found.relative_low),
        relative_high=_number(found.relative_high),
    )


def _beside(raw: Uncapped) -> str:
    """The raw means as a sentence: the cap may hide what the arm does to the largest sums."""
    if raw.value is None or raw.control_value is None or raw.difference is None:
        return f"Sums above {raw.cap:.4g} count as {raw.cap:.4g}."
    change = f"{raw.difference:+.3g}" if raw.relative is None else f"{100 * raw.relative:+.2g} %"
    if raw.relative_low is not None and raw.relative_high is not None:
        change += f", between {100 * raw.relative_low:+.2g} % and {100 * raw.relative_high:+.2g} %"
    return (
        f"Sums above {raw.cap:.4g} count as {raw.cap:.4g}; without this cap the mean is {raw.value:.4g} "
        f"against {raw.control_value:.4g} ({change})."
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


def _explained(
    metric: Metric, moments: Mapping[str, Moments], adjusted: Estimate, spec: ReportSpec
) -> float | None:
    """The share of control's variance that the covariate explains."""
    if metric.covariate is None:
        return None
    control, ratio = moments.get(spec.control, _NOBODY), metric.kind == "ratio"
    plain = float(estimate(control, _pooled(moments, spec), ratio=ratio).variance)
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
