"""Keeps the experiments' database in order: lets early clicks count, and deletes what is too old."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.final_reports import FinalReports
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.retention import DAY_SECONDS, window_text

LOOK_SECONDS = 1.0
"""Between two looks for clicks whose impression has come since, and for a portion to delete."""

DELETE_EVERY = 600
"""The number of looks per search for old rows, once none were left."""


class Upkeep:
    """A replica's part in the upkeep. Replicas may do the same work at once.

    outcome_days: days after an experiment's end that its impressions, clicks and outcomes are kept.
    """

    def __init__(self, ledger: Ledger, outcome_days: float) -> None:
        self._ledger = ledger
        self._kept_days = outcome_days
        self._reports = FinalReports(ledger.store, ledger.metrics.notify_operator, ledger.monotonic)
        self._warned: set[str] = set()
        self._looks_to_deletion = 0

    async def run(self) -> None:
        """Look after the database for as long as the service runs."""
        # Early clicks wait for no report, which may take minutes before rows are deleted.
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._repeat(self.settle))
            loops.create_task(self._repeat(self.delete))

    async def _repeat(self, work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._ledger.store.is_made:
                with suppress(DatabaseUnavailable):  # the ledger, which asks as often, says so
                    await asyncio.to_thread(work)

    def settle(self) -> None:
        """Let early clicks count whose impression has come. Blocks. Raises DatabaseUnavailable."""
        self._warn()
        store = self._ledger.store
        store.settle_early_clicks(store.not_ahead(self._ledger.clock()))

    def delete(self) -> None:
        """Delete a portion of what is too old. Raises DatabaseUnavailable.

        Before an experiment's rows go, its last report is kept. That may block for minutes. Without any
        experiment nothing goes, since a config that has lost them by mistake would end them all.
        """
        if not self._ledger.configs:
            return
        if self._looks_to_deletion == 0:
            ledger = self._ledger
            moment = ledger.store.not_ahead(ledger.clock()) - self._kept_days * DAY_SECONDS
            # In random order, since other replicas make the same reports.
            configs = random.sample(ledger.configs, len(ledger.configs))
            kept = [config.name for config in configs if not self._may_delete(config, moment)]
            is_more = ledger.store.delete_before(moment, kept, ledger.clock())
            self._looks_to_deletion = 1 if is_more else DELETE_EVERY
        self._looks_to_deletion -= 1

    def _may_delete(self, config: ExperimentConfig, moment: float) -> bool:
        """Return whether an experiment's rows from before a moment may go."""
        ledger = self._ledger
        standing = ledger.standing(config.name)
        if not standing.is_over:
            return False
        actions = ledger.history(config.name)
        if standing.deleted is not None or any(action.time >= moment for action in actions):
            return True  # the last report is kept, or there is nothing to delete yet
        return self._reports.keep(config, actions, ledger.clock())

    def _warn(self) -> None:
        """Tell the operator once of each experiment whose clicks count for longer than lists are kept."""
        for config in self._ledger.configs:
            warning = window_text(config, self._kept_days)
            if warning is not None and config.name not in self._warned:
                self._warned.add(config.name)
                self._ledger.metrics.notify_operator(f"the experiment {config.name!r}: {warning}")
