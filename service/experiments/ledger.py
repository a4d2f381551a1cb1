"""A replica's copy of the log: what is in force here, and the rows that the database does not have yet.

Requests read `assigner`, which is replaced as a whole, and never wait for the database. A thread reads new
rows every second. While the database is down, the last state stays in force, and what this replica has to add
waits: a config, or a guardrail's rollback. Both count here at once, and the log gets them with this time.
Until it has read the log, a replica assigns nobody, so a config that waits for that is dated by the reading.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import rules
from headroom.service.experiments.assignment import Assigner
from headroom.service.experiments.log import EMPTY, Declared, Entry, World, lacks_variant, replay
from headroom.service.experiments.state import Experiment, Experiments
from headroom.service.experiments.store import Store
from headroom.service.observe.metrics import Metrics

logger = logging.getLogger("headroom.experiments")

Clock = Callable[[], float]

REFRESH_SECONDS = 1.0
COUNTS_EVERY = 5
"""The number of refreshes per count of the exposed units."""


class Ledger:
    """The config and the experiments in force on one replica.

    store: the database. A SQLite file is made with the first experiment.
    clock: returns Unix seconds. monotonic: returns seconds that never go back.
    declared: by the replica's config. config_version: of it; "" before the first.
    experiments: by name, those of the config, which are pending until the log has them, then others of the
        log. Replaced as a whole. assigner: of those whose arms requests may get.
    is_down: whether the database failed when it was last asked.
    """

    def __init__(self, store: Store, metrics: Metrics, *, clock: Clock, monotonic: Clock) -> None:
        self.store = store
        self.metrics = metrics
        self.clock = clock
        self.monotonic = monotonic
        self.declared = Declared()
        self.config_version = ""
        self.experiments: Experiments = {}
        self.assigner = Assigner()
        self._world = EMPTY  # what the database's log says
        self._has_read = False  # the log, at least once
        self._waiting: list[Entry] = []  # rows that the database does not have yet
        self._exchanging = threading.Lock()  # held while a thread talks to the database
        self._lock = threading.Lock()  # guards what such a thread shares with the event loop
        self._has_rollback = asyncio.Event()
        self._unit_counts: Mapping[str, Counter[str]] = {}
        self._refreshes = 0
        self.is_down = False

    def apply(self, declared: Declared, config_version: str, *, may_start: bool = True) -> None:
        """Put a config in force. Blocks until the log has it.

        may_start: whether every replica has it, so that it may be added to the log. If not, this is called
            again with True.
        If the database is down, the row waits. If it refuses the row, its error is raised and nothing
        changes. Raises ValueError for experiments that the log does not allow.
        """
        with self._exchanging:
            if declared.experiments or self._knows_any():
                self._exchange()
            self.check(declared, config_version)
            if may_start and (declared.experiments or self.store.is_made):
                self._add_config(self._config_entry(declared, config_version))
            with self._lock:
                self.declared = declared
                self.config_version = config_version
            self._renew()

    def check(self, declared: Declared, config_version: str) -> None:
        """Raise ValueError if a config cannot be put in force, as `rules.check_edit` says."""
        with self._lock:
            world = self._world_here()
        entry = self._config_entry(declared, config_version)
        rules.check_edit(world, entry, is_start=not self.config_version)

    def refresh(self) -> None:
        """Read the new rows of the log, and add those that wait. Blocks.

        If the database is down, the state stays as it is.
        """
        with self._exchanging:
            if self._waiting or self._knows_any():
                self._exchange()

    async def follow(self) -> None:
        """Refresh every second, and at once if a roll-back is to be added."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._has_rollback.wait()
            self._has_rollback.clear()
            await asyncio.to_thread(self.refresh)

    def flush(self) -> None:
        """Add the rows that wait, so that other replicas learn of a roll-back of the last second."""
        if self._waiting:
            self.refresh()

    def close(self) -> None:
        """Close the database. Blocks."""
        with self._exchanging:
            self.store.close()

    def roll_back(self, entry: Entry) -> None:
        """Put a guardrail's roll-back in force on this replica now, and have it added. On the event loop.

        Replicas judge the same requests, so several may roll an arm back at once. Each logs what it decided;
        the one whose row is added counts it.
        """
        logger.error(
            "experiment %s: arm %s rolled back (%s): %s",
            entry.experiment,
            entry.arm,
            entry.reason,
            entry.detail,
        )
        with self._lock:
            self._waiting.append(entry)
        self._has_rollback.set()
        self._renew()

    def act(self, decide: Callable[[World], Entry | None]) -> World:
        """Add the row that `decide` makes of the log, put it in force, and return what the log then says.

        Blocks. Raises DatabaseUnavailable and what `decide` raises; then, or if it returns None, nothing is
        added.
        """
        self.flush()  # so that `decide` knows of a roll-back of the last second
        with self._exchanging:
            world = self._append(decide)
            self._renew()
        return world

    def exposures(self, name: str) -> Counter[str]:
        """Return the units exposed so far, by arm."""
        return self._unit_counts.get(name, Counter())

    def _knows_any(self) -> bool:
        """Return whether there may be a log: a SQLite file is not made for a config without experiments."""
        return bool(self.declared.experiments) or self.store.is_made

    def _world_here(self) -> World:
        """Return what the log says, and what waits once the log has been read."""
        return replay(self._world, self._waiting if self._has_read else ())

    def _config_entry(self, declared: Declared, config_version: str) -> Entry:
        """Return the row of a config."""
        return Entry("config", self._now(), config_version=config_version, declared=declared)

    def _now(self) -> float:
        """Return the time of a row, which comes after the config in force whatever this clock says."""
        return max([self.clock(), self._world.config.time, *(entry.time for entry in self._waiting)])

    def _exchange(self) -> None:
        """Read the log, put it in force, and add what waits. Tells when the database goes and comes back."""
        try:
            self.store.check()
            self._read()
            if not self._has_read:
                self._begin()
            while self._waiting:
                self._add(self._waiting[0])
                with self._lock:
                    self._waiting = self._waiting[1:]
            if self._refreshes % COUNTS_EVERY == 0:
                self._unit_counts = self.store.unit_counts(list(self._world.experiments))
            self._refreshes += 1
            if self.is_down:
                logger.warning("the experiments' database is back")
            self.is_down = False
        except DatabaseUnavailable as error:
            self._fail(error)
        self._renew()

    def _begin(self) -> None:
        """Begin to assign units: by what waits, too, which is in force from now on, unless the log has a
        later config."""
        now = self._now()
        with self._lock:
            needed = [entry for entry in self._waiting if _is_needed(entry, self._world)]
            self._waiting = [replace(entry, time=now) for entry in needed]
            self._has_read = True

    def _fail(self, error: DatabaseUnavailable) -> None:
        if not self.is_down:
            logger.error(
                "the experiments' database is down; the last state stays in force, and guardrails judge "
                "each replica's requests alone: %s",
                error,
            )
        self.is_down = True

    def _read(self) -> None:
        """Read the rows that are new. All of them once the log is another one, as after a restore."""
        last = self.store.last_number()
        if last < self._world.number:
            self._follow_rows(EMPTY, self.store.log())
        elif last > self._world.number:
            self._follow_rows(self._world, self.store.log(self._world.number))

    def _add_config(self, entry: Entry) -> None:
        """Add a config's row, or have it wait if the database is down."""
        if not self.is_down:
            try:
                self._add(entry)
                return
            except DatabaseUnavailable as error:
                self._fail(error)
        with self._lock:
            if not self._has_read:  # nobody got an arm by an earlier config
                self._waiting.clear()
            self._waiting.append(entry)

    def _add(self, entry: Entry) -> None:
        """Add a row, unless the log has what it says."""
        is_new = False

        def decide(world: World) -> Entry | None:
            nonlocal is_new
            is_new = _is_needed(entry, world)
            return entry if is_new else None

        self._append(decide)
        if is_new and entry.kind == "rollback":
            self.metrics.count("experiment_rollbacks_total", entry.experiment, entry.reason)

    def _append(self, decide: Callable[[World], Entry | None]) -> World:
        known = self._world
        entries = self.store.append(lambda new: decide(replay(known, new)), known.number)
        self._follow_rows(known, entries)
        return self._world

    def _follow_rows(self, before: World, entries: Sequence[Entry]) -> None:
        """Take new rows over, and tell the operator what does not run because of the config in force."""
        with self._lock:
            self._world = replay(before, entries)
        for name, experiment in self._world.experiments.items():
            known = before.experiments.get(name)
            if known is None or experiment.paused in (None, known.paused):
                continue
            if experiment.status in ("paused", "shipped"):
                sentence = (
                    f"the experiment {name!r} is paused, and its units get the default: {experiment.paused}; "
                    f"change the config, or stop {name!r}"
                )
            elif self._world.declared.find(name) is not None:
                sentence = f"an experiment of the config does not run: {experiment.paused}"
            else:
                continue  # it is over, and the config lacks it
            logger.warning("%s", sentence)
            self.metrics.notify_operator(sentence)

    def _renew(self) -> None:
        """Put what the log and this replica's config say in force."""
        with self._lock:
            world = self._world_here()
            declared = {config.name: world.find(config) for config in self.declared.experiments}
            experiments = {**declared, **world.experiments}
            assigned = tuple(
                each
                for name, each in experiments.items()
                if name in declared or (each.source == "http" and self._runs_here(each))
            )
            self.experiments = experiments
            self.assigner = Assigner(assigned)

    def _runs_here(self, experiment: Experiment) -> bool:
        """Return whether an experiment of no file assigns units on this replica, which may not have its
        variants yet: the log's config may be newer, or was refused here."""
        if experiment.is_over and experiment.everybody_gets is None:
            return False
        return lacks_variant(experiment, self.declared.variants) is None


def _is_needed(entry: Entry, world: World) -> bool:
    """Return whether a row says what the log does not.

    A config is not needed if a later one has come, or if neither it nor the log has an experiment.
    """
    if entry.kind == "rollback":
        experiment = world.experiments.get(entry.experiment)
        return experiment is not None and entry.arm not in experiment.rolled_back
    has_any = bool(world.experiments) or (entry.declared is not None and bool(entry.declared.experiments))
    is_new = world.config.config_version != entry.config_version and world.config.time <= entry.time
    return has_any and is_new
