"""Analyses an experiment. The report is valid at any time, however often it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.experiments.analysis import aggregates, ratio_report
from service.experiments.analysis.comparison import Comparison, comparisons
from service.experiments.analysis.findings import (
    ArmReport,
    MetricReport,
    Report,
    SampleRatio,
)
from service.experiments.analysis.metric_report import compare
from service.experiments.analysis.report_spec import ReportSpec
from service.experiments.analysis.shadow_report import shadow_reports
from service.experiments.analysis.verdicts import BAD, GOOD
from service.experiments.definition.metric import Metric
from service.experiments.storage.store import Store


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
    shadow = shadow_reports(store, spec.experiment, spec.arms, spec.alpha / spec.comparisons)
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


def recommend(
    arms: Sequence[ArmReport], ratio: SampleRatio, *, seen: int, spec: ReportSpec
) -> tuple[str, str]:
    """Return a recommendation and its reason."""
    if ratio.alarm:
        return "invalid", ratio.text
    if not spec.metrics:
        return "wait", "No metrics are declared, so there is nothing to decide by but the shadow differences."
    running = [arm for arm in arms if arm.arm not in spec.rolled_back]
    if not running:
        return "stop", "Every arm was rolled back to control."
    harm = {arm.arm: _beyond_margin(arm, spec) for arm in running}
    good = [arm for arm in running if arm.metrics[0].decision in GOOD and not harm[arm.arm]]
    if good:
        arm = max(good, key=lambda candidate: _gain(candidate.metrics[0], spec.metrics[0]))
        worse = [metric.text for metric in arm.metrics[1:] if metric.decision in BAD]
        return "ship", " ".join([arm.metrics[0].text, *(["But:"] if worse else []), *worse])
    # With a margin, `worse` is no answer yet: the arm may still turn out to be within it.
    ends = {"too_bad"} if spec.metrics[0].margin is not None else BAD
    reasons = [harm[arm.arm] or arm.metrics[0].text for arm in running]
    if all(harm[arm.arm] or arm.metrics[0].decision in ends for arm in running):
        return "stop", " ".join(reasons)
    progress = f"{seen:,} of {spec.planned_units:,} planned units are exposed."
    return "wait", " ".join([*reasons, progress])


def _beyond_margin(arm: ArmReport, spec: ReportSpec) -> str:
    """Say which metrics with a margin, beside the first, the arm harms by more than it; empty if none."""
    guarded = zip(arm.metrics[1:], spec.metrics[1:], strict=True)
    return " ".join(
        report.text
        for report, metric in guarded
        if metric.margin is not None and report.decision == "too_bad"
    )


def _gain(report: MetricReport, metric: Metric) -> float:
    return metric.sign * (report.difference or 0.0)
