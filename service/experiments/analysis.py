"""Analyses an experiment. The report is valid at any time, however often it is made."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from service.experiments.definition import ExperimentConfig, Metric
from service.experiments.estimates import NOBODY, estimate, finite
from service.experiments.events import Action, values_of
from service.experiments.measure import Measured, comparisons, measure
from service.experiments.report import (
    ArmReport,
    Course,
    Look,
    MetricReport,
    Recommendation,
    Report,
    SampleRatio,
)
from service.experiments.sample_ratio import check
from service.experiments.sequences import Boundary, Contrast, contrast
from service.experiments.shadow_report import shadow_reports
from service.experiments.state import changed_since_start, fold, runs
from service.experiments.store import Store
from service.experiments.verdicts import BAD, GOOD, Verdict, judge

ALPHA = 0.05
"""The chance that any interval of a metric is ever wrong, over all looks and arms."""

MAX_LOOKS = 30
"""Past times at which an experiment's intervals are computed, at most."""

STEPS = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 2 * 86_400, 7 * 86_400, 28 * 86_400)


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


def look_times(config: ExperimentConfig, actions: Sequence[Action], now: float) -> list[float]:
    """Return evenly spaced times from the start until now, or until the end of the last run.

    They stay the same from one call to the next, so that a past look is computed once.
    """
    ran = runs(config, actions, now)
    if not ran:
        return []
    start, end = ran[0].start, min(now, ran[-1].end)
    step = next((step for step in STEPS if (end - start) / step <= MAX_LOOKS), None)
    if step is None:
        step = STEPS[-1] * (1 + int((end - start) / STEPS[-1] / MAX_LOOKS))
    count = int((end - start) / step)
    return [start + step * number for number in range(1, count + 1)]


def course(
    store: Store,
    config: ExperimentConfig,
    actions: Sequence[Action],
    times: Sequence[float],
    known: dict[float, Look],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Course:
    """Return the looks at these times. known: those computed before, which new ones are added to.

    It stops after some seconds with what it has. Raises DatabaseUnavailable.
    """
    until = clock() + seconds
    for moment in times:
        if moment not in known:
            if clock() > until:
                break
            known[moment] = _look(store, config, actions, moment)
    looks = [known[moment] for moment in times if moment in known]
    return Course(config.name, looks, len(looks) == len(times))


def _look(store: Store, config: ExperimentConfig, actions: Sequence[Action], moment: float) -> Look:
    logged_at = list(accumulate((action.time for action in actions), max))  # replicas' clocks differ
    so_far = actions[: bisect_right(logged_at, moment)]
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
    decision, text = _verdict(metric, arm, found, gap)
    early, control_early = measured.early.get(arm, 0), measured.early.get(config.control, 0)
    if early + control_early:
        text += (
            f" Outcomes from before their unit's exposure do not count: {early:,} of {arm}, "
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


def _verdict(metric: Metric, arm: str, found: Contrast, gap: Contrast | None) -> Verdict:
    """Return the verdict on one metric of one arm.

    gap: the contrast arm − (1 ∓ margin) · control, which judges a margin that is a share of control's value.
    Where Fieller's interval exists, it says the same.
    """
    subject, margin, sign = f"{arm} on {metric.name}", metric.margin, metric.sign
    low, high = float(found.low), float(found.high)
    if gap is None or not math.isfinite(low):
        return judge(subject, low, high, margin=margin, sign=sign)
    if math.isfinite(float(found.relative_low)):
        low, high = float(found.relative_low), float(found.relative_high)
        return judge(subject, low, high, margin=margin, sign=sign, relative=True)
    if not math.isfinite(float(gap.low)):
        return (
            "undecided",
            f"{subject}: control's value is below 0, so a margin relative to it says nothing; give the "
            f"metric {metric.name!r} a margin in its own unit with `relative: false`.",
        )
    return judge(subject, low, high, margin=margin, sign=sign, gap=(float(gap.low), float(gap.high)))


def _beyond_margin(arm: ArmReport) -> str:
    """Say which metrics with a margin, beside the first, the arm harms by more than it; empty if none."""
    return " ".join(metric.text for metric in arm.metrics[1:] if metric.decision == "too_bad")
