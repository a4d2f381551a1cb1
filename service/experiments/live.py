"""The experiments of a running replica, put together from a router, a guard and a ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from service.experiments.assignment import Assigner
from service.experiments.guard import Guard
from service.experiments.ledger import Ledger
from service.experiments.metrics import ExperimentMetrics
from service.experiments.router import Router
from service.experiments.state import identity
from service.experiments.store import Store
from service.experiments.windows import Windows
from service.experiments.writer import Writer


class LiveExperiments:
    """One replica's share in the experiments.

    router: assigns requests and logs their results. guard: watches the guardrails. ledger: knows where
    the experiments stand.

    store: opened with the first config that has an experiment.
    retention_days: older exposures and outcomes of experiments that have left the config are deleted, and
        older shadow results; None keeps them for ever.
    clock: returns Unix seconds. monotonic: returns seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        metrics: ExperimentMetrics,
        *,
        retention_days: float | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = metrics
        store.on_failure = metrics.database_failed
        self.ledger = Ledger(store, metrics, clock=clock, monotonic=monotonic)
        self.writer = Writer(
            store,
            metrics,
            retention_days=retention_days,
            running=lambda: [config.name for config in self.ledger.configs],
        )
        self.windows = Windows(self.ledger, monotonic)
        self.router = Router(self.ledger, self.windows, self.writer, metrics, monotonic=monotonic)
        self.guard = Guard(self.ledger, self.windows, self.writer, metrics, monotonic=monotonic)
        self._writes = False
        self._tasks: list[asyncio.Task[None]] = []

    def check(self, assigner: Assigner) -> None:
        """Raise ValueError if a config would move the units of an experiment that has begun."""
        current = {config.name: config for config in self.ledger.configs}
        for number, config in enumerate(assigner.experiments):
            before = current.get(config.name)
            if before is None or self.ledger.standing(config.name).started is None:
                continue
            if identity(before) != identity(config):
                raise ValueError(
                    f"experiments[{number}]: {config.name!r} has begun, so its salt and arms must stay as "
                    "they are; give the changed experiment another name and salt"
                )

    def apply(self, assigner: Assigner, config_version: str, *, begin: bool = True) -> None:
        """Put a config in force, as `Ledger.apply` says. Blocks."""
        self.ledger.apply(assigner.experiments, config_version, begin=begin)
        if assigner.experiments and not self._writes:
            self.writer.start()
            self._writes = True

    def start(self) -> None:
        """Begin to follow the database and to watch the guardrails, on the running event loop."""
        # Two tasks: a database that hangs must not keep the guardrails from being watched.
        self._tasks = [asyncio.create_task(work) for work in (self.ledger.follow(), self.guard.run())]

    @property
    def failure(self) -> str | None:
        """Why the experiments cannot go on; None while they do."""
        return "the experiments' guardrails stopped" if any(task.done() for task in self._tasks) else None

    async def close(self, timeout_s: float) -> None:
        """Stop, and store the buffered records within the timeout."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.ledger.flush)
        if self._writes:
            await asyncio.to_thread(self.writer.close, timeout_s)
            self.metrics.unwritten.set(0)
        await asyncio.to_thread(self.ledger.close)
