"""A replica's copy of the log: what is in force here, and the rows that the database does not have yet.

Requests read `state`, which is replaced as a whole, and never wait for the database. A thread reads new rows
every second. While the database is down, the last state stays in force, and what this replica has to add
waits: a config with the time of its edit, and a guardrail's rollback, which counts here at once.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import rules
from headroom.service.experiments.assignment import Assigner
from headroom.service.experiments.log import EMPTY, Declared, Entry, World, replay
from headroom.service.experiments.state import Experiment, Experiments
from headroom.service.experiments.store import FinalReport, Store
from headroom.service.observe.metrics import Metrics

logger = logging.getLogger("headroom.experiments")

Clock = Callable[[], float]

REFRESH_SECONDS = 1.0
COUNTS_EVERY = 5
"""The number of refreshes per count of the exposed units."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The experiments as this replica knows them. Replaced as a whole.

    experiments: those of its config, which are pending until the log has them, then others of the log.
    assigner: of those whose arms requests may get.
    """

    experiments: Experiments = field(default_factory=dict)
    assigner: Assigner = field(default_factory=Assigner)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A row that the database does not have yet.

    after: the last row that was known when it was made. is_announced: whether it was logged and counted.
    """

    entry: Entry
    after: int
    is_announced: bool = False


class Ledger:
    """What is in force on one replica.

    store: the database. A SQLite file is made with the first experiment.
    clock: returns Unix seconds. monotonic: returns seconds that never go back.
    declared: by the replica's config. config_version: of it; "" before the first.
    is_down: whether the database failed when it was last asked.
    """

    def __init__(self, store: Store, metrics: Metrics, *, clock: Clock, monotonic: Clock) -> None:
        self.store = store
        self.metrics = metrics
        self.clock = clock
        self.monotonic = monotonic
        self.declared = Declared()
        self.config_version = ""
        self.in_force = InForce()
        self._world = EMPTY  # what the database's log says
        self._waiting: list[_Waiting] = []
        self._exchanging = threading.Lock()  # held while a thread talks to the database
        self._lock = threading.Lock()  # guards what such a thread shares with the event loop
        self._has_rollback = asyncio.Event()
        self._unit_counts: Mapping[str, Counter[str]] = {}
        self._refreshes = 0
        self.is_down = False

    @property
    def experiments(self) -> Experiments:
        """The experiments of the config, then others that the log has, by name."""
        return self.in_force.experiments

    def apply(self, declared: Declared, config_version: str, *, may_start: bool = True) -> None:
        """Put a config in force. Blocks until the log has it.

        may_start: whether every replica has it, so that it may be added to the log. If not, this is called
            again with True.
        If the database is down, the row waits. If it refuses the row, its error is raised and nothing
        changes. Raises ValueError for experiments that the log does not allow.
        """
        with self._exchanging:
            entry = self._config_entry(declared, config_version)
            if declared.experiments or self._knows_any():
                self._exchange()
            self.check(declared, config_version)
            if may_start and (declared.experiments or self._world.experiments):
                self._add_config(entry)
            with self._lock:
                self.declared = declared
                self.config_version = config_version
            self._renew()

    def check(self, declared: Declared, config_version: str) -> None:
        """Raise ValueError if a config cannot be put in force, as `rules.check_edit` says."""
        running = self.declared if self.config_version else None
        with self._lock:
            world = replay(self._world, [each.entry for each in self._waiting])
        rules.check_edit(world, running, self._config_entry(declared, config_version))

    def refresh(self) -> None:
        """Read the new rows of the log, and add those that wait. Blocks.

        If the database is down, the state stays as it is.
        """
        with self._exchanging:
            if self._waiting or self._knows_any():
                self._exchange()
            self._renew()

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

        Replicas judge the same requests, so several may roll an arm back at once. The one whose row is added
        logs and counts it; without a database, each does.
        """
        with self._lock:
            self._waiting.append(_Waiting(entry, self._world.number))
        self._has_rollback.set()
        self._renew()

    def act(self, decide: Callable[[World], Entry]) -> World:
        """Add the row that `decide` makes of the log, put it in force, and return what the log then says.

        Blocks. Raises DatabaseUnavailable and what `decide` raises; then nothing is added.
        """
        self.flush()  # so that `decide` knows of a roll-back of the last second
        with self._exchanging:
            before = self._world
            after = self._append(lambda entries: decide(replay(before, entries)))
            self._renew()
        return after

    def add_deletion(self, report: FinalReport, seconds: float, now: float) -> None:
        """Add that an experiment's facts are deleted, and keep its last report, both or neither. Blocks.

        Nothing is done unless its log is over for so many seconds. now: seconds since the epoch, not ahead of
        the database's clock. Raises DatabaseUnavailable.
        """

        def decide(entries: Sequence[Entry]) -> Entry | None:
            experiment = replay(before, entries).experiments[report.experiment]
            over_since = experiment.over_since
            if over_since is None or experiment.deleted is not None or now - over_since <= seconds:
                return None
            return Entry("delete", now, actor="outcome_days", experiment=report.experiment)

        with self._exchanging:
            before = self._world
            self._append(decide, report)
            self._renew()

    def exposures(self, name: str) -> Counter[str]:
        """Return the units exposed so far, by arm."""
        return self._unit_counts.get(name, Counter())

    def _knows_any(self) -> bool:
        """Return whether there may be a log: a SQLite file is not made for a config without experiments."""
        return bool(self.declared.experiments) or self.store.is_made

    def _config_entry(self, declared: Declared, config_version: str) -> Entry:
        return Entry("config", self.clock(), config_version=config_version, declared=declared)

    def _exchange(self) -> None:
        """Read the log, and add what waits. Tells when the database goes and comes back."""
        try:
            self.store.check()
            self._read()
            while self._waiting:
                self._add(self._waiting[0])
            if self._refreshes % COUNTS_EVERY == 0:
                self._unit_counts = self.store.unit_counts(list(self._world.experiments))
            self._refreshes += 1
            if self.is_down:
                logger.warning("the experiments' database is back")
            self.is_down = False
        except DatabaseUnavailable as error:
            self._fail(error)

    def _fail(self, error: DatabaseUnavailable) -> None:
        if not self.is_down:
            logger.error(
                "the experiments' database is down; the last state stays in force, and guardrails judge "
                "each replica's requests alone: %s",
                error,
            )
        self.is_down = True
        for waiting in list(self._waiting):
            self._announce(waiting)

    def _read(self) -> None:
        """Read the rows that are new. All of them once the log is another one, as after a restore."""
        last = self.store.last_number()
        if last < self._world.number:
            self._follow_rows(EMPTY, self.store.log())
        elif last > self._world.number:
            self._follow_rows(self._world, self.store.log(self._world.number))

    def _add_config(self, entry: Entry) -> None:
        """Add a config's row, or have it wait if the database is down."""
        waiting = _Waiting(entry, self._world.number)
        if not self.is_down:
            try:
                self._add(waiting)
                return
            except DatabaseUnavailable as error:
                self._fail(error)
        with self._lock:
            self._waiting.append(waiting)

    def _add(self, waiting: _Waiting) -> None:
        """Add a row, unless the log has what it says."""
        is_new = False

        def decide(entries: Sequence[Entry]) -> Entry | None:
            nonlocal is_new
            is_new = _is_needed(waiting, replay(self._world, entries))
            return waiting.entry if is_new else None

        self._append(decide)
        if is_new:  # else another replica has added it, and announced it
            self._announce(waiting)
        with self._lock:
            self._waiting = [each for each in self._waiting if each is not waiting]

    def _append(
        self, decide: Callable[[Sequence[Entry]], Entry | None], report: FinalReport | None = None
    ) -> World:
        self._follow_rows(self._world, self.store.append(decide, self._world.number, report))
        return self._world

    def _follow_rows(self, world: World, entries: Sequence[Entry]) -> None:
        """Take new rows over, and tell the operator what they take out of force, or bring back."""
        before = world.experiments
        with self._lock:
            self._world = replay(world, entries)
        later = world.config.config_version
        version = self._world.config.config_version
        if world.number and version != later and version in world.superseded:
            self._tell_of_revert(later, version)
        for name, experiment in self._world.experiments.items():
            was_in_force = name in before and before[name].is_in_force
            if not experiment.is_in_force and was_in_force and not experiment.is_stopped:
                self._tell(name, experiment)

    def _tell_of_revert(self, later: str, earlier: str) -> None:
        """Say that an earlier config is in force again. The log cannot know whether anybody wants that."""
        sentence = (
            f"the config {earlier} is in force again in place of {later}, which came after it: if nobody "
            "rolled the config back, a replica with an old file has started last; start it with the present "
            "file"
        )
        logger.warning("%s", sentence)
        self.metrics.notify_operator(sentence)
        self.metrics.count("config_reverts_total")

    def _tell(self, name: str, experiment: Experiment) -> None:
        sentence = f"the experiment {name!r} is {experiment.status}, and its units get the default: "
        if experiment.paused is not None:
            sentence += f"{experiment.paused}; change the config, or stop {name!r}"
        elif experiment.is_changed:
            sentence += "the config in force declares it with another salt or other arms"
        elif experiment.is_over:
            return
        else:
            sentence += "the config in force does not declare it"
        logger.warning("%s", sentence)
        self.metrics.notify_operator(sentence)

    def _announce(self, waiting: _Waiting) -> None:
        """Log and count a roll-back of this replica once."""
        entry = waiting.entry
        if entry.kind != "rollback" or waiting.is_announced:
            return
        waiting.is_announced = True
        logger.error(
            "experiment %s: arm %s rolled back (%s): %s",
            entry.experiment,
            entry.arm,
            entry.reason,
            entry.detail,
        )
        self.metrics.count("experiment_rollbacks_total", entry.experiment, entry.reason)

    def _renew(self) -> None:
        """Put what the log and this replica's config say in force."""
        with self._lock:
            rollbacks = [each.entry for each in self._waiting if each.entry.kind == "rollback"]
            world = replay(self._world, rollbacks)
            declared = {config.name: world.find(config) for config in self.declared.experiments}
            experiments = {**declared, **world.experiments}
            assigned = tuple(
                each
                for name, each in experiments.items()
                if name in declared
                or (each.source == "http" and (not each.is_over or each.everybody_gets is not None))
            )
            self.in_force = InForce(experiments, Assigner(assigned))


def _is_needed(waiting: _Waiting, world: World) -> bool:
    """Return whether a row says what the log does not. A config is not needed if a later one has come."""
    entry = waiting.entry
    if entry.kind == "rollback":
        experiment = world.experiments.get(entry.experiment)
        return experiment is not None and entry.arm not in experiment.rolled_back
    is_later_there = world.config.number > waiting.after and world.config.time >= entry.time
    return world.config.config_version != entry.config_version and not is_later_there
