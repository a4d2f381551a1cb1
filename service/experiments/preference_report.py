"""Reports whose titles the units of an interleaving experiment clicked, and how many lists differed."""

from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.events import Log, values_of
from headroom.service.experiments.preference import Preference, preference
from headroom.service.experiments.report import MetricPreference, MetricReport, Report
from headroom.service.experiments.state import end_of, withdrawals
from headroom.service.experiments.store import Store
from headroom.service.experiments.verdicts import ALPHA, preferred


def preference_reports(
    store: Store, config: ExperimentConfig, actions: Log, now: float, *, until: float | None = None
) -> list[MetricReport]:
    """Return the preference for the treatment by each metric.

    until: leaves out what happened later, in seconds since the epoch; None: nothing.
    Raises DatabaseUnavailable.
    """
    (arm,) = config.treatments
    end = end_of(withdrawals(config, actions))
    reports = []
    for metric in config.metrics:
        tally = store.preferences(config, metric, end, now, until)
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
