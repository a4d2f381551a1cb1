"""Says what `outcome_days` takes from an experiment: lists, clicks and outcomes, so long after its end."""

import math

from headroom.models.numbers import minute, number
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.log import State

DAY_SECONDS = 86_400
HOURS_PER_DAY = 24


def retention_text(config: ExperimentConfig, state: State, kept_days: float) -> str | None:
    """Return what a report lacks because it is deleted, or will lack; None: nothing.

    kept_days: `outcome_days`.
    """
    if state.deleted is None:
        return window_text(config, kept_days)
    what = "Lists and clicks" if config.is_interleaved else "Outcomes"
    return (
        f"{what} were deleted from {minute(state.deleted)} UTC on, because the experiment ended longer "
        "than outcome_days before."
    )


def window_text(config: ExperimentConfig, kept_days: float) -> str | None:
    """Return that clicks count for longer than the last lists are kept; None if they do not."""
    for metric in config.metrics:
        hours = metric.window_hours
        if config.is_interleaved and hours is not None and hours > kept_days * HOURS_PER_DAY:
            return (
                f"Clicks count as {metric.name} for {number(hours)} hours after their list, but lists are "
                f"kept for {number(kept_days)} days after the end: set outcome_days to at least "
                f"{math.ceil(hours / HOURS_PER_DAY)}."
            )
    return None
