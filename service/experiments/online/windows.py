"""The windows of all arms: counts of this replica's requests in the last seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.fields import seconds
from service.experiments.online.ledger import Ledger
from service.experiments.online.window import Counts, Window

Scores = NDArray[np.float32]


class Windows:
    """Keeps one window per arm of the live config. All windows start anew with each config.

    Not thread-safe: it belongs to the event loop.

    Args:
        ledger: knows the live config.
        monotonic: returns seconds that never go back.
    """

    def __init__(self, ledger: Ledger, monotonic: Callable[[], float]) -> None:
        self._ledger = ledger
        self._monotonic = monotonic
        self._configs: tuple[ExperimentConfig, ...] = ()
        self._windows: dict[tuple[str, str], Window] = {}

    def record(
        self,
        experiment: str,
        arm: str,
        elapsed: float,
        *,
        unit: str = "",
        scores: Callable[[], Scores] | None = None,
        is_error: bool = False,
    ) -> None:
        """Count one request of a unit that took `elapsed` seconds.

        `scores` is called only if a guardrail needs it.
        """
        config = self._ledger.config(experiment)
        if config is None:
            return
        limits = config.guardrails
        windows = self._current()
        window = windows.get((experiment, arm))
        if window is None:
            slow_seconds = None if limits.p99_ms is None else limits.p99_ms / 1000
            window = windows[experiment, arm] = Window(seconds(limits.window), slow_seconds)
        needed = None if scores is None or limits.score_shift is None else scores()
        window.record(self._monotonic(), elapsed, unit=unit, scores=needed, is_error=is_error)

    def forget(self, experiment: str, arm: str) -> None:
        """Drop one arm's window."""
        self._windows.pop((experiment, arm), None)

    def counts(self, experiment: str, arm: str) -> Counts:
        """Return the counts of one arm's window now."""
        window = self._current().get((experiment, arm))
        return Counts() if window is None else window.total(self._monotonic())

    def _current(self) -> dict[tuple[str, str], Window]:
        """Return the windows of the live config; drop those of the last one, whose limits were others."""
        configs = self._ledger.configs
        if configs is not self._configs:
            self._configs, self._windows = configs, {}
        return self._windows
