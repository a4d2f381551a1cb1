"""Shows in the metrics whom each experiment should expose; an alert tells when it exposes nobody."""

from headroom.service.experiments.buckets import BUCKETS
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.state import Standing


class Reach:
    """Sets the gauges of each experiment: the share of units that it should expose, and whether it waits."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._metrics = ledger.metrics
        self._shown: set[str] = set()

    def show(self) -> None:
        """Set the gauges. Those of an experiment that is no longer there become 0."""
        configs = self._ledger.configs
        for config in configs:
            standing = self._ledger.standing(config.name)
            is_pending = not (standing.is_running or standing.is_over)
            self._metrics.set_gauge("experiment_pending", is_pending, config.name)
            self._metrics.set_gauge("experiment_share", share(config, standing), config.name)
            if standing.is_running:  # Prometheus sees no increase if the first value is already 1
                self._metrics.series("experiment_requests_total", config.name)
        names = {config.name for config in configs}
        for gone in self._shown - names:
            self._metrics.set_gauge("experiment_pending", False, gone)
            self._metrics.set_gauge("experiment_share", 0.0, gone)
        self._shown = names


def share(config: ExperimentConfig, standing: Standing) -> float:
    """Return the share of all units that an experiment exposes, by its slots, traffic and arms; 0 to 1."""
    if not standing.is_running:
        return 0.0
    first, end = config.slots
    exposed = sum(config.exposed(standing.traffic, standing.rolled_back).values())
    return (end - first) / BUCKETS * exposed / BUCKETS
