"""Deletes the facts of an experiment that is over `outcome_days` after its end, and keeps its last report.

Only an experiment that the log has as over loses anything. Its row in the log, which holds the report, comes
first. Until then nothing is deleted, because a report of a part of the facts would be wrong: a unit whose
outcomes are gone looks as if it had none.
"""

import asyncio
import logging
from contextlib import suppress

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import facts
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.database import reason_of
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.log import Entry, World
from headroom.service.experiments.state import Experiment

logger = logging.getLogger("headroom.experiments")

DAY_SECONDS = 86_400

LOOK_SECONDS = 1.0
"""Between two looks, each of which deletes a portion."""

SEARCH_SECONDS = 600.0
"""Between two looks once nothing was left."""


class Retention:
    """A replica's part in this. Replicas may do the same work at once.

    outcome_days: days after an experiment's end that its lists, clicks and outcomes are kept.
    """

    def __init__(self, ledger: Ledger, outcome_days: float) -> None:
        self._ledger = ledger
        self._kept_seconds = outcome_days * DAY_SECONDS

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
        """Delete a portion of what is too old. Return whether there may be more.

        Blocks, at millions of units for minutes. Raises DatabaseUnavailable.
        """
        is_more = False
        store = self._ledger.store
        now = store.not_ahead(self._ledger.clock())
        for experiment in list(self._ledger.experiments.values()):
            if self._is_due(experiment, now):
                is_more = self._end(experiment, now) or is_more
            elif experiment.deleted is not None:
                with store.write_facts() as db:
                    is_more = facts.delete_some(db, experiment.config.name) or is_more
        return self._delete_unmatched() or is_more

    def _delete_unmatched(self) -> bool:
        """Delete a portion of the clicks on no list that only deleted experiments would count."""
        interleaved = [each for each in self._ledger.experiments.values() if each.config.is_interleaved]
        deleted = [each.deleted for each in interleaved if each.deleted is not None]
        if not deleted:
            return False
        # An experiment that this replica does not know yet started after the last deletion that it knows.
        starts = [each.started for each in interleaved if each.deleted is None]
        store = self._ledger.store
        with store.read_all() as db:
            numbers = facts.unmatched_clicks(db, before=min([max(deleted), *starts]))
        if numbers:
            with store.write_facts() as db:
                facts.delete_clicks(db, numbers)
        return bool(numbers)

    def _is_due(self, experiment: Experiment, now: float) -> bool:
        over_since = experiment.over_since
        is_over = over_since is not None and now - over_since > self._kept_seconds
        return is_over and experiment.deleted is None

    def _end(self, experiment: Experiment, now: float) -> bool:
        """Add the row that begins an experiment's deletion. Return False if its report cannot be made."""
        name = experiment.config.name
        ledger = self._ledger
        try:
            report = analyse(ledger.store, experiment, ledger.clock()).as_json()
        except DatabaseUnavailable:
            raise
        except Exception as error:
            logger.warning("the last report of experiment %s could not be made", name, exc_info=error)
            ledger.metrics.notify_operator(
                f"the last report of the experiment {name!r} could not be made, so its outcomes stay: "
                f"{reason_of(error)}"
            )
            return False
        entry = Entry("delete", now, actor="outcome_days", experiment=name, report=report)

        def decide(world: World) -> Entry | None:
            return entry if self._is_due(world.experiments[name], now) else None

        ledger.act(decide)
        return True
