"""The reports of running experiments, remembered for a few seconds and shared by all who ask meanwhile."""

import asyncio
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from headroom.service.errors import DatabaseUnavailable, Draining
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.report import Look, Report
from headroom.service.experiments.state import Experiment
from headroom.service.off_loop import in_thread

logger = logging.getLogger("headroom.experiments")

REPORT_SECONDS = 5.0
"""A report that is younger than this, or than twice the time it took, is returned from the cache."""

LOOKS_SECONDS = 5.0
"""How long one report computes past looks; the next one goes on."""

ANALYSES = 3
"""Experiments that are analysed at once; the database has connections for these and for the other calls."""


@dataclass(slots=True)
class _Analysis:
    """The analyses of one experiment that are remembered.

    report: the last one, fresh until `fresh_until` on the ledger's monotonic clock. basis: the experiment
    that it and the looks are computed from. task: the analysis under way.
    """

    basis: Experiment
    report: Report | None = None
    fresh_until: float = -math.inf
    looks: dict[float, Look] = field(default_factory=dict)
    task: asyncio.Task[Report] | None = None

    def end(self, task: asyncio.Task[Report]) -> None:
        """Keep the report of a task that is done. Its error is logged, in case that nobody waits any more."""
        self.task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.report = task.result()
        elif not isinstance(error, DatabaseUnavailable):
            logger.error("an experiment could not be analysed", exc_info=error)


class ReportCache:
    """Makes reports in threads of its own, so that no action or outcome waits for a slow analysis.

    threads: these; other calls that read all rows of an experiment may use them.
    """

    def __init__(self, ledger: Ledger, kept_days: float) -> None:
        self._ledger = ledger
        self._kept_days = kept_days
        self.threads = ThreadPoolExecutor(ANALYSES, thread_name_prefix="experiment-analysis")
        self._analyses: dict[str, _Analysis] = {}

    def close(self) -> None:
        """End the analyses, and the threads once they have finished their current calls."""
        for analysis in self._analyses.values():
            if analysis.task is not None:
                analysis.task.cancel()
        self.threads.shutdown(wait=False)

    async def get(self, name: str) -> Report | None:
        """Return a report that is fresh, or that of the analysis under way, which all callers share.

        None before the experiment's start. An analysis goes on if its callers give up, and its report is kept
        for the next one.
        """
        ledger = self._ledger
        while True:
            basis = ledger.experiments.get(name)
            analysis = self._analyses.get(name)
            if analysis is None or analysis.task is None or analysis.basis == basis:
                break
            await asyncio.wait([analysis.task])
        if basis is None or basis.status == "pending":
            return None
        if analysis is None or analysis.basis != basis:
            analysis = _Analysis(basis)
            self._analyses[name] = analysis
        if analysis.report is not None and ledger.monotonic() < analysis.fresh_until:
            return analysis.report
        if analysis.task is None:
            analysis.task = asyncio.create_task(self._analyse(basis, analysis))
            analysis.task.add_done_callback(analysis.end)
        task = analysis.task
        await asyncio.wait([task])  # cancelled with its caller, the task is not
        if task.cancelled():
            raise Draining
        return task.result()

    async def _analyse(self, experiment: Experiment, analysis: _Analysis) -> Report:
        ledger = self._ledger
        begun = ledger.monotonic()
        now = ledger.clock()
        report = await in_thread(
            self.threads,
            lambda: analyse(
                ledger.store,
                experiment,
                now,
                analysis.looks,
                kept_days=self._kept_days,
                looks_seconds=LOOKS_SECONDS,
            ),
        )
        seconds = ledger.monotonic() - begun
        analysis.fresh_until = begun + max(REPORT_SECONDS, 2 * seconds)
        return report
