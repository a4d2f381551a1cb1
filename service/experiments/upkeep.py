"""Keeps the experiments' database in order: lets early clicks count, and deletes what is too old."""

import asyncio
from collections import Counter
from contextlib import suppress

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.analysis import complete_report
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.retention import DAY_SECONDS, window_text

SETTLE_SECONDS = 1.0
"""Between two looks for clicks whose impression has come since, and for a portion to delete."""

DELETE_EVERY = 600
"""The number of looks per search for old rows, once none were left."""

REPORT_TRIES = 6
"""How often a last report is tried to be made, DELETE_EVERY looks apart, before rows are deleted without."""


class Upkeep:
    """A replica's part in the upkeep. Replicas may do the same work at once.

    outcome_days: days after an experiment's end that its impressions, clicks and outcomes are kept.
    """

    def __init__(self, ledger: Ledger, outcome_days: float) -> None:
        self._ledger = ledger
        self._kept_days = outcome_days
        self._warned: set[str] = set()
        self._failures: Counter[str] = Counter()
        """By experiment, how often its last report could not be made."""
        self._looks_to_deletion = 0

    async def run(self) -> None:
        """Look after the database for as long as the service runs."""
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            if self._ledger.configs:  # else the database may not be open
                with suppress(DatabaseUnavailable):  # the ledger, which asks as often, says so
                    await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Settle the early clicks, and delete a portion of what is too old. Blocks.

        Raises DatabaseUnavailable.
        """
        ledger = self._ledger
        now = ledger.clock()
        self._warn()
        if any(config.kind == "interleave" for config in ledger.configs):
            ledger.store.settle_early_clicks(now)
        if self._looks_to_deletion == 0:
            moment = now - self._kept_days * DAY_SECONDS
            kept = [config.name for config in ledger.configs if not self._may_delete(config, moment, now)]
            is_more = ledger.store.delete_before(moment, kept, now)
            self._looks_to_deletion = 1 if is_more else DELETE_EVERY
        self._looks_to_deletion -= 1

    def _may_delete(self, config: ExperimentConfig, moment: float, now: float) -> bool:
        """Return whether an experiment's rows from before a moment may go: it is over, and if it ended before
        that moment, its last report is kept."""
        name = config.name
        standing = self._ledger.standing(name)
        if not standing.is_over:
            return False
        actions = self._ledger.history(name)
        if standing.deleted is not None or any(action.time >= moment for action in actions):
            return True  # all are deleted already, or none will be
        store = self._ledger.store
        try:
            if store.final_report(name) is None:
                store.keep_final_report(name, complete_report(store, config, actions, now).as_json())
        except DatabaseUnavailable as error:
            self._failures[name] += 1
            if self._failures[name] < REPORT_TRIES:
                return False
            self._ledger.metrics.notify_operator(
                f"the experiment {name!r} will have no report once its outcomes are deleted: {error}"
            )
        return True

    def _warn(self) -> None:
        """Tell the operator once of each experiment whose clicks count for longer than lists are kept."""
        for config in self._ledger.configs:
            warning = window_text(config, self._kept_days)
            if warning is not None and config.name not in self._warned:
                self._warned.add(config.name)
                self._ledger.metrics.notify_operator(f"the experiment {config.name!r}: {warning}")
