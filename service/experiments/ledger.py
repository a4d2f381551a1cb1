"""The state of the experiments: the actions in the database, and those that are not recorded there yet.

Requests read `standings`, which is replaced as a whole, and never wait for the database. A thread reads the
log of actions every second and records the roll-backs of this replica. While the database is down, the last
standings stay in force. A roll-back counts at once and is recorded later.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import Action, Log
from headroom.service.experiments.state import IDLE, Standing, Standings, check_one_shipped, fold, identity
from headroom.service.experiments.store import Store
from headroom.service.observe.metrics import Metrics

logger = logging.getLogger("headroom.experiments")

Clock = Callable[[], float]
Configs = tuple[ExperimentConfig, ...]

REFRESH_SECONDS = 1.0
COUNTS_EVERY = 5
"""The number of refreshes per count of the exposed units."""


class Ledger:
    """The actions, standings and exposure counts of the live config's experiments.

    store: the database, which is opened with the first config that has an experiment.
    clock: returns Unix seconds. monotonic: returns seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        clock: Clock,
        monotonic: Clock,
    ) -> None:
        self.store = store
        self.metrics = metrics
        self.clock = clock
        self.monotonic = monotonic
        self.configs: Configs = ()
        self.config_version = ""
        self.standings: Standings = {}
        self._exchanging = threading.Lock()  # held while a thread talks to the database
        self._lock = threading.Lock()  # guards what such a thread shares with the event loop
        self._log: Mapping[str, Log] = {}
        self._unrecorded: list[Action] = []
        self._has_unrecorded = asyncio.Event()
        self._unit_counts: Mapping[str, Counter[str]] = {}
        self._refreshes = 0
        self._may_start = True
        self._database_failed = False

    def apply(self, configs: Configs, config_version: str, *, may_start: bool = True) -> None:
        """Put a config's experiments in force. Blocks until the database has said where they stand.

        may_start: whether new experiments start. If not, they are pending until this is called with True.
        If the database is down, the last known state is used. If it refuses one of the experiments, its
        error is raised and nothing changes. Raises ValueError if two of the experiments have shipped.
        """
        with self._exchanging:
            # The experiments of the last config stay in force until all is known about the new ones.
            self._synchronise((*self.configs, *configs), starting=configs if may_start else ())
            self._may_start = may_start
            with self._lock:
                standings = self._folded(configs)
                check_one_shipped(standings)
                self.standings = standings
                self.configs = configs
                self.config_version = config_version

    def refresh(self) -> None:
        """Record the unrecorded actions, and reread the log. Blocks.

        If the database is down, the state stays as it is.
        """
        with self._exchanging:
            self._synchronise(self.configs, starting=self.configs if self._may_start else ())
            self._fold()

    async def follow(self) -> None:
        """Refresh every second, and at once if a roll-back is to be recorded."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._has_unrecorded.wait()
            self._has_unrecorded.clear()
            await asyncio.to_thread(self.refresh)

    def flush(self) -> None:
        """Record the unrecorded actions, so that other replicas learn of a roll-back of the last second."""
        if self._unrecorded:
            self.refresh()

    def close(self) -> None:
        """Close the database. Blocks."""
        with self._exchanging:
            self.store.close()

    def add(self, action: Action) -> None:
        """Put an action in force on this replica now, and have it recorded soon. On the event loop."""
        with self._lock:
            self._unrecorded.append(action)
        self._has_unrecorded.set()
        self._fold()

    def act(self, names: Sequence[str], decide: Callable[[Log], Action]) -> list[Action]:
        """Record what `decide` makes of the experiments' log, put it in force, and return the log. Blocks.

        Raises DatabaseUnavailable and what `decide` raises; then nothing is recorded.
        """
        self.flush()  # so that `decide` knows of a roll-back of the last second
        log = self.store.act(names, decide)
        self.refresh()
        return log

    def config(self, name: str) -> ExperimentConfig | None:
        """Return the experiment of this name in the live config."""
        return next((config for config in self.configs if config.name == name), None)

    def standing(self, name: str) -> Standing:
        """Return where an experiment stands."""
        return self.standings.get(name, IDLE)

    def history(self, name: str) -> list[Action]:
        """Return the actions on an experiment in their order, as far as this replica knows them."""
        with self._lock:
            return self._actions(name)

    def exposures(self, name: str) -> Counter[str]:
        """Return the units exposed so far, by arm."""
        return self._unit_counts.get(name, Counter())

    def _synchronise(self, configs: Sequence[ExperimentConfig], starting: Sequence[ExperimentConfig]) -> None:
        """Exchange what is new with the database. starting: those of the configs that start now if new."""
        if not configs and not self._unrecorded:
            return
        try:
            self._exchange(sorted({config.name for config in configs}), starting)
            if self._database_failed:
                logger.warning("the experiments' database is back")
            self._database_failed = False
        except DatabaseUnavailable as error:
            if not self._database_failed:
                logger.error("the experiments' database is down, the last state stays in force: %s", error)
            self._database_failed = True

    def _exchange(self, names: Sequence[str], starting: Sequence[ExperimentConfig]) -> None:
        self._read(names)
        while self._unrecorded:
            action = self._unrecorded[0]
            self.store.record_action(action)
            self._read(names, recorded=action)
        if self._refreshes % COUNTS_EVERY == 0:
            self._unit_counts = self.store.unit_counts(names)
        self._refreshes += 1
        for config in starting:
            if not any(action.kind == "start" for action in self._log[config.name]):
                start = Action(config.name, "start", self.clock(), "config", detail=identity(config))
                self.store.record_action(start)
                self._read(names)

    def _read(self, names: Sequence[str], recorded: Action | None = None) -> None:
        """Read the log, and drop what it holds from the unrecorded actions in the same step.

        recorded: the action that was just recorded. If the database's answer was lost, the log still has it.
        """
        waiting = {action.experiment for action in self._unrecorded}
        log: dict[str, list[Action]] = {name: [] for name in waiting.union(names)}
        for action in self.store.actions(sorted(log)):
            log[action.experiment].append(action)
        with self._lock:
            self._log = log
            self._unrecorded = [
                action
                for action in self._unrecorded
                if action is not recorded and action not in log.get(action.experiment, ())
            ]

    def _fold(self) -> None:
        with self._lock:
            self.standings = self._folded(self.configs)

    def _folded(self, configs: Sequence[ExperimentConfig]) -> dict[str, Standing]:
        return {config.name: fold(config, self._actions(config.name)) for config in configs}

    def _actions(self, name: str) -> list[Action]:
        unrecorded = (action for action in self._unrecorded if action.experiment == name)
        return [*self._log.get(name, ()), *unrecorded]
