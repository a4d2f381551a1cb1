"""Says what `outcome_days` takes from an experiment: lists, clicks and outcomes are deleted after them.

Of a running A/B test nothing is deleted. The lists of an interleaved experiment go while it runs.
"""

import math
from datetime import UTC, datetime

from headroom.models.numbers import number
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.estimates import MIN_UNITS
from headroom.service.experiments.state import Standing

DAY_SECONDS = 86_400
HOURS_PER_DAY = 24


def retention_text(
    config: ExperimentConfig, standing: Standing, now: float, kept_days: float, units: int
) -> str | None:
    """Return what a report lacks because it is deleted, or will lack before the plan is done; None: nothing.

    now: seconds since the epoch. kept_days: `outcome_days`. units: those of `planned_units` so far.
    """
    if standing.started is None:
        return None
    kept_since = now - kept_days * DAY_SECONDS
    if standing.started < kept_since and (config.is_interleaved or standing.is_over):
        what = "Lists and clicks" if config.is_interleaved else "Outcomes"
        return (
            f"{what} from before {datetime.fromtimestamp(kept_since, UTC):%Y-%m-%d %H:%M} UTC are deleted "
            f"(outcome_days: {number(kept_days)}), so these figures are of the later ones alone."
        )
    return window_text(config, kept_days) or _pace_text(config, standing, now, kept_days, units)


def window_text(config: ExperimentConfig, kept_days: float) -> str | None:
    """Return that clicks count for longer than their lists are kept; None if they do not."""
    for metric in config.metrics:
        hours = metric.window_hours
        if config.is_interleaved and hours is not None and hours > kept_days * HOURS_PER_DAY:
            return (
                f"Clicks count as {metric.name} for {number(hours)} hours after their list, but lists are "
                f"kept for {number(kept_days)} days: set outcome_days to at least "
                f"{math.ceil(hours / HOURS_PER_DAY)}."
            )
    return None


def _pace_text(
    config: ExperimentConfig, standing: Standing, now: float, kept_days: float, units: int
) -> str | None:
    """Return that a running experiment will take longer than its lists are kept, as far as one can see."""
    assert standing.started is not None
    days = (now - standing.started) / DAY_SECONDS
    is_known = config.is_interleaved and standing.is_running and days >= 1 and units >= MIN_UNITS
    if not is_known or units >= config.planned_units:
        return None
    needed_days = math.ceil(config.planned_units / units * days)
    if needed_days <= kept_days:
        return None
    return (
        f"At this pace the planned units take {needed_days:,} days, but lists and clicks are kept for "
        f"{number(kept_days)}: set outcome_days to more, or the first ones will be deleted."
    )
