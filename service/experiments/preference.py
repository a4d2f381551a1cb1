"""Judges an interleaving experiment: which arm's titles the units prefer, from −1 (control's) to 1.

A unit's value is (clicks on the treatment's titles − clicks on control's) / (both), over its lists that
count; a unit without a click on a team's title has none. The estimate is the mean of the units' values, so a
unit counts once, however often it clicks. Its interval is a confidence sequence, as in `estimates`: it holds
at any look.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headroom.service.experiments import clicks
from headroom.service.experiments.clicks import ClickSums, Credits
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.estimates import MIN_UNITS, Boundary
from headroom.service.experiments.events import values_of
from headroom.service.experiments.report import MetricPreference, MetricReport, Preference, Report
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.store import Store
from headroom.service.experiments.verdicts import ALPHA, preferred

UNSEEN_UNITS = 2
"""Units added to the variance, one at −1 and one at 1. Without them, units that all clicked one arm's titles
only would have no variance, and an interval without width."""


def preference(tally: ClickSums, *, planned_units: float, alpha: float) -> Preference:
    """Return the judgement at this look.

    planned_units: the number of units at which the interval is narrowest, compared with a single look.
    alpha: upper limit of the chance that any look's interval misses the truth.
    """
    estimate = tally.total / tally.units if tally.units else 0.0
    low = -1.0
    high = 1.0
    p = 1.0
    if tally.units >= MIN_UNITS:
        boundary = Boundary(alpha, planned_units)
        error = _standard_error(tally)
        radius = float(boundary.multiplier(tally.units)) * error
        low = max(low, estimate - radius)
        high = min(high, estimate + radius)
        p = float(boundary.p_value(estimate / error, tally.units))
    return Preference(
        estimate=estimate,
        interval=(low, high),
        p=p,
        units=tally.units,
        impressions=tally.impressions,
        differing=tally.differing,
        wins=tally.wins,
        losses=tally.losses,
        ties=tally.ties,
    )


def _standard_error(tally: ClickSums) -> float:
    """Return the standard error of the mean value, never 0."""
    units = tally.units + UNSEEN_UNITS
    mean = tally.total / units
    variance = (tally.squares + UNSEEN_UNITS) / units - mean**2
    return math.sqrt(variance / tally.units)


@dataclass(frozen=True, slots=True)
class JoinedClicks:
    """Clicks on an experiment's lists: credits by metric, and how many are on no shown title, by reason."""

    credits: Mapping[str, Credits]
    unmatched: Mapping[str, int]


def join_clicks(store: Store, experiment: Experiment) -> JoinedClicks:
    """Join the clicks of an experiment with its lists. Raises DatabaseUnavailable."""
    config = experiment.config
    with store.read_all() as db:
        by_metric, unmatched = clicks.read_credits(db, config)
        unmatched += clicks.unmatched(db, config, experiment.started)
    return JoinedClicks(by_metric, dict(unmatched))


def preference_reports(
    store: Store,
    experiment: Experiment,
    config: ExperimentConfig,
    joined: JoinedClicks | None = None,
    *,
    until: float | None = None,
) -> list[MetricReport]:
    """Return the preference for the treatment by each metric.

    config: of the report. joined: what `join_clicks` returned; None reads it.
    until: leaves out what happened later, in seconds since the epoch; None: nothing.
    Raises DatabaseUnavailable.
    """
    (arm,) = config.treatments
    end = math.inf if until is not None and experiment.end > until else experiment.end
    joined = join_clicks(store, experiment) if joined is None else joined
    with store.read_all() as db:
        lists = clicks.count_lists(db, config.name, end, until)
    reports = []
    for metric in config.metrics:
        tally = clicks.tally(lists, joined.credits[metric.name], metric, end, until)
        found = preference(tally, planned_units=config.planned_units, alpha=ALPHA)
        reports.append(preference_report(metric, arm, found, tally.viewers))
    return reports


def preference_report(metric: Metric, arm: str, found: Preference, viewers: int) -> MetricReport:
    """Return the report of one metric. viewers: units that saw an interleaved list."""
    decision, text = preferred(metric, arm, found, viewers)
    low, high = found.interval
    has_interval = (low, high) != (-1.0, 1.0)
    return MetricReport(
        arm=arm,
        metric=metric.name,
        difference=found.estimate if found.units else None,
        low=low if has_interval else None,
        high=high if has_interval else None,
        relative=None,
        relative_low=None,
        relative_high=None,
        kind="preference",
        units=found.units,
        control_units=found.units,
        value=None,
        control_value=None,
        p_value=found.p,
        margin=metric.margin,
        margin_relative=False,
        better="higher",
        variance_explained=None,
        decision=decision,
        text=text,
        preference=found,
    )


def deciding(report: Report | None) -> MetricPreference | None:
    """Return the preference by the first metric; None if there is none."""
    metrics = report.arms[0].metrics if report is not None and report.arms else []
    found = metrics[0].preference if metrics else None
    if found is None:
        return None
    return MetricPreference(**values_of(found), metric=metrics[0].metric)
