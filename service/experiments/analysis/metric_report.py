"""Compares one metric of one arm with control: estimates, interval, verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from models.numbers import number, percent
from service.experiments.analysis.aggregates import Measured
from service.experiments.analysis.estimates import Estimate, estimate, finite
from service.experiments.analysis.findings import MetricReport, Uncapped
from service.experiments.analysis.moments import Moments, pool
from service.experiments.analysis.report_spec import ReportSpec
from service.experiments.analysis.sequences import Boundary, contrast, margin_gap
from service.experiments.analysis.verdicts import Verdict, judge
from service.experiments.definition.metric import Metric

_NOBODY = Moments(np.array(0.0), np.zeros(3), np.zeros((3, 3)), np.array(0.0))


def boundary_for(spec: ReportSpec, arm: str) -> Boundary:
    """Return the boundary of one arm against control: the arms share α (Bonferroni) and the planned units."""
    share = (spec.arms[arm] + spec.arms[spec.control]) / sum(spec.arms.values())
    return Boundary(spec.alpha / spec.comparisons, spec.planned_units * share)


def compare(metric: Metric, measured: Measured, arm: str, spec: ReportSpec) -> MetricReport:
    """Compare one metric of one arm with control."""
    control, treated, overall = _estimates(metric, measured.moments, arm, spec)
    difference = contrast(control, treated, overall, boundary_for(spec, arm))
    verdict = _verdict(metric, measured, arm, spec)
    uncapped = _uncapped(metric, measured, arm, spec)
    early, control_early = measured.early.get(arm, 0), measured.early.get(spec.control, 0)
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
        p_value=min(1.0, spec.comparisons * float(difference.p_value)),
        margin=metric.margin,
        margin_relative=metric.relative,
        better=metric.better,
        variance_explained=_explained(metric, measured.moments, control, spec),
        decision=verdict.decision,
        text=" ".join(
            [
                verdict.text,
                *([] if uncapped is None else [_beside(uncapped)]),
                *([early_text(arm, early, control_early)] if early + control_early else []),
            ]
        ),
        early=early,
        control_early=control_early,
        uncapped=uncapped,
    )


def _verdict(metric: Metric, measured: Measured, arm: str, spec: ReportSpec) -> Verdict:
    """Return the verdict on one metric of one arm.

    A margin that is a share of control's value is judged by the contrast arm − (1 ∓ margin) · control. It is
    the same as by Fieller's interval where there is one.
    """
    estimates, boundary = _estimates(metric, measured.moments, arm, spec), boundary_for(spec, arm)
    difference = contrast(*estimates, boundary)
    subject, margin = f"{arm} on {metric.name}", metric.margin
    low, high = float(difference.low), float(difference.high)
    if measured.share_at_cap is not None and not math.isfinite(low):
        return Verdict("undecided", f"{subject}: {_all_capped(metric, measured, measured.share_at_cap)}")
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
    metric: Metric, moments: Mapping[str, Moments], arm: str, spec: ReportSpec
) -> tuple[Estimate, Estimate, Estimate]:
    """Return the estimates of control, of the arm and of all units."""
    pooled = _pooled(moments, spec)
    ratio, adjusted = metric.kind == "ratio", metric.covariate is not None
    control, treated, overall = (
        estimate(part, pooled, ratio=ratio, adjusted=adjusted)
        for part in (moments.get(spec.control, _NOBODY), moments.get(arm, _NOBODY), pooled)
    )
    return control, treated, overall


def _pooled(moments: Mapping[str, Moments], spec: ReportSpec) -> Moments:
    return pool(moments.get(arm, _NOBODY) for arm in spec.arms)


def _uncapped(metric: Metric, measured: Measured, arm: str, spec: ReportSpec) -> Uncapped | None:
    if measured.cap is None or measured.uncapped is None:
        return None
    control, treated, overall = _estimates(metric, measured.uncapped, arm, spec)
    difference = contrast(control, treated, overall, boundary_for(spec, arm))
    return Uncapped(
        cap=measured.cap,
        value=finite(treated.value),
        control_value=finite(control.value),
        difference=finite(difference.difference),
        relative=finite(difference.relative),
        relative_low=finite(difference.relative_low),
        relative_high=finite(difference.relative_high),
    )


def _all_capped(metric: Metric, measured: Measured, share: float) -> str:
    """Return what to do if the cap makes the sums of all units the same. share: that of units below it."""
    decimals = 1 + math.ceil(-math.log10(1 - share))
    least = math.ceil(share * 10**decimals) / 10**decimals
    return (
        f"no interval, because `winsorize: {metric.winsorize:g}` makes the sum of every unit "
        f"{number(measured.cap or 0.0, digits=4)}; {100 * share:.{decimals - 2}f} % of the units have no "
        f"more than that. In the config, set `winsorize` of the metric {metric.name!r} above {least:g} and "
        "below 1, or leave it out."
    )


def _beside(raw: Uncapped) -> str:
    """Return the raw means as a sentence, because the cap may hide an effect on the largest sums."""
    if raw.value is None or raw.control_value is None or raw.difference is None:
        cap = number(raw.cap, digits=4)
        return f"Sums above {cap} count as {cap}."
    change = number(raw.difference, sign=True)
    if raw.relative is not None:
        change = percent(raw.relative, sign=True)
    if raw.relative_low is not None and raw.relative_high is not None:
        change += (
            f", between {percent(raw.relative_low, sign=True)} and {percent(raw.relative_high, sign=True)}"
        )
    cap, value, control = (number(each, digits=4) for each in (raw.cap, raw.value, raw.control_value))
    return (
        f"Sums above {cap} count as {cap}; without this cap the mean is {value} against {control} ({change})."
    )


def early_text(arm: str, early: int, control_early: int) -> str:
    """Return a sentence about outcomes that do not count, because they are of times before the exposure."""
    return (
        f"Outcomes from before their unit's exposure do not count: {early:,} of {arm}, {control_early:,} of "
        "control. If they came after it, the sender's clock is behind the service's."
    )


def _explained(
    metric: Metric, moments: Mapping[str, Moments], adjusted: Estimate, spec: ReportSpec
) -> float | None:
    """Return the share of control's variance that the covariate explains."""
    if metric.covariate is None:
        return None
    control, ratio = moments.get(spec.control, _NOBODY), metric.kind == "ratio"
    plain = float(estimate(control, _pooled(moments, spec), ratio=ratio).variance)
    return None if not plain > 0 else finite(1 - float(adjusted.variance) / plain)
