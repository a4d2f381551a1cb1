"""Compares the experiments of a config with what their database says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.database import EMPTY
from headroom.service.experiments.log import Declared, changed_identity, fold
from headroom.service.experiments.store import Store

if TYPE_CHECKING:
    from headroom.service.experiments.definition import ExperimentConfig


def changed_since_start(database_url: str | None, experiments: Sequence[ExperimentConfig]) -> list[str]:
    """Return a line about each experiment that began with another salt, other arms or another kind.

    database_url: None: the default. Nothing is compared if there is no database yet.
    Raises DatabaseUnavailable.
    """
    store = Store(database_url, service=None)
    if not experiments or not store.is_made:
        return []
    try:
        known = fold(store.log())
    except DatabaseUnavailable:
        if store.incompatible == EMPTY:
            return []
        raise
    finally:
        store.close()
    declared = Declared(tuple(experiments))
    clauses = (changed_identity(begun.config, declared) for begun in known.values())
    return [f"experiments: {clause}" for clause in clauses if clause is not None]
