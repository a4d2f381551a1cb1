"""The experiments' Prometheus metrics. Label values are the config's names and fixed words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

GUARDRAILS = ("error_rate", "p99", "score_shift")

RecordKind = Literal["exposure", "shadow"]


class ExperimentMetrics:
    """Counts what the experiments of one process do. May be used from any thread.

    Exposures minus written minus lost gives the rows that wait for the database or went with a killed
    replica. The counters outlive a replica in the node's shared directory.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"headroom_{name}", text, labels, registry=registry)

        self.exposures = counter(
            "exposures_total",
            "Units exposed, once per replica and while it remembers them.",
            "experiment",
            "arm",
        )
        self.exposures_written = counter("exposures_written_total", "Exposures that the database has.")
        self.exposures_lost = counter(
            "exposures_lost_total", "Exposures that will not reach the database, a retried one each time."
        )
        self.rollbacks = counter(
            "experiment_rollbacks_total",
            "Arms that a guardrail took back to control.",
            "experiment",
            "guardrail",
        )
        self.fallbacks = counter(
            "experiment_fallbacks_total",
            "Requests that an arm's variant failed and the control's answered.",
            "experiment",
            "arm",
        )
        self.shadow = counter(
            "shadow_requests_total", "Requests drawn for shadow scoring.", "experiment", "result"
        )
        self.shadow_lost = counter("shadow_results_lost_total", "Shadow results not stored.")
        self.database_errors = counter(
            "experiment_database_errors_total", "Calls of the experiments' database that failed."
        )
        self.sample_ratio = Gauge(
            "headroom_sample_ratio_p",
            "Anytime-valid p-value of the sample-ratio check; NaN if there is none, as after a stop.",
            ["experiment"],
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self.unwritten = Gauge(
            "headroom_exposure_buffer_rows",
            "Rows waiting for the database: what a kill of the replicas would lose now.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.state = Gauge(
            "headroom_experiment_state_version",
            "The last action on any experiment that a replica knows.",
            registry=registry,
            multiprocess_mode="liveall",
        )
        self.tell: Callable[[str], None] = lambda _: None
        """Shows a line to the operator, once per line."""

    def written(self, kind: RecordKind, count: int) -> None:
        """Count records that are in the database."""
        if kind == "exposure":
            self.exposures_written.inc(count)

    def lost(self, kind: RecordKind, count: int) -> None:
        """Count records that will never reach the database: the buffer was full, or the replica ended."""
        (self.exposures_lost if kind == "exposure" else self.shadow_lost).inc(count)

    def database_failed(self, reason: str) -> None:
        """Count a call of the database that failed, and tell the operator."""
        self.database_errors.inc()
        self.tell(f"the experiments' database fails, and outcomes are refused until it works: {reason}")

    def watched(self, experiment: str) -> None:
        """Show the rollbacks of an experiment from its start, at 0.

        Prometheus sees no increase in a series whose first value is already 1.
        """
        for guardrail in GUARDRAILS:
            self.rollbacks.labels(experiment, guardrail)
