"""Prometheus metrics by their names, and those of the experiments.

Label values are the config's names and fixed words.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from service.experiments.events import Exposure, ShadowResult

GUARDRAILS = ("error_rate", "p99", "score_shift")

Mode = Literal["livesum", "livemax", "liveall", "livemostrecent"]
Counters = Mapping[str, tuple[str, Sequence[str]]]
"""The text and the labels of each."""
Gauges = Mapping[str, tuple[str, Sequence[str], Mode]]
"""Also how the values of a node's processes become one."""

_COUNTERS: Counters = {
    "exposures_total": (
        "Units exposed, once per replica that remembers them.",
        ["experiment", "arm"],
    ),
    "exposures_written_total": ("Exposures that the database has.", []),
    "exposures_lost_total": ("Exposures that will not reach the database, a retried one each time.", []),
    "experiment_rollbacks_total": (
        "Arms that a guardrail took back to control.",
        ["experiment", "guardrail"],
    ),
    "experiment_fallbacks_total": (
        "Requests that an arm's variant failed and the control's answered.",
        ["experiment", "arm"],
    ),
    "shadow_requests_total": ("Requests drawn for shadow scoring.", ["experiment", "result"]),
    "shadow_results_lost_total": ("Shadow results not stored.", []),
    "experiment_database_errors_total": ("Calls of the experiments' database that failed.", []),
}
_GAUGES: Gauges = {
    "sample_ratio_p": (
        "Anytime-valid p-value of the sample-ratio check; NaN if there is none, as after a stop.",
        ["experiment"],
        "livemostrecent",
    ),
    "exposure_buffer_rows": (
        "Rows waiting for the database: what a kill of the replicas would lose now.",
        [],
        "livesum",
    ),
}


class Series:
    """Counters and gauges, named without `headroom_`. May be used from any thread."""

    def __init__(self, registry: CollectorRegistry, counters: Counters, gauges: Gauges) -> None:
        self._series: dict[tuple[str, ...], Any] = {}
        self._metrics: dict[str, Any] = {}
        for name, (text, labels) in counters.items():
            self._metrics[name] = Counter(f"headroom_{name}", text, labels, registry=registry)
        for name, (text, labels, mode) in gauges.items():
            self._metrics[name] = Gauge(
                f"headroom_{name}", text, labels, registry=registry, multiprocess_mode=mode
            )

    def of(self, name: str, *labels: str) -> Any:
        """Return the series of a metric with these labels, without the library's checks and lock."""
        key = (name, *labels)
        series = self._series.get(key)
        if series is None:
            metric = self._metrics[name]
            series = self._series[key] = metric.labels(*labels) if labels else metric
        return series

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        self.of(name, *labels).inc(by)

    def show(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        self.of(name, *labels).set(value)


class ExperimentMetrics(Series):
    """Counts what the experiments of one process do.

    Exposures minus written minus lost gives the rows that wait for the database or went with a killed
    replica. The counters outlive a replica in the node's shared directory.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, _COUNTERS, _GAUGES)
        self.tell: Callable[[str], None] = lambda _: None
        """Shows a line to the operator, once per line."""

    def written(self, records: Sequence[Exposure | ShadowResult]) -> None:
        """Count records that are in the database."""
        self.count("exposures_written_total", by=sum(isinstance(record, Exposure) for record in records))

    def lost(self, records: Sequence[Exposure | ShadowResult]) -> None:
        """Count records that will never reach the database: the buffer was full, or the replica ended."""
        exposures = sum(isinstance(record, Exposure) for record in records)
        self.count("exposures_lost_total", by=exposures)
        self.count("shadow_results_lost_total", by=len(records) - exposures)

    def database_failed(self, reason: str) -> None:
        """Count a call of the database that failed, and tell the operator."""
        self.count("experiment_database_errors_total")
        self.tell(f"the experiments' database fails, and outcomes are refused until it works: {reason}")

    def watched(self, experiment: str) -> None:
        """Show the rollbacks of an experiment from its start, at 0.

        Prometheus sees no increase in a series whose first value is already 1.
        """
        for guardrail in GUARDRAILS:
            self.of("experiment_rollbacks_total", experiment, guardrail)
