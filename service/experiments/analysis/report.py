"""Analyses an experiment. The report is valid at any time, however often it is made."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.experiments.analysis import aggregates, ratio_report
from service.experiments.analysis.comparison import Comparison, comparisons
from service.experiments.analysis.estimates import Estimate, estimate, finite
from service.experiments.analysis.findings import (
    ArmReport,
    MetricReport,
    Report,
    SampleRatio,
    Uncapped,
)
from service.experiments.analysis.moments import Moments, pool
from service.experiments.analysis.sequences import Boundary, Contrast, contrast
from service.experiments.analysis.shadow_report import shadow_reports
from service.experiments.analysis.verdicts import BAD, GOOD, Verdict, judge
from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.events import Action
from service.experiments.definition.metric import Metric
from service.experiments.definition.state import Run, changed_since_start, fold, runs
from service.experiments.storage.store import Store


@dataclass(frozen=True, slots=True)
class ReportSpec:
    """The description of an experiment that an analysis needs.

    arms: each arm's share of the buckets. alpha: the chance that any interval of a metric is ever wrong, over
    all looks and arms. planned_units: units of all arms together (`headroom experiment plan`).
    rolled_back: arms that get no more units, so that the sample ratio is no longer checked on them.
    runs: the times of the exposed buckets. If they are unknown (None), all units and outcomes count.
    changed: why the units cannot be analysed: the experiment did not begin with this config.
    """

    experiment: str
    control: str
    arms: Mapping[str, float]
    metrics: Sequence[Metric]
    alpha: float = 0.05
    planned_units: int = 10_000
    rolled_back: Collection[str] = ()
    runs: Sequence[Run] | None = None
    changed: str | None = None

    @classmethod
    def of(cls, config: ExperimentConfig, actions: Sequence[Action], now: float) -> ReportSpec:
        """Return the spec of a config and its log at a time, in seconds since the epoch."""
        return cls(
            experiment=config.name,
            control=config.control,
            arms=config.shares,
            metrics=config.metrics,
            alpha=config.alpha,
            planned_units=config.planned_units,
            rolled_back=fold(config, actions, now).rolled_back,
            runs=runs(config, actions, now),
            changed=changed_since_start(config, actions),
        )


def analyse(store: Store, spec: ReportSpec, now: float) -> Report:
    """Read the store and return a report. This takes seconds at millions of units.

    now: seconds since the epoch. Raises DatabaseUnavailable.
    """
    counts = store.exposure_counts([spec.experiment])[spec.experiment]
    if spec.changed is not None:
        ratio = ratio_report.unchecked("The config does not say which units each arm should have.")
        return _report(spec, now, counts, ratio, [], ("invalid", spec.changed))
    counts = {arm: counts.get(arm, 0) for arm in spec.arms}
    units_by_epoch = store.epoch_counts([spec.experiment])[spec.experiment]
    ratio = ratio_report.check(units_by_epoch, spec.arms, spec.rolled_back, spec.control)
    compared = compare_all(store, spec, now)
    shadow = shadow_reports(store, spec.experiment, spec.arms, spec.alpha / _number_of_comparisons(spec))
    arms = [ArmReport(arm, metrics, shadow.get(arm)) for arm, metrics in compared.items()]
    return _report(
        spec, now, counts, ratio, arms, recommend(arms, ratio, seen=sum(counts.values()), spec=spec)
    )


def _report(
    spec: ReportSpec,
    now: float,
    counts: Mapping[str, int],
    ratio: SampleRatio,
    arms: Sequence[ArmReport],
    recommendation: tuple[str, str],
) -> Report:
    return Report(
        experiment=spec.experiment,
        time=now,
        control=spec.control,
        alpha=spec.alpha,
        planned_units=spec.planned_units,
        exposures=counts,
        sample_ratio=ratio,
        arms=arms,
        recommendation=recommendation[0],
        text=recommendation[1],
    )


def compare_all(
    store: Store, spec: ReportSpec, now: float, *, until: float | None = None
) -> dict[str, list[MetricReport]]:
    """Compare all metrics of each arm except control with control.

    until: leaves out what happened later, in seconds since the epoch; None: nothing.
    """
    comparison = _comparisons(spec)
    measured = {
        (metric.name, during): aggregates.measure(store, spec.experiment, metric, now, during, until)
        for metric in spec.metrics
        for during in set(comparison.values())
    }
    return {
        arm: [compare(metric, measured[metric.name, comparison[arm]], arm, spec) for metric in spec.metrics]
        for arm in spec.arms
        if arm != spec.control
    }


def _comparisons(spec: ReportSpec) -> dict[str, Comparison | None]:
    others = [arm for arm in spec.arms if arm != spec.control]
    if spec.runs is None:
        return dict.fromkeys(others)
    return {**comparisons(spec.control, others, spec.runs)}


def boundary_for(spec: ReportSpec, arm: str) -> Boundary:
    """Return the boundary of one arm against control: the arms share α (Bonferroni) and the planned units."""
    share = (spec.arms[arm] + spec.arms[spec.control]) / sum(spec.arms.values())
    return Boundary(spec.alpha / _number_of_comparisons(spec), spec.planned_units * share)


def _number_of_comparisons(spec: ReportSpec) -> int:
    return max(1, len(spec.arms) - 1)


def compare(metric: Metric, measured: aggregates.Measured, arm: str, spec: ReportSpec) -> MetricReport:
    """Compare one metric of one arm with control."""
    difference, control, treated = _contrast(metric, measured.moments, arm, spec)
    relative = metric.relative and metric.margin is not None
    low, high = (
        (difference.relative_low, difference.relative_high) if relative else (difference.low, difference.high)
    )
    subject = f"{arm} on {metric.name}"
    verdict = judge(
        subject, float(low), float(high), margin=metric.margin, sign=metric.sign, relative=relative
    )
    if measured.share_at_cap is not None and not math.isfinite(float(difference.low)):
        verdict = Verdict("undecided", f"{subject}: {_all_capped(metric, measured, measured.share_at_cap)}")
    if relative and not math.isfinite(float(low)) and math.isfinite(float(difference.low)):
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
        value=finite(treated.value),
        control_value=finite(control.value),
        difference=finite(difference.difference),
        low=finite(difference.low),
        high=finite(difference.high),
        relative=finite(difference.relative),
        relative_low=finite(difference.relative_low),
        relative_high=finite(difference.relative_high),
        p_value=min(1.0, _number_of_comparisons(spec) * float(difference.p_value)),
        margin=metric.margin,
        margin_relative=metric.relative,
        better=metric.better,
        variance_explained=_explained(metric, measured.moments, control, spec),
        decision=verdict.decision,
        text=verdict.text if uncapped is None else f"{verdict.text} {_beside(uncapped)}",
        uncapped=uncapped,
    )


def _contrast(
    metric: Metric, moments: Mapping[str, Moments], arm: str, spec: ReportSpec
) -> tuple[Contrast, Estimate, Estimate]:
    """Return the contrast, and the estimates of control and of the arm."""
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
    difference, control, treated = _contrast(metric, measured.uncapped, arm, spec)
    return Uncapped(
        cap=measured.cap,
        value=finite(treated.value),
        control_value=finite(control.value),
        difference=finite(difference.difference),
        relative=finite(difference.relative),
        relative_low=finite(difference.relative_low),
        relative_high=finite(difference.relative_high),
    )


def _all_capped(metric: Metric, measured: aggregates.Measured, share: float) -> str:
    """Return what to do if the cap makes the sums of all units the same. share: that of units below it."""
    decimals = 1 + math.ceil(-math.log10(1 - share))
    least = math.ceil(share * 10**decimals) / 10**decimals
    return (
        f"no interval, because `winsorize: {metric.winsorize:g}` makes the sum of every unit "
        f"{measured.cap:.4g}; {100 * share:.{decimals - 2}f} % of the units have no more than that. In the "
        f"config, set `winsorize` of the metric {metric.name!r} above {least:g} and below 1, or leave it out."
    )


def _beside(raw: Uncapped) -> str:
    """Return the raw means as a sentence, because the cap may hide an effect on the largest sums."""
    if raw.value is None or raw.control_value is None or raw.difference is None:
        return f"Sums above {raw.cap:.4g} count as {raw.cap:.4g}."
    change = f"{raw.difference:+.3g}" if raw.relative is None else f"{100 * raw.relative:+.2g} %"
    if raw.relative_low is not None and raw.relative_high is not None:
        change += f", between {100 * raw.relative_low:+.2g} % and {100 * raw.relative_high:+.2g} %"
    return (
        f"Sums above {raw.cap:.4g} count as {raw.cap:.4g}; without this cap the mean is {raw.value:.4g} "
        f"against {raw.control_value:.4g} ({change})."
    )


def recommend(
    arms: Sequence[ArmReport], ratio: SampleRatio, *, seen: int, spec: ReportSpec
) -> tuple[str, str]:
    """Return a recommendation and its reason."""
    if ratio.alarm:
        return "invalid", ratio.text
    if not spec.metrics:
        return "wait", "No metrics are declared, so there is nothing to decide by but the shadow differences."
    running = [arm for arm in arms if arm.arm not in spec.rolled_back]
    primary = [(arm.arm, arm.metrics[0]) for arm in running]
    good = [(name, metric) for name, metric in primary if metric.decision in GOOD]
    if good:
        name, metric = max(good, key=lambda candidate: _gain(candidate[1], spec.metrics[0]))
        harmed = [
            other.text
            for arm in running
            if arm.arm == name
            for other in arm.metrics[1:]
            if other.decision in BAD
        ]
        return "ship", " ".join([metric.text, *(["But:"] if harmed else []), *harmed])
    # With a margin, `worse` is no answer yet: the arm may still turn out to be within it.
    ends = {"too_bad"} if spec.metrics[0].margin is not None else BAD
    if primary and all(metric.decision in ends for _, metric in primary):
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
    """Return the share of control's variance that the covariate explains."""
    if metric.covariate is None:
        return None
    control, ratio = moments.get(spec.control, _NOBODY), metric.kind == "ratio"
    plain = float(estimate(control, _pooled(moments, spec), ratio=ratio).variance)
    return None if not plain > 0 else finite(1 - float(adjusted.variance) / plain)
