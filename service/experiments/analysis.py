"""Analyses an experiment. A report follows from the facts, the log and the time, however often it is made."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headroom.models.numbers import minute
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.estimates import (
    ALPHA,
    DENOMINATOR,
    Boundary,
    Moments,
    contrast,
    estimate,
    finite,
)
from headroom.service.experiments.events import values_of
from headroom.service.experiments.measure import Facts, comparison, count_early, measure, read_facts
from headroom.service.experiments.preference import preference_report
from headroom.service.experiments.report import (
    ArmReport,
    Effect,
    Look,
    MetricReport,
    Recommendation,
    Report,
)
from headroom.service.experiments.shadow_report import shadow_reports
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.store import Store
from headroom.service.experiments.verdicts import (
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

MAX_LOOKS = 40
"""Past times at which an experiment's effects are computed, at most."""


def analyse(store: Store, experiment: Experiment, now: float) -> Report:
    """Read the store and return a report. This takes some seconds for 300,000 units.

    If the experiment's rows are deleted, that is the last one before, with its own time.
    experiment: what the log says of it. now: seconds since the epoch. Raises DatabaseUnavailable.
    """
    config = experiment.config
    with store.read_all() as db:
        facts = read_facts(db, experiment)
    exposures = facts.exposed()
    in_both_arms = len(facts.units) - sum(exposures.values())
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
    shadow = shadow_reports(store, config.name, config.treatments, _alpha(config), config.against_order)
    report = replace(
        report,
        arms=[
            ArmReport(arm, compare(facts, experiment, arm, now), shadow.get(arm)) for arm in config.treatments
        ],
        unmatched={} if facts.seen is None else facts.seen.unmatched,
        looks=[_look(facts, experiment, moment) for moment in look_times(experiment, now)],
    )
    recommendation, reason = recommend(experiment, report)
    sentences = [
        reason,
        _progress(config, report),
        early_outcomes({} if config.is_interleaved else count_early(facts, config)),
        units_in_both_arms(in_both_arms),
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


def compare(facts: Facts, experiment: Experiment, arm: str, now: float) -> list[MetricReport]:
    """Compare all metrics of an arm with control."""
    config = experiment.config
    boundary = _boundary(config, arm)
    if facts.seen is not None:
        end = experiment.end
        return [preference_report(metric, arm, facts.seen, boundary, end) for metric in config.metrics]
    during = comparison(experiment, arm)
    return [
        compare_arm(metric, measure(facts, metric, during, now), boundary, len(config.treatments))
        for metric in config.metrics
    ]


def compare_arm(
    metric: Metric, moments: Mapping[str, Moments], boundary: Boundary, arms: int = 1
) -> MetricReport:
    """Compare one metric of one arm with control.

    moments: of control and of the arm, by name. arms: how many are compared with control, over which p is
        corrected.
    """
    (_, of_control), (arm, of_arm) = moments.items()
    of_both = of_control + of_arm
    control, treated, pooled = (
        estimate(part, of_both, ratio=metric.kind == "ratio", adjusted=metric.covariate is not None)
        for part in (of_control, of_arm, of_both)
    )
    effect = contrast(control, treated, pooled, boundary)
    margin = metric.sign * (metric.margin or 0.0)
    shift = 0.0 if metric.relative else margin
    to_margin = contrast(control, treated, pooled, boundary, ratio=1 - margin) if metric.relative else effect
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


def _without_denominator(metric: Metric, moments: Mapping[str, Moments]) -> list[str]:
    """Return the arms whose ratio would divide by 0."""
    if metric.kind != "ratio":
        return []
    return [arm for arm, of_arm in moments.items() if of_arm.units > 0 and of_arm.mean[DENOMINATOR] == 0]


def recommend(experiment: Experiment, report: Report) -> tuple[Recommendation, str]:
    """Return a recommendation and its reason, from the units and the arms of a report."""
    config = experiment.config
    running = [arm for arm in report.arms if arm.arm not in experiment.rolled_back]
    if report.sample_ratio.alarm:
        return "invalid", report.sample_ratio.text
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

    Their distance doubles as time goes by, so those of a later report are among those of the earlier ones.
    """
    start = experiment.started
    seconds = min(now, experiment.end) - start
    step = 60.0
    while seconds / step > MAX_LOOKS:
        step *= 2
    return [start + step * number for number in range(1, int(seconds / step) + 1)]


def _look(facts: Facts, experiment: Experiment, moment: float) -> Look:
    """Return what a report of the facts up to a time says of the metrics."""
    past = facts.until(moment)
    effects = [
        Effect(**{name: getattr(report, name) for name in Effect.__slots__})
        for arm in experiment.config.treatments
        for report in compare(past, experiment, arm, moment)
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
