"""Compares the experiments of a config with what their database says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headroom.service.experiments.state import fold
from headroom.service.experiments.store import Store

if TYPE_CHECKING:
    from headroom.service.experiments.definition import ExperimentConfig


def changed_since_start(database_url: str | None, experiments: Sequence[ExperimentConfig]) -> list[str]:
    """Return a line about each experiment that began with another salt, other arms or another kind.

    database_url: None: the default. Nothing is compared if there is no database yet.
    Raises DatabaseUnavailable.
    """
    store = Store(database_url)
    if not experiments or not store.is_made:
        return []
    try:
        actions = store.actions([experiment.name for experiment in experiments])
    finally:
        store.close()
    lines = []
    for index, experiment in enumerate(experiments):
        log = [action for action in actions if action.experiment == experiment.name]
        if fold(experiment, log).status == "changed":
            begun = next(action.detail for action in log if action.kind == "start")
            lines.append(
                f"experiments[{index}]: {experiment.name!r} has begun, so its kind, salt and arms must stay "
                f"as they are from its start on ({begun}); give the changed experiment another name and salt"
            )
    return lines
