"""Analyses an experiment. The report is valid at any time, however often it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from service.experiments.definition import ExperimentConfig, Metric
from service.experiments.estimates import NOBODY, Estimate, Moments, estimate, finite, pool
from service.experiments.events import Action
from service.experiments.measure import Measured, comparisons, measure
from service.experiments.report import ArmReport, MetricReport, Recommendation, Report, SampleRatio
from service.experiments.sample_ratio import check
from service.experiments.sequences import Boundary, contrast, margin_gap
from service.experiments.shadow import shadow_reports
from service.experiments.state import changed_since_start, fold, runs
from service.experiments.store import Store
from service.experiments.verdicts import BAD, GOOD, Verdict, judge

ALPHA = 0.05
"""The chance that any interval of a metric is ever wrong, over all looks and arms."""


def analyse(store: Store, config: ExperimentConfig, actions: Sequence[Action], now: float) -> Report:
    """Read the store and return a report. This takes seconds at millions of units.

    actions: the experiment's log. now: seconds since the epoch. Raises DatabaseUnavailable.
    """
    counts = store.epoch_counts([config.name])[config.name]
    exposures: dict[str, int] = {arm.name: 0 for arm in config.arms}
    for of_epoch in counts.values():
        for arm, units in of_epoch.items():
            exposures[arm] = exposures.get(arm, 0) + units
    arms: list[ArmReport] = []
    recommendation: Recommendation = "invalid"
    changed = changed_since_start(config, actions)
    if changed is not None:
        ratio = SampleRatio(1.0, False, "The config does not say which units each arm should have.", [])
        text = changed
    else:
        rolled_back = fold(config, actions, now).rolled_back
        ratio = check(config, counts, rolled_back)
        compared = compare_all(store, config, actions, now)
        shadow = shadow_reports(store, config.name, config.treatments, _alpha(config))
        arms = [ArmReport(arm, metrics, shadow.get(arm)) for arm, metrics in compared.items()]
        running = [arm for arm in arms if arm.arm not in rolled_back]
        recommendation, text = recommend(config, running, ratio, seen=sum(exposures.values()))
    return Report(
        experiment=config.name,
        time=now,
        control=config.control,
        alpha=ALPHA,
        planned_units=config.planned_units,
        exposures=exposures,
        sample_ratio=ratio,
        arms=arms,
        recommendation=recommendation,
        text=text,
    )


def compare_all(
    store: Store,
    config: ExperimentConfig,
    actions: Sequence[Action],
    now: float,
    *,
    until: float | None = None,
) -> dict[str, list[MetricReport]]:
    """Compare all metrics of each arm except control with control.

    until: leaves out what happened later, in seconds since the epoch; None: nothing.
    """
    by_arm = comparisons(config.control, config.treatments, runs(config, actions, now))
    measured = {
        (metric.name, during): measure(store, config.name, metric, now, during, until)
        for metric in config.metrics
        for during in set(by_arm.values())
    }
    return {
        arm: [compare(config, metric, measured[metric.name, during], arm) for metric in config.metrics]
        for arm, during in by_arm.items()
    }


def compare(config: ExperimentConfig, metric: Metric, measured: Measured, arm: str) -> MetricReport:
    """Compare one metric of one arm with control."""
    estimates = _estimates(config, metric, measured.moments, arm)
    control, treated, _ = estimates
    difference = contrast(*estimates, _boundary(config, arm))
    verdict = _verdict(config, metric, estimates, arm)
    early, control_early = measured.early.get(arm, 0), measured.early.get(config.control, 0)
    text = verdict.text
    if early + control_early:
        text += (
            f" Outcomes from before their unit's exposure do not count: {early:,} of {arm}, "
            f"{control_early:,} of control. If they came after it, the sender's clock is behind ours."
        )
    return MetricReport(
        arm=arm,
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
        p_value=min(1.0, len(config.treatments) * float(difference.p_value)),
        margin=metric.margin,
        margin_relative=metric.relative,
        better=metric.better,
        variance_explained=_explained(config, metric, measured.moments, control),
        decision=verdict.decision,
        text=text,
        early=early,
        control_early=control_early,
    )


def recommend(
    config: ExperimentConfig, running: Sequence[ArmReport], ratio: SampleRatio, *, seen: int
) -> tuple[Recommendation, str]:
    """Return a recommendation and its reason.

    running: the arms that are not rolled back. seen: the units exposed so far.
    """
    if ratio.alarm:
        return "invalid", ratio.text
    if not config.metrics:
        return "wait", "No metrics are declared, so there is nothing to decide by but the shadow differences."
    if not running:
        return "stop", "Every arm was rolled back to control."
    primary = config.metrics[0]
    harm = {arm.arm: _beyond_margin(arm) for arm in running}
    good = [arm for arm in running if arm.metrics[0].decision in GOOD and not harm[arm.arm]]
    if good:
        arm = max(good, key=lambda candidate: primary.sign * (candidate.metrics[0].difference or 0.0))
        worse = [metric.text for metric in arm.metrics[1:] if metric.decision in BAD]
        return "ship", " ".join([arm.metrics[0].text, *(["But:"] if worse else []), *worse])
    # With a margin, `worse` is no answer yet: the arm may still turn out to be within it.
    ends = {"too_bad"} if primary.margin is not None else BAD
    reasons = [harm[arm.arm] or arm.metrics[0].text for arm in running]
    if all(harm[arm.arm] or arm.metrics[0].decision in ends for arm in running):
        return "stop", " ".join(reasons)
    progress = f"{seen:,} of {config.planned_units:,} planned units are exposed."
    return "wait", " ".join([*reasons, progress])


def _alpha(config: ExperimentConfig) -> float:
    """Return the α of one arm against control: the arms share it (Bonferroni)."""
    return ALPHA / len(config.treatments)


def _boundary(config: ExperimentConfig, arm: str) -> Boundary:
    """Return the boundary of one arm against control, which have their share of the planned units."""
    widths = config.exposed(1.0)
    share = (widths[arm] + widths[config.control]) / sum(widths.values())
    return Boundary(_alpha(config), config.planned_units * share)


def _verdict(
    config: ExperimentConfig, metric: Metric, estimates: tuple[Estimate, Estimate, Estimate], arm: str
) -> Verdict:
    """Return the verdict on one metric of one arm.

    A margin that is a share of control's value is judged by the contrast arm − (1 ∓ margin) · control. It is
    the same as by Fieller's interval where there is one.
    """
    boundary = _boundary(config, arm)
    difference = contrast(*estimates, boundary)
    subject, margin = f"{arm} on {metric.name}", metric.margin
    low, high = float(difference.low), float(difference.high)
    if not metric.relative or margin is None or not math.isfinite(low):
        return judge(subject, low, high, margin=margin, sign=metric.sign)
    if math.isfinite(float(difference.relative_low)):
        low, high = float(difference.relative_low), float(difference.relative_high)
        return judge(subject, low, high, margin=margin, sign=metric.sign, relative=True)
    worst, best = map(float, margin_gap(*estimates, boundary, 1 - metric.sign * margin))
    if not math.isfinite(worst):
        return Verdict(
            "undecided",
            f"{subject}: control's value is below 0, so a margin relative to it says nothing; give the "
            f"metric {metric.name!r} a margin in its own unit with `relative: false`.",
        )
    return judge(subject, low, high, margin=margin, sign=metric.sign, gap=(worst, best))


def _estimates(
    config: ExperimentConfig, metric: Metric, moments: Mapping[str, Moments], arm: str
) -> tuple[Estimate, Estimate, Estimate]:
    """Return the estimates of control, of the arm and of all units."""
    pooled = _pooled(config, moments)
    ratio, adjusted = metric.kind == "ratio", metric.covariate is not None
    control, treated, overall = (
        estimate(part, pooled, ratio=ratio, adjusted=adjusted)
        for part in (moments.get(config.control, NOBODY), moments.get(arm, NOBODY), pooled)
    )
    return control, treated, overall


def _pooled(config: ExperimentConfig, moments: Mapping[str, Moments]) -> Moments:
    return pool(moments.get(arm.name, NOBODY) for arm in config.arms)


def _explained(
    config: ExperimentConfig, metric: Metric, moments: Mapping[str, Moments], adjusted: Estimate
) -> float | None:
    """Return the share of control's variance that the covariate explains."""
    if metric.covariate is None:
        return None
    control = moments.get(config.control, NOBODY)
    plain = float(estimate(control, _pooled(config, moments), ratio=metric.kind == "ratio").variance)
    return None if not plain > 0 else finite(1 - float(adjusted.variance) / plain)


def _beyond_margin(arm: ArmReport) -> str:
    """Say which metrics with a margin, beside the first, the arm harms by more than it; empty if none."""
    return " ".join(metric.text for metric in arm.metrics[1:] if metric.decision == "too_bad")
