"""Keeps the report of an experiment that is over, and deletes its facts `outcome_days` after its end.

Only an experiment that the log has as over loses anything, and its row in the log comes first. Until then
nothing is deleted, because a report of a part of the facts would be wrong: a unit whose outcomes are gone
looks as if it had none, and the intervals of a sliding window do not hold at any time.
"""

import asyncio
import logging
import math
import random
from contextlib import suppress

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.database import reason_of
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.store import FinalReport

logger = logging.getLogger("headroom.experiments")

DAY_SECONDS = 86_400

LOOK_SECONDS = 1.0
"""Between two looks, each of which keeps reports or deletes a portion."""

SEARCH_SECONDS = 60.0
"""Between two looks once nothing was left."""

RETRY_SECONDS = 600.0
"""Between two tries to make a report."""


class Retention:
    """A replica's part in this. Replicas may do the same work at once.

    outcome_days: days after an experiment's end that its lists, clicks and outcomes are kept.
    """

    def __init__(self, ledger: Ledger, outcome_days: float) -> None:
        self._ledger = ledger
        self._kept_days = outcome_days
        self._next_try: dict[str, float] = {}  # of a report that could not be made, on the monotonic clock

    async def run(self) -> None:
        """Look after the database for as long as the service runs."""
        is_more = True
        while True:
            await asyncio.sleep(LOOK_SECONDS if is_more else SEARCH_SECONDS)
            is_more = True
            if self._ledger.store.is_made:
                with suppress(DatabaseUnavailable):  # the ledger, which asks as often, says so
                    is_more = await asyncio.to_thread(self.look)

    def look(self) -> bool:
        """Keep the reports of experiments that are over, and delete a portion of what is too old.

        Return whether there may be more to delete. Blocks, at millions of units for minutes. Raises
        DatabaseUnavailable.
        """
        is_more = False
        experiments = list(self._ledger.experiments.values())
        over = [each for each in experiments if each.over_since is not None]
        now = self._ledger.store.not_ahead(self._ledger.clock())
        # In random order, since other replicas make the same reports.
        for experiment in random.sample(over, len(over)):
            is_more = self._look_after(experiment, now) or is_more
        return is_more

    def _look_after(self, experiment: Experiment, now: float) -> bool:
        """Return whether there may be more to delete of an experiment that is over."""
        name = experiment.begun.name
        store = self._ledger.store
        if experiment.deleted is not None:
            return store.delete_facts(name)
        assert experiment.over_since is not None
        seconds = self._kept_days * DAY_SECONDS
        is_due = now - experiment.over_since > seconds
        kept = store.final_report(name)
        if not is_due and kept is not None and kept.time >= experiment.over_since:
            return False
        report = self._make_report(experiment)
        if report is None:
            return False
        if is_due:  # a report from before the last outcome would not do
            self._ledger.add_deletion(report, seconds, now)
        else:
            store.keep_final_report(report)
        return is_due

    def _make_report(self, experiment: Experiment) -> FinalReport | None:
        """Return the report as of now. None if it cannot be made, or could not be a while ago."""
        name = experiment.begun.name
        ledger = self._ledger
        if ledger.monotonic() < self._next_try.get(name, -math.inf):
            return None
        try:
            report = analyse(ledger.store, experiment, ledger.clock(), {})
        except DatabaseUnavailable:
            raise
        except Exception as error:
            self._next_try[name] = ledger.monotonic() + RETRY_SECONDS
            logger.warning("the last report of experiment %s could not be made", name, exc_info=error)
            ledger.metrics.notify_operator(
                f"the last report of the experiment {name!r} could not be made, so its outcomes stay: "
                f"{reason_of(error)}"
            )
            return None
        return FinalReport(name, report.as_json(), report.time)
