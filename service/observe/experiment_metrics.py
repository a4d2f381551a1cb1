"""The experiments' Prometheus metrics. Label values are the config's names and fixed words."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from service.experiments.online.guardrails import GUARDRAILS
from service.experiments.online.observer import ExperimentObserver, ShadowFate
from service.experiments.storage.writer import RecordKind


class ExperimentMetrics(ExperimentObserver):
    """Counts what the experiments of one process report.

    Exposures minus written minus lost gives the rows that wait for the database or went with a killed
    replica. The counters outlive a replica in the node's shared directory.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"headroom_{name}", text, labels, registry=registry)

        self._exposures = counter(
            "exposures_total",
            "Units exposed, once per replica and while it remembers them.",
            "experiment",
            "arm",
        )
        self._exposures_lost = counter(
            "exposures_lost_total", "Exposures that will not reach the database, a retried one each time."
        )
        self._exposures_written = counter("exposures_written_total", "Exposures that the database has.")
        self._rollbacks = counter(
            "experiment_rollbacks_total",
            "Arms that a guardrail took back to control.",
            "experiment",
            "guardrail",
        )
        self._fallbacks = counter(
            "experiment_fallbacks_total",
            "Requests that an arm's variant failed and the control's answered.",
            "experiment",
            "arm",
        )
        self._shadow = counter(
            "shadow_requests_total", "Requests drawn for shadow scoring.", "experiment", "result"
        )
        self._shadow_lost = counter("shadow_results_lost_total", "Shadow results not stored.")
        self._database_errors = counter(
            "experiment_database_errors_total", "Calls of the experiments' database that failed."
        )
        self.tell: Callable[[str], None] = lambda _: None
        """Shows a line to the operator, once per line."""
        self._sample_ratio = Gauge(
            "headroom_sample_ratio_p",
            "Anytime-valid p-value of the sample-ratio check; NaN if there is none, as after a stop.",
            ["experiment"],
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._unwritten = Gauge(
            "headroom_exposure_buffer_rows",
            "Rows waiting for the database: what a kill of the replicas would lose now.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._state = Gauge(
            "headroom_experiment_state_version",
            "The last action on any experiment that a replica knows.",
            registry=registry,
            multiprocess_mode="liveall",
        )

    def exposed(self, experiment: str, arm: str) -> None:
        self._exposures.labels(experiment, arm).inc()

    def lost(self, kind: RecordKind, count: int) -> None:
        (self._exposures_lost if kind == "exposure" else self._shadow_lost).inc(count)

    def written(self, kind: RecordKind, count: int) -> None:
        if kind == "exposure":
            self._exposures_written.inc(count)

    def unwritten(self, count: int) -> None:
        self._unwritten.set(count)

    def database_failed(self, reason: str) -> None:
        self._database_errors.inc()
        self.tell(f"the experiments' database fails, and outcomes are refused until it works: {reason}")

    def watched(self, experiment: str) -> None:
        # Exists from the start, at 0: Prometheus sees no increase in a series whose first value is already 1.
        for guardrail in GUARDRAILS:
            self._rollbacks.labels(experiment, guardrail)

    def rolled_back(self, experiment: str, guardrail: str) -> None:
        self._rollbacks.labels(experiment, guardrail).inc()

    def fell_back(self, experiment: str, arm: str) -> None:
        self._fallbacks.labels(experiment, arm).inc()

    def sample_ratio(self, experiment: str, p: float) -> None:
        self._sample_ratio.labels(experiment).set(p)

    def shadowed(self, experiment: str, fate: ShadowFate) -> None:
        self._shadow.labels(experiment, fate).inc()

    def state(self, version: int) -> None:
        self._state.set(version)
