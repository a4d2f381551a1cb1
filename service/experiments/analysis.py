"""Analyses an experiment. The report is valid at any time, however often it is made."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headroom.models.numbers import minute
from headroom.service.experiments.buckets import ByArm
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.estimates import (
    DENOMINATOR,
    NOBODY,
    Boundary,
    Estimate,
    Moments,
    contrast,
    estimate,
    finite,
)
from headroom.service.experiments.events import values_of
from headroom.service.experiments.measure import Measured, comparisons, measure
from headroom.service.experiments.preference import JoinedClicks, join_clicks, preference_reports
from headroom.service.experiments.report import (
    ArmReport,
    Effect,
    Look,
    MetricReport,
    Recommendation,
    Report,
    SampleRatio,
)
from headroom.service.experiments.shadow_report import shadow_reports
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.store import Store
from headroom.service.experiments.verdicts import (
    ALPHA,
    BAD,
    GOOD,
    changes,
    check_units,
    early_outcomes,
    retention_text,
    units_in_both_arms,
    unmatched_clicks,
    verdict,
)

Compare = Callable[..., Mapping[str, Sequence[MetricReport]]]
"""`compare_all` for one experiment: takes `now` and `until`."""

MAX_LOOKS = 30
"""Past times at which an experiment's effects are computed, at most."""


def analyse(
    store: Store,
    experiment: Experiment,
    now: float,
    looks: dict[float, Look],
    kept_days: float = math.inf,
    looks_seconds: float = math.inf,
) -> Report:
    """Read the store and return a report. This takes seconds at millions of units.

    If the experiment's rows are deleted, that is the last one before, with its own time.

    experiment: what the log says of it. now: seconds since the epoch.
    looks: by time, those that earlier reports of the same experiment computed; new ones are added.
    kept_days: how long the store keeps lists, clicks and outcomes after the end.
    looks_seconds: how long looks are computed; a later report goes on.
    Raises DatabaseUnavailable.
    """
    config = experiment.config
    by_arm, in_both_arms = store.count_units(config.name)
    exposures = dict.fromkeys(config.spans, 0) | by_arm
    arms: list[ArmReport] = []
    past: list[Look] = []
    unmatched: Mapping[str, int] = {}
    recommendation: Recommendation = "invalid"
    retained = retention_text(experiment, kept_days)
    if experiment.deleted is not None:
        if (kept := _kept_report(store, config.name, retained)) is not None:
            return kept
        ratio = check_units(config, exposures, experiment.rolled_back)
        text = "Nothing is left to analyse."
    else:
        ratio = check_units(config, exposures, experiment.rolled_back)
        joined = join_clicks(store, experiment) if config.is_interleaved else None
        unmatched = {} if joined is None else joined.unmatched
        compare = partial(compare_all, store, experiment, joined)
        compared = compare(now)
        shadow = shadow_reports(store, config.name, config.treatments, _alpha(config), config.against_order)
        arms = [ArmReport(arm, metrics, shadow.get(arm)) for arm, metrics in compared.items()]
        running = [arm for arm in arms if arm.arm not in experiment.rolled_back]
        progress = _progress(config, arms, exposures)
        recommendation, text = recommend(config, running, ratio, progress)
        text += units_in_both_arms(in_both_arms) + unmatched_clicks(unmatched) + changes(experiment)
        past = past_looks(compare, look_times(experiment, now), looks, looks_seconds)
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
        retention=retained,
        looks=past,
        in_both_arms=in_both_arms,
        unmatched=unmatched,
        end=experiment.ended,
    )


def _kept_report(store: Store, name: str, retained: str | None) -> Report | None:
    """Return the last report of an experiment whose rows are deleted, as `retained` says.

    None if none was kept, or it is of another release's form. Raises DatabaseUnavailable.
    """
    kept = store.final_report(name)
    if kept is None:
        return None
    try:
        report = Report.from_json(kept)
    except ValueError:
        return None
    return replace(report, retention=f"{retained} The figures are those of {minute(report.time)} UTC.")


def past_looks(
    compare: Compare, times: Sequence[float], known: dict[float, Look], seconds: float
) -> list[Look]:
    """Return the looks at past times, as far as `seconds` suffice for them, and add the new ones to `known`.

    A known look stays as it is, so outcomes that come late are in later looks only.
    """
    deadline = time.monotonic() + seconds
    for moment in times:
        if moment not in known and time.monotonic() < deadline:
            known[moment] = past_look(compare, moment)
    return [known[moment] for moment in times if moment in known]


def compare_all(
    store: Store, experiment: Experiment, joined: JoinedClicks | None, now: float, until: float | None = None
) -> dict[str, list[MetricReport]]:
    """Compare all metrics of each arm except control with control.

    joined: what `join_clicks` returned, if the experiment interleaves.
    until: leaves out what happened later, in seconds since the epoch; None: nothing.
    """
    config = experiment.config
    if config.is_interleaved:
        (arm,) = config.treatments
        return {arm: preference_reports(store, experiment, config, joined, until=until)}
    by_arm = comparisons(experiment, math.inf if until is None else until)
    measured = {
        (metric.name, comparison): measure(store, config.name, metric, now, comparison, until)
        for metric in config.metrics
        for comparison in set(by_arm.values())
    }
    return {
        arm: [
            compare_arm(config, metric, measured[metric.name, comparison], arm) for metric in config.metrics
        ]
        for arm, comparison in by_arm.items()
    }


def look_times(experiment: Experiment, now: float) -> list[float]:
    """Return evenly spaced times from the start until now, or until the end.

    They stay the same from one call to the next, so that a past look is computed once.
    """
    start = experiment.started
    seconds = min(now, experiment.end) - start
    step = 60.0
    while seconds / step > MAX_LOOKS:
        step *= 1.25
    return [start + step * number for number in range(1, int(seconds / step) + 1)]


def past_look(compare: Compare, moment: float) -> Look:
    """Return what a report at a past time said of the metrics."""
    reports = compare(moment, moment)
    effects = [
        Effect(**{name: getattr(report, name) for name in Effect.__slots__})
        for metrics in reports.values()
        for report in metrics
    ]
    return Look(moment, effects)


def compare_arm(config: ExperimentConfig, metric: Metric, measured: Measured, arm: str) -> MetricReport:
    """Compare one metric of one arm with control."""
    adjusted = metric.covariate is not None
    estimates, pooled = _estimates(config, metric, measured, adjusted=adjusted)
    control = estimates[config.control]
    treated = estimates[arm]
    boundary = _boundary(config, arm)
    effect = contrast(control, treated, pooled, boundary)
    to_margin = None
    if metric.relative and metric.margin is not None:
        share = 1 - metric.sign * metric.margin
        to_margin = contrast(control, treated, pooled, boundary, ratio=share)
    decision, text = verdict(metric, arm, effect, to_margin)
    without_value = _without_denominator(metric, measured, (config.control, arm))
    if without_value:
        text = (
            f"{arm} on {metric.name}: the values of {metric.denominator!r} add up to 0 in "
            f"{' and '.join(without_value)}, so the ratio has no value there."
        )
    explained = None
    if adjusted:
        plain_estimates, _ = _estimates(config, metric, measured, adjusted=False)
        plain_variance = plain_estimates[config.control].variance
        if plain_variance > 0:
            explained = finite(1 - control.variance / plain_variance)
    numbers: dict[str, Any] = {name: finite(value) for name, value in values_of(effect).items()}
    numbers["p_value"] = None if without_value else min(1.0, len(config.treatments) * float(effect.p_value))
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
        text=text + early_outcomes(config, measured.early, arm),
    )


def _estimates(
    config: ExperimentConfig, metric: Metric, measured: Measured, *, adjusted: bool
) -> tuple[dict[str, Estimate], Estimate]:
    """Return the metric's estimates by arm, and that of all arms together."""
    by_arm = {arm.name: measured.moments.get(arm.name, NOBODY) for arm in config.arms}
    pooled = sum(by_arm.values(), NOBODY)

    def estimate_of(moments: Moments) -> Estimate:
        return estimate(moments, pooled, ratio=metric.kind == "ratio", adjusted=adjusted)

    return {arm: estimate_of(moments) for arm, moments in by_arm.items()}, estimate_of(pooled)


def _without_denominator(metric: Metric, measured: Measured, arms: Sequence[str]) -> list[str]:
    """Return the arms whose ratio would divide by 0."""
    if metric.kind != "ratio":
        return []
    moments = [(arm, measured.moments.get(arm, NOBODY)) for arm in arms]
    return [arm for arm, of_arm in moments if of_arm.units > 0 and of_arm.mean[DENOMINATOR] == 0]


def _progress(config: ExperimentConfig, arms: Sequence[ArmReport], exposures: ByArm) -> tuple[int, str]:
    """Return how many of the planned units there are, those that the first metric's interval rests on, and
    what they have done, as words."""
    if config.is_interleaved:
        units = arms[0].metrics[0].units if config.metrics else 0
        return units, "have clicked a title of one arm"
    return sum(exposures.values()), "are exposed"


def recommend(
    config: ExperimentConfig, running: Sequence[ArmReport], ratio: SampleRatio, progress: tuple[int, str]
) -> tuple[Recommendation, str]:
    """Return a recommendation and its reason.

    running: the arms that are not rolled back. progress: what `_progress` returns.
    """
    if ratio.alarm:
        return "invalid", ratio.text
    if not config.metrics:
        return "wait", "No metrics are declared, so there is nothing to decide by but the shadow differences."
    if not running:
        return "stop", "Every arm was rolled back to control."
    primary = config.metrics[0]
    harm = {arm.arm: _harm(arm) for arm in running}
    good = [arm for arm in running if arm.metrics[0].decision in GOOD and not harm[arm.arm]]
    if good:
        best = max(good, key=lambda arm: primary.sign * (arm.metrics[0].difference or 0.0))
        text = best.metrics[0].text
        doubts = " ".join(metric.text for metric in best.metrics[1:] if _is_doubt(metric))
        return "ship", f"{text} But: {doubts}" if doubts else text
    reasons = " ".join(harm[arm.arm] or arm.metrics[0].text for arm in running)
    # With a margin, `worse` is no answer yet: the arm may still turn out to be within it.
    final = BAD if primary.margin is None else {"too_bad"}
    if all(harm[arm.arm] or arm.metrics[0].decision in final for arm in running):
        return "stop", reasons
    units, words = progress
    text = f"{reasons} {units:,} of {config.planned_units:,} planned units {words}"
    if units < config.planned_units:
        return "wait", f"{text}."
    return "wait", f"{text}: wait for more, which narrow the interval further, or stop."


def _harm(arm: ArmReport) -> str:
    """Return the verdicts of the secondary metrics that are worse than their margin; empty without any."""
    return " ".join(metric.text for metric in arm.metrics[1:] if metric.decision == "too_bad")


def _is_doubt(metric: MetricReport) -> bool:
    """Whether a secondary metric is worse than control, or may still be worse than its margin."""
    return metric.decision in BAD or (metric.margin is not None and metric.decision == "undecided")


def _alpha(config: ExperimentConfig) -> float:
    """Return the α of one arm against control: the arms share it (Bonferroni)."""
    return ALPHA / len(config.treatments)


def _boundary(config: ExperimentConfig, arm: str) -> Boundary:
    """Return the boundary of one arm against control, which have their share of the planned units."""
    widths = config.exposed(1.0)
    share = (widths[arm] + widths[config.control]) / sum(widths.values())
    return Boundary(_alpha(config), config.planned_units * share)
