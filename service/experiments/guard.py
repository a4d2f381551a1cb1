"""Watches the guardrails every second, and takes an arm that breaks one back to control."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action
from service.experiments.guardrails import Breach, find_breach
from service.experiments.ledger import Ledger, Supervisor
from service.experiments.windows import ArmWindows

logger = logging.getLogger("headroom.experiments")

WATCH_SECONDS = 1.0


class Guard:
    """Looks at the windows and the sample ratio, and rolls back. On the event loop, as the windows are."""

    def __init__(self, ledger: Ledger, windows: ArmWindows) -> None:
        self._ledger = ledger
        self._windows = windows
        self._metrics = ledger.metrics
        self._supervisor = Supervisor(ledger.monotonic)
        self._running: set[str] = set()  # the experiments that the last look found running

    async def run(self) -> None:
        """Watch until cancelled. An error is logged, and the next round comes a second later."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            with self._supervisor.supervise("the guardrails"):
                self.watch()

    def watch(self) -> None:
        """Look at every experiment once. An error in one does not keep the others from being watched."""
        before, self._running = self._running, set()
        for config in self._ledger.configs:
            with self._supervisor.supervise(f"the guardrails of {config.name}"):
                self._watch(config)
        for started in self._running - before:
            self._metrics.watched(started)
        for stopped in before - self._running:
            self._metrics.sample_ratio.labels(stopped).set(math.nan)

    def roll_back(self, experiment: str, breaches: Sequence[Breach]) -> None:
        """Take arms back to control: here at once, elsewhere with the next refresh of each replica."""
        for breach in breaches:
            what = (experiment, breach.arm, breach.guardrail, breach.detail)
            logger.error("experiment %s: arm %s rolled back (%s): %s", *what)
            self._metrics.rollbacks.labels(experiment, breach.guardrail).inc()
        now, seen = self._ledger.clock(), len(self._ledger.history(experiment))
        self._ledger.add(
            [
                Action(
                    experiment,
                    "rollback",
                    now,
                    "guardrail",
                    breach.arm,
                    reason=breach.guardrail,
                    detail=breach.detail,
                    seen=seen,
                )
                for breach in breaches
            ]
        )

    def _watch(self, config: ExperimentConfig) -> None:
        standing = self._ledger.standing(config.name)
        for arm in standing.rolled_back:  # so that a reinstated arm is not judged by what it did before
            self._windows.forget(config.name, arm)
        if not standing.is_running:
            return
        self._running.add(config.name)
        control = self._windows.counts(config.name, config.control)
        arms = [arm for arm in config.treatments if arm not in standing.rolled_back]
        by_arm = [
            find_breach(arm, self._windows.counts(config.name, arm), control, config.guardrails)
            for arm in arms
        ]
        breaches = [breach for breach in by_arm if breach is not None]
        breaches = breaches or self._sample_ratio_breaches(config, arms)
        if breaches:
            self.roll_back(config.name, breaches)

    def _sample_ratio_breaches(self, config: ExperimentConfig, arms: Sequence[str]) -> list[Breach]:
        """Return a breach of each of these arms if the arms do not have the units they should."""
        ratio = self._ledger.sample_ratio(config)
        shown = math.nan if ratio is None else ratio.sequential_p
        self._metrics.sample_ratio.labels(config.name).set(shown)
        if ratio is None:
            return []
        p, limit = ratio.sequential_p, config.guardrails.srm
        if limit is None or p >= limit:
            return []
        detail = (
            f"units {dict(ratio.units)} do not fit the exposed buckets "
            f"{config.exposed(ratio.traffic)} (p = {p:.2g}; the limit is {limit:g})"
        )
        return [Breach(arm, "srm", detail) for arm in arms]
