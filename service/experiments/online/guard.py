"""Watches the guardrails every second, and takes an arm that breaks one back to control."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.events import Action
from service.experiments.online.guardrails import Breach, find_breach
from service.experiments.online.ledger import Ledger
from service.experiments.online.observer import ExperimentObserver
from service.experiments.online.supervisor import Supervisor
from service.experiments.online.windows import Windows
from service.experiments.storage.writer import Writer

logger = logging.getLogger("headroom.experiments")

WATCH_SECONDS = 1.0
GUARDRAIL = "guardrail"


class Guard:
    """Looks at the windows and the sample ratio, and rolls back. On the event loop, as the windows are.

    Args:
        ledger: knows where the experiments stand, and takes the roll-backs.
        windows: counts the arms' requests of the last seconds.
        writer: its buffer's depth is published here, because this loop goes on when the database hangs.
        observer: is told of roll-backs and of the sample ratio.
        monotonic: returns seconds that never go back.
    """

    def __init__(
        self,
        ledger: Ledger,
        windows: Windows,
        writer: Writer,
        observer: ExperimentObserver,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._windows = windows
        self._writer = writer
        self._observer = observer
        self._supervisor = Supervisor(monotonic)
        self._running: set[str] = set()  # the experiments that the last look found running

    async def run(self) -> None:
        """Watch until cancelled. An error is logged, and the next round comes a second later."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            with self._supervisor.supervise("the guardrails"):
                self.watch()
                self._observer.unwritten(self._writer.depth)

    def watch(self) -> None:
        """Look at every experiment once. An error in one does not keep the others from being watched."""
        before, self._running = self._running, set()
        for config in self._ledger.configs:
            with self._supervisor.supervise(f"the guardrails of {config.name}"):
                self._watch(config)
        for started in self._running - before:
            self._observer.watched(started)
        for stopped in before - self._running:
            self._observer.sample_ratio(stopped, math.nan)

    def roll_back(self, experiment: str, breaches: Sequence[Breach]) -> None:
        """Take arms back to control: here at once, elsewhere with the next refresh of each replica."""
        for breach in breaches:
            logger.error(
                "experiment %s: arm %s rolled back (%s): %s",
                experiment,
                breach.arm,
                breach.guardrail,
                breach.detail,
            )
            self._observer.rolled_back(experiment, breach.guardrail)
        now, seen = self._ledger.clock(), len(self._ledger.history(experiment))
        self._ledger.add(
            [
                Action(
                    experiment=experiment,
                    kind="rollback",
                    time=now,
                    actor=GUARDRAIL,
                    arm=breach.arm,
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
        units = self._ledger.sample_ratio(config)
        if units is None:
            self._observer.sample_ratio(config.name, math.nan)
            return []
        p = units.sequential_p
        self._observer.sample_ratio(config.name, p)
        limit = config.guardrails.srm
        if limit is None or p >= limit:
            return []
        detail = (
            f"units {units.counts} do not fit the exposed buckets {units.buckets} "
            f"(p = {p:.2g}; the limit is {limit:g})"
        )
        return [Breach(arm, "srm", detail) for arm in arms]
