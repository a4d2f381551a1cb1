"""Tells the outcomes of known experiments and metrics from the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from service.experiments.definition import ExperimentConfig
from service.experiments.events import Outcome, UnknownOutcome

MAX_LISTED = 10
"""Names of metrics in a message, at most."""


def sort_out(
    rows: Sequence[Outcome], configs: Collection[ExperimentConfig]
) -> tuple[list[Outcome], list[UnknownOutcome]]:
    """Return the outcomes of known experiments and metrics, and those of unknown ones.

    configs: the known experiments; one without metrics takes any.
    """
    known: list[Outcome] = []
    unknown: list[UnknownOutcome] = []
    sources = {
        config.name: {source for metric in config.metrics for source in metric.sources} for config in configs
    }
    for index, row in enumerate(rows):
        declared = sources.get(row.experiment)
        if declared is None:
            message = f"there is no experiment {row.experiment!r}"
            unknown.append(UnknownOutcome(index, row.id, "experiment", message))
        elif declared and row.metric not in declared:
            names = ", ".join(sorted(declared)[:MAX_LISTED]) + (", …" if len(declared) > MAX_LISTED else "")
            message = f"{row.experiment!r} has no metric {row.metric!r}; it has {names}"
            unknown.append(UnknownOutcome(index, row.id, "metric", message))
        else:
            known.append(row)
    return known, unknown
