"""The reports of running experiments, remembered for a few seconds and shared by all who ask meanwhile."""

import asyncio
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from headroom.service.errors import DatabaseUnavailable, Draining
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.report import Report
from headroom.service.experiments.state import Experiment

logger = logging.getLogger("headroom.experiments")

REPORT_SECONDS = 5.0
"""A report that is younger than this, or than twice the time it took, is returned from the cache."""

ANALYSES = 3
"""Experiments that are analysed at once; the database has connections for these and for the other calls."""


@dataclass(slots=True)
class _Analysis:
    """The last analysis of an experiment, under way or done.

    basis: the experiment that it is computed from. fresh_until: on the ledger's monotonic clock; inf while it
        is under way.
    """

    basis: Experiment
    fresh_until: float = math.inf
    report: asyncio.Future[Report] = field(init=False)


class ReportCache:
    """Makes reports in threads of its own, so that no action or outcome waits for a slow analysis.

    threads: these; other calls that read all rows of an experiment may use them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.threads = ThreadPoolExecutor(ANALYSES, thread_name_prefix="experiment-analysis")
        self._analyses: dict[str, _Analysis] = {}

    def close(self) -> None:
        """End the threads once they have finished their current calls. Who waits gets Draining."""
        for analysis in self._analyses.values():
            analysis.report.cancel()
        self.threads.shutdown(wait=False)

    async def get(self, name: str) -> Report | None:
        """Return a report that is fresh, or that of the analysis under way, which all callers share.

        None before the experiment's start. An analysis goes on if its callers give up, and its report is kept
        for the next one.
        """
        while True:
            basis = self._ledger.experiments.get(name)
            analysis = self._analyses.get(name)
            if analysis is None or analysis.report.done() or analysis.basis == basis:
                break
            await asyncio.wait([analysis.report])
        if basis is None or basis.status == "pending":
            return None
        if analysis is None or analysis.basis != basis or self._ledger.monotonic() >= analysis.fresh_until:
            analysis = _Analysis(basis)
            try:
                loop = asyncio.get_running_loop()
                analysis.report = loop.run_in_executor(self.threads, self._analyse, analysis)
            except RuntimeError as error:  # the threads have been shut down
                raise Draining from error
            self._analyses[name] = analysis
        await asyncio.wait([analysis.report])  # cancelled with its caller, the analysis is not
        if analysis.report.cancelled():
            raise Draining
        return analysis.report.result()

    def _analyse(self, analysis: _Analysis) -> Report:
        """Make a report, in a thread. A defect is logged, in case that nobody waits any more."""
        ledger = self._ledger
        begun = ledger.monotonic()
        fresh_seconds = 0.0
        try:
            report = analyse(ledger.store, analysis.basis, ledger.clock())
            fresh_seconds = max(REPORT_SECONDS, 2 * (ledger.monotonic() - begun))
        except DatabaseUnavailable:
            raise
        except Exception:
            logger.exception("an experiment could not be analysed")
            raise
        finally:
            analysis.fresh_until = begun + fresh_seconds
        return report
