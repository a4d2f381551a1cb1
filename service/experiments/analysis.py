"""Analyses an experiment. The report is valid at any time, however often it is made."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Select

from headroom.models.numbers import minute
from headroom.service.experiments.clicks import Interleaved, read_interleaved
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
from headroom.service.experiments.facts import count_units
from headroom.service.experiments.measure import comparison, count_early, measure, moments_query
from headroom.service.experiments.preference import preference_report
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
    deletion,
    early_outcomes,
    units_in_both_arms,
    unmatched_clicks,
    verdict,
)

MAX_LOOKS = 30
"""Past times at which an experiment's effects are computed, at most."""


def analyse(
    store: Store,
    experiment: Experiment,
    now: float,
    looks: dict[float, Look],
    looks_seconds: float = math.inf,
) -> Report:
    """Read the store and return a report. This takes seconds at millions of units.

    If the experiment's rows are deleted, that is the last one before, with its own time.

    experiment: what the log says of it. now: seconds since the epoch.
    looks: by time, those that earlier reports of the same experiment computed; new ones are added.
    looks_seconds: how long looks are computed; a later report goes on.
    Raises DatabaseUnavailable.
    """
    config = experiment.config
    with store.read_all() as db:
        by_arm, in_both_arms = count_units(db, config.name)
    exposures = dict.fromkeys(config.spans, 0) | by_arm
    report = Report(
        experiment=config.name,
        time=now,
        control=config.control,
        alpha=ALPHA,
        planned_units=config.planned_units,
        exposures=exposures,
        sample_ratio=check_units(config, exposures, experiment.rolled_back),
        arms=[],
        recommendation="invalid",
        text="Nothing is left to analyse.",
        looks=[],
        retention=deletion(experiment),
        in_both_arms=in_both_arms,
        end=finite(experiment.end),
    )
    if experiment.deleted is not None:
        return _kept_report(store, config.name, report.retention) or report
    compare = Comparer(store, experiment)
    arms = _arms(store, config, compare(now))
    unmatched = {} if compare.seen is None else compare.seen.unmatched
    report = _recommended(store, experiment, replace(report, arms=arms, unmatched=unmatched))
    return replace(report, looks=past_looks(compare, look_times(experiment, now), looks, looks_seconds))


def _arms(
    store: Store, config: ExperimentConfig, metrics: Mapping[str, Sequence[MetricReport]]
) -> list[ArmReport]:
    """Return the reports of the arms with their shadow. metrics: by arm."""
    shadow = shadow_reports(store, config.name, config.treatments, _alpha(config), config.against_order)
    return [ArmReport(arm, of_arm, shadow.get(arm)) for arm, of_arm in metrics.items()]


def _recommended(store: Store, experiment: Experiment, report: Report) -> Report:
    """Return a report with its recommendation, the reason, and what else a reader must know."""
    config = experiment.config
    running = [arm for arm in report.arms if arm.arm not in experiment.rolled_back]
    recommendation, reason = recommend(config, running, report.sample_ratio)
    early = {} if config.is_interleaved else count_early(store, config)
    sentences = [
        reason,
        _progress(config, report),
        early_outcomes(early),
        units_in_both_arms(report.in_both_arms),
        unmatched_clicks(report.unmatched),
        *changes(experiment),
    ]
    return replace(report, recommendation=recommendation, text=" ".join(filter(None, sentences)))


def _kept_report(store: Store, name: str, retention: str | None) -> Report | None:
    """Return the last report of an experiment whose rows are deleted, as `retention` says.

    None if none was kept, or it is of another release's form. Raises DatabaseUnavailable.
    """
    kept = store.final_report(name)
    if kept is None:
        return None
    try:
        report = Report.from_json(kept)
    except ValueError:
        return None
    return replace(report, retention=f"{retention} The figures are those of {minute(report.time)} UTC.")


class Comparer:
    """Compares all arms with control, now and at past times. The statements are built once for all looks.

    seen: what the units saw and clicked, if the experiment interleaves.
    """

    def __init__(self, store: Store, experiment: Experiment) -> None:
        self._store = store
        self._experiment = experiment
        config = experiment.config
        self.seen: Interleaved | None = None
        self._queries: dict[str, Sequence[Select[Any]]] = {}
        if config.is_interleaved:
            with store.read_all() as db:
                self.seen = read_interleaved(db, experiment)
            return
        for arm in config.treatments:
            during = comparison(experiment, arm)
            self._queries[arm] = [moments_query(config.name, metric, during) for metric in config.metrics]

    def __call__(self, now: float, until: float = math.inf) -> dict[str, list[MetricReport]]:
        """Compare all metrics of each arm except control with control.

        until: leaves out what happened later, in seconds since the epoch.
        """
        config = self._experiment.config
        return {arm: self._of_arm(arm, _boundary(config, arm), now, until) for arm in config.treatments}

    def _of_arm(self, arm: str, boundary: Boundary, now: float, until: float) -> list[MetricReport]:
        config = self._experiment.config
        if self.seen is not None:
            end = self._experiment.end
            return [
                preference_report(metric, arm, self.seen, boundary, end, until) for metric in config.metrics
            ]
        reports = []
        for metric, query in zip(config.metrics, self._queries[arm], strict=True):
            found = measure(self._store, query, now, until)
            moments = {name: found.get(name, NOBODY) for name in (config.control, arm)}
            reports.append(compare_arm(metric, arm, moments, boundary, len(config.treatments)))
        return reports


def compare_arm(
    metric: Metric, arm: str, moments: Mapping[str, Moments], boundary: Boundary, arms: int = 1
) -> MetricReport:
    """Compare one metric of one arm with control.

    moments: by arm, control's first. arms: how many are compared with control, over which p is corrected.
    """
    control, treated, pooled = _estimates(metric, moments)
    effect = contrast(control, treated, pooled, boundary)
    to_margin = effect
    shift = 0.0
    if metric.margin is not None and metric.relative:
        share = 1 - metric.sign * metric.margin
        to_margin = contrast(control, treated, pooled, boundary, ratio=share)
    elif metric.margin is not None:
        shift = metric.sign * metric.margin
    within = (float(to_margin.low) + shift, float(to_margin.high) + shift)
    decision, text = verdict(metric, arm, effect, within)
    without_value = _without_denominator(metric, moments)
    if without_value:
        text = (
            f"{arm} on {metric.name}: the values of {metric.denominator!r} add up to 0 in "
            f"{' and '.join(without_value)}, so the ratio has no value there."
        )
    numbers: dict[str, Any] = {name: finite(value) for name, value in values_of(effect).items()}
    numbers["p_value"] = None if without_value else min(1.0, arms * float(effect.p_value))
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
        decision=decision,
        text=text,
    )


def _estimates(metric: Metric, moments: Mapping[str, Moments]) -> tuple[Estimate, Estimate, Estimate]:
    """Return the metric's estimates of control, of the arm, and of both together."""
    control, arm = moments.values()
    pooled = control + arm
    of_control, of_arm, of_both = (
        estimate(part, pooled, ratio=metric.kind == "ratio", adjusted=metric.covariate is not None)
        for part in (control, arm, pooled)
    )
    return of_control, of_arm, of_both


def _without_denominator(metric: Metric, moments: Mapping[str, Moments]) -> list[str]:
    """Return the arms whose ratio would divide by 0."""
    if metric.kind != "ratio":
        return []
    return [arm for arm, of_arm in moments.items() if of_arm.units > 0 and of_arm.mean[DENOMINATOR] == 0]


def recommend(
    config: ExperimentConfig, running: Sequence[ArmReport], ratio: SampleRatio
) -> tuple[Recommendation, str]:
    """Return a recommendation and its reason. running: the arms that are not rolled back."""
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
    is_final = all(harm[arm.arm] or arm.metrics[0].decision in final for arm in running)
    return "stop" if is_final else "wait", reasons


def _harm(arm: ArmReport) -> str:
    """Return the verdicts of the secondary metrics that are worse than their margin; empty without any."""
    return " ".join(metric.text for metric in arm.metrics[1:] if metric.decision == "too_bad")


def _is_doubt(metric: MetricReport) -> bool:
    """Whether a secondary metric is worse than control, or may still be worse than its margin."""
    return metric.decision in BAD or (metric.margin is not None and metric.decision == "undecided")


def _progress(config: ExperimentConfig, report: Report) -> str:
    """Return as a sentence how many of the planned units there are.

    Of an interleaving experiment, those count that the first metric's interval rests on.
    """
    planned = f"{config.planned_units:,} planned units"
    if report.preference is not None:
        return f"{report.preference.units:,} of {planned} have clicked a title of one arm."
    return f"{sum(report.exposures.values()):,} of {planned} are exposed."


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


def past_looks(
    compare: Comparer, times: Sequence[float], known: dict[float, Look], seconds: float
) -> list[Look]:
    """Return the looks at past times, as far as `seconds` suffice for them, and add the new ones to `known`.

    A known look stays as it is, so outcomes that come late are in later looks only.
    """
    deadline = time.monotonic() + seconds
    for moment in times:
        if moment not in known and time.monotonic() < deadline:
            known[moment] = past_look(compare, moment)
    return [known[moment] for moment in times if moment in known]


def past_look(compare: Comparer, moment: float) -> Look:
    """Return what a report at a past time said of the metrics."""
    reports = compare(moment, moment)
    effects = [
        Effect(**{name: getattr(report, name) for name in Effect.__slots__})
        for metrics in reports.values()
        for report in metrics
    ]
    return Look(moment, effects)


def _alpha(config: ExperimentConfig) -> float:
    """Return the α of one arm against control: the arms share it (Bonferroni)."""
    return ALPHA / len(config.treatments)


def _boundary(config: ExperimentConfig, arm: str) -> Boundary:
    """Return the boundary of one arm against control, which have their share of the planned units."""
    if config.is_interleaved:
        return Boundary(ALPHA, config.planned_units)
    widths = config.exposed(1.0)
    share = (widths[arm] + widths[config.control]) / sum(widths.values())
    return Boundary(_alpha(config), config.planned_units * share)
