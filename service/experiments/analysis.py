"""Analyses an experiment. The report is valid at any time, however often it is made."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from service.experiments.definition import ExperimentConfig, Metric
from service.experiments.estimates import NOBODY, Boundary, contrast, estimate, finite
from service.experiments.events import Action, values_of
from service.experiments.measure import Measured, comparisons, measure
from service.experiments.report import (
    ArmReport,
    Look,
    MetricReport,
    Recommendation,
    Report,
    SampleRatio,
)
from service.experiments.sample_ratio import check
from service.experiments.shadow_report import shadow_reports
from service.experiments.state import fold, logged_at, losses
from service.experiments.store import Store
from service.experiments.verdicts import BAD, GOOD, verdict

ALPHA = 0.05
"""The chance that any interval of a metric is ever wrong, over all looks and arms."""

MAX_LOOKS = 30
"""Past times at which an experiment's intervals are computed, at most."""


def analyse(store: Store, config: ExperimentConfig, actions: Sequence[Action], now: float) -> Report:
    """Read the store and return a report. This takes seconds at millions of units.

    actions: the experiment's log. now: seconds since the epoch. Raises DatabaseUnavailable.
    """
    exposures = {arm.name: 0 for arm in config.arms} | store.unit_counts([config.name])[config.name]
    arms: list[ArmReport] = []
    recommendation: Recommendation = "invalid"
    standing = fold(config, actions)
    if standing.status == "changed":
        ratio = SampleRatio(1.0, False, "The config does not say which units each arm should have.", {})
        text = (
            f"{config.name!r} began with other arms or another salt than this config has, so its units "
            "cannot be analysed with it. Give the changed experiment another name and salt."
        )
    else:
        rolled_back = standing.rolled_back
        ratio = check(config, exposures, rolled_back)
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
    by_arm = comparisons(config, losses(config, actions))
    measured = {
        (metric.name, during): measure(store, config.name, metric, now, during, until)
        for metric in config.metrics
        for during in set(by_arm.values())
    }
    return {
        arm: [compare(config, metric, measured[metric.name, during], arm) for metric in config.metrics]
        for arm, during in by_arm.items()
    }


def look_times(config: ExperimentConfig, actions: Sequence[Action], now: float) -> list[float]:
    """Return evenly spaced times from the start until now, or until the end.

    They stay the same from one call to the next, so that a past look is computed once.
    """
    standing = fold(config, actions)
    start = standing.started
    if start is None or standing.status == "changed":
        return []
    ends = [loss.time for loss in losses(config, actions) if not loss.limits]
    seconds, step = min([now, *ends]) - start, 60.0
    while seconds / step > MAX_LOOKS:
        step *= 1.25
    return [start + step * number for number in range(1, int(seconds / step) + 1)]


def past_look(store: Store, config: ExperimentConfig, actions: Sequence[Action], moment: float) -> Look:
    """Return what a report at a past time said of the metrics. Raises DatabaseUnavailable."""
    so_far = actions[: bisect_right(logged_at(actions), moment)]
    reports = compare_all(store, config, so_far, moment, until=moment)
    return Look(moment, [report for of_arm in reports.values() for report in of_arm])


def compare(config: ExperimentConfig, metric: Metric, measured: Measured, arm: str) -> MetricReport:
    """Compare one metric of one arm with control."""
    ratio, adjusted = metric.kind == "ratio", metric.covariate is not None
    of_control, of_arm = (measured.moments.get(name, NOBODY) for name in (config.control, arm))
    everybody = sum((measured.moments.get(each.name, NOBODY) for each in config.arms), NOBODY)
    control, treated, pooled = (
        estimate(part, everybody, ratio=ratio, adjusted=adjusted) for part in (of_control, of_arm, everybody)
    )
    found = contrast(control, treated, pooled, _boundary(config, arm))
    gap = None
    if metric.relative and metric.margin is not None:
        share = 1 - metric.sign * metric.margin
        gap = contrast(control, treated, pooled, _boundary(config, arm), ratio=share)
    decision, text = verdict(metric, arm, found, gap)
    early, control_early = measured.early.get(arm, 0), measured.early.get(config.control, 0)
    if early + control_early:
        text += (
            f" Outcomes from the minute before their unit's exposure do not count: {early:,} of {arm}, "
            f"{control_early:,} of control. If they came after it, the sender's clock is behind ours."
        )
    explained = None
    if adjusted:
        plain = float(estimate(of_control, everybody, ratio=ratio).variance)
        explained = finite(1 - float(control.variance) / plain) if plain > 0 else None
    numbers: dict[str, Any] = {name: finite(value) for name, value in values_of(found).items()}
    numbers["p_value"] = min(1.0, len(config.treatments) * float(found.p_value))
    return MetricReport(
        **numbers,
        arm=arm,
        metric=metric.name,
        kind=metric.kind,
        units=int(treated.units),
        control_units=int(control.units),
        value=finite(treated.value),
        control_value=finite(control.value),
        margin=metric.margin,
        margin_relative=metric.relative,
        better=metric.better,
        variance_explained=explained,
        decision=decision,
        text=text,
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
    harm = {  # by more than a metric's margin
        arm.arm: " ".join(metric.text for metric in arm.metrics[1:] if metric.decision == "too_bad")
        for arm in running
    }
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
    progress = f"{seen:,} of {config.planned_units:,} planned units are exposed"
    then = (
        ": wait for more, which narrow the interval further, or stop."
        if seen >= config.planned_units
        else "."
    )
    return "wait", " ".join([*reasons, progress + then])


def _alpha(config: ExperimentConfig) -> float:
    """Return the α of one arm against control: the arms share it (Bonferroni)."""
    return ALPHA / len(config.treatments)


def _boundary(config: ExperimentConfig, arm: str) -> Boundary:
    """Return the boundary of one arm against control, which have their share of the planned units."""
    widths = config.exposed(1.0)
    share = (widths[arm] + widths[config.control]) / sum(widths.values())
    return Boundary(_alpha(config), config.planned_units * share)
