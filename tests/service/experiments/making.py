"""Makes what the tests of experiments start from: configs, logs, metrics, moments."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from headroom.service.experiments.buckets import BUCKETS
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.estimates import Moments
from headroom.service.experiments.events import Click, Exposure, Outcome, OutcomeReceipt, ShadowResult
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.log import Declared, Entry, EntryKind, fold
from headroom.service.experiments.measure import Comparison, measure, read_facts
from headroom.service.experiments.outcomes import record
from headroom.service.experiments.state import Experiment, Period
from headroom.service.experiments.store import Store
from headroom.service.observe.metrics import Metrics

ALWAYS = Comparison(("control", "pruned"), (Period(-math.inf, {"control": BUCKETS, "pruned": BUCKETS}),))
"""A comparison of two arms that run all the time."""


def experiment(*arms: str, **more: Any) -> ExperimentConfig:
    """An experiment between these arms, or control and pruned."""
    named = [{"name": arm, "variant": arm} for arm in arms or ("control", "pruned")]
    return ExperimentConfig.model_validate({"name": "prune20", "salt": "s", "arms": named, **more})


def declares(*configs: ExperimentConfig, time: float = 0.0, version: str | None = None) -> Entry:
    """The row of a config with these experiments, as an edit or a start adds it to the log."""
    return Entry("config", time, config_version=version or repr(configs), declared=Declared(configs))


def act(kind: EntryKind, time: float, experiment: str = "prune20", **more: Any) -> Entry:
    """The row of an action."""
    return Entry(kind, time, actor="boss", experiment=experiment, **more)


def logged(config: ExperimentConfig, *entries: Entry, time: float = 0.0) -> Experiment:
    """The experiment that a config declares at a time, after further rows."""
    return fold([declares(config, time=time), *entries])[config.name]


def run(config: ExperimentConfig, traffic: float = 1.0, **more: Any) -> Experiment:
    """The experiment while it runs."""
    return Experiment(config, started=0.0, ramped=traffic, **more)


def in_log(store: Store, name: str = "prune20") -> Experiment:
    """The experiment as the log in a database has it."""
    return fold(store.log())[name]


def send(
    store: Store, rows: Sequence[Outcome | Click], configs: Sequence[ExperimentConfig]
) -> OutcomeReceipt:
    """Record outcomes and clicks of these experiments."""
    receipt, _ = record(store, rows, configs)
    return receipt


def measured(
    store: Store, config: ExperimentConfig, metric: Metric, now: float, during: Comparison = ALWAYS
) -> dict[str, Moments]:
    """The moments of both arms' units."""
    with store.read_all() as db:
        declared = config.model_copy(update={"metrics": [metric]})
        return measure(read_facts(db, run(declared)), metric, during, now)


def exposure(unit: str, arm: str = "control", *, time: float = 100.0) -> Exposure:
    return Exposure("prune20", unit, arm, bucket=7, time=time, config_version="abc")


def shadowed(
    mean_delta: float,
    mean_abs_delta: float = 0.1,
    *,
    experiment: str = "prune20",
    time: float = 1.0,
    **more: Any,
) -> ShadowResult:
    """A request whose scores under `pruned` differ from those under control by so much."""
    return ShadowResult(experiment, "pruned", time, mean_delta, mean_abs_delta, **more)


def live_of(store: Store, **more: Any) -> LiveExperiments:
    """A replica's share in the experiments."""
    return LiveExperiments(store, Metrics(), **more)


def moments_of(value: ArrayLike, denominator: ArrayLike = 0.0, covariate: ArrayLike = 0.0) -> Moments:
    """Return the moments of arrays whose last axis is the units."""
    columns = (np.asarray(part, np.float64) for part in (value, denominator, covariate))
    rows = np.stack(np.broadcast_arrays(*columns), -1)  # (..., units, 3)
    mean = rows.sum(-2) / max(rows.shape[-2], 1)
    deviations = rows - mean[..., None, :]
    scatter = np.einsum("...ui,...uj->...ij", deviations, deviations)
    return Moments(np.full(rows.shape[:-2], float(rows.shape[-2])), mean, scatter)


NOBODY = moments_of(np.zeros(0))


def assert_alike(found: Moments, expected: Moments) -> None:
    assert found.units == expected.units
    assert found.mean == pytest.approx(expected.mean, rel=1e-12)
    assert found.scatter == pytest.approx(expected.scatter, rel=1e-9)


def at_once(*work: Callable[[], object]) -> None:
    """Run all at the same time and fail if one does."""
    failures: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
