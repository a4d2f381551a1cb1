"""What an analysis needs to know of an experiment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.events import Action
from service.experiments.definition.metric import Metric
from service.experiments.definition.state import Run, changed_since_start, fold, runs


@dataclass(frozen=True, slots=True)
class ReportSpec:
    """The description of an experiment that an analysis needs.

    arms: each arm's share of the buckets. alpha: the chance that any interval of a metric is ever wrong, over
    all looks and arms. planned_units: units of all arms together (`headroom experiment plan`).
    rolled_back: arms that get no more units, so that the sample ratio is no longer checked on them.
    runs: the times of the exposed buckets. If they are unknown (None), all units and outcomes count.
    changed: why the units cannot be analysed: the experiment did not begin with this config.
    """

    experiment: str
    control: str
    arms: Mapping[str, float]
    metrics: Sequence[Metric]
    alpha: float = 0.05
    planned_units: int = 10_000
    rolled_back: Collection[str] = ()
    runs: Sequence[Run] | None = None
    changed: str | None = None

    @classmethod
    def of(cls, config: ExperimentConfig, actions: Sequence[Action], now: float) -> ReportSpec:
        """Return the spec of a config and its log at a time, in seconds since the epoch."""
        return cls(
            experiment=config.name,
            control=config.control,
            arms=config.shares,
            metrics=config.metrics,
            alpha=config.alpha,
            planned_units=config.planned_units,
            rolled_back=fold(config, actions, now).rolled_back,
            runs=runs(config, actions, now),
            changed=changed_since_start(config, actions),
        )

    @property
    def comparisons(self) -> int:
        """The number of arms that are compared with control."""
        return max(1, len(self.arms) - 1)
