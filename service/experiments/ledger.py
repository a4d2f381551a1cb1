"""The state of the experiments: the actions in the database, and those that are not recorded there yet.

Requests read `state`, which is replaced as a whole, and never wait for the database. A thread reads every
second which experiments were started without a file, and the log of actions, and records the roll-backs of
this replica. While the database is down, the last state stays in force. A roll-back counts at once and is
recorded later.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import is_

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.definition import ExperimentConfig, ScoreKinds
from headroom.service.experiments.events import Action, Log, Terms
from headroom.service.experiments.started import Configs, Obstacle, merged, obstacles
from headroom.service.experiments.state import (
    IDLE,
    Standing,
    Standings,
    check_one_shipped,
    fold,
    identity,
    terms_of,
)
from headroom.service.experiments.store import Decision, Store
from headroom.service.observe.metrics import Metrics

logger = logging.getLogger("headroom.experiments")

Clock = Callable[[], float]

REFRESH_SECONDS = 1.0
COUNTS_EVERY = 5
"""The number of refreshes per count of the exposed units."""

DISPUTE_SECONDS = 60.0
"""A replica that runs an experiment waits this long before it overrules one that said it is not in force."""


@dataclass(frozen=True, slots=True)
class State:
    """The experiments in force. Replaced as a whole.

    configs: those of the config, then those that were started without a file.
    started: of the latter, those that are not stopped.
    standings, paused: by name; why an experiment is paused.
    """

    configs: Configs = ()
    started: Configs = ()
    standings: Standings = field(default_factory=dict)
    paused: Mapping[str, Obstacle] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Removal:
    """An experiment that an edit took out of the config, which the log does not say yet.

    time: of the edit. is_final: whether every replica has the edit.
    """

    config: ExperimentConfig
    time: float
    is_final: bool


class Ledger:
    """The actions, standings and exposure counts of the experiments.

    store: the database. A SQLite file is made with the first experiment.
    clock: returns Unix seconds. monotonic: returns seconds that never go back.
    declared, variants: of the live config; None: any variant exists. definitions: of its variants.
    impression_key: the database's; "" before it was read, when no unit is assigned yet.
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
        self.declared: Configs = ()
        self.variants: ScoreKinds | None = None
        self.definitions: Mapping[str, str] = {}
        self.config_version = ""
        self.impression_key = ""
        self.state = State()
        self._held: Configs = ()  # started without a file
        self._exchanging = threading.Lock()  # held while a thread talks to the database
        self._lock = threading.Lock()  # guards what such a thread shares with the event loop
        self._log: Mapping[str, Log] = {}
        self._names: Sequence[str] = ()  # of the experiments whose log is read
        self._unreadable: set[str] = set()
        self._removals: Sequence[_Removal] = ()
        self._edited = 0.0  # when the live config was first put in force
        self._compared: dict[str, Terms] = {}  # this replica's terms that were compared with the log
        self._unrecorded: list[Action] = []
        self._unannounced: list[Action] = []  # roll-backs of this replica that no log line has told yet
        self._has_unrecorded = asyncio.Event()
        self._unit_counts: Mapping[str, Counter[str]] = {}
        self._refreshes = 0
        self._may_start = True
        self._database_failed = False

    @property
    def configs(self) -> Configs:
        """The experiments of the live config, then those that were started without a file."""
        return self.state.configs

    @property
    def standings(self) -> Standings:
        """Return where each experiment stands."""
        return self.state.standings

    def apply(
        self,
        declared: Configs,
        config_version: str,
        *,
        variants: ScoreKinds | None = None,
        definitions: Mapping[str, str] | None = None,
        may_start: bool = True,
    ) -> None:
        """Put a config's experiments in force. Blocks until the database has said where they stand.

        variants: those of the config, with the kind of score of each; None: any.
        definitions: what each variant computes with: a text that changes if that does.
        may_start: whether new experiments start, and edits of others are recorded. If not, these wait until
            this is called with True.
        If the database is down, the last known state is used. If it refuses one of the experiments, its
        error is raised and nothing changes. Raises ValueError if two of the experiments have shipped, and
        as `check` does.
        """
        defined = definitions or {}
        names = {config.name for config in declared}
        edited = self._edited if config_version == self.config_version else self.clock()
        # One that was out and came back while the database was away was out all the same.
        removals = [each for each in self._removals if each.is_final or each.config.name not in names]
        removals += [_Removal(config, edited, False) for config in self.declared if config.name not in names]
        removals = [replace(each, is_final=each.is_final or may_start) for each in removals]

        def record() -> None:
            self.check(declared, variants)
            if may_start:
                self._record_removals(removals, defined)
                self._record_terms(declared, variants, defined, edited)

        with self._exchanging:
            # The experiments of the last config stay in force until all is known about the new ones.
            gone = [removal.config for removal in removals]
            self._synchronise((*gone, *self.declared, *declared), record)
            self.check(declared, variants)
            self._may_start = may_start
            with self._lock:
                state = self._folded(declared, variants)
                check_one_shipped(state.standings)
                told = self._put(state)
                self._removals = () if may_start and not self._database_failed else removals
                self._edited = edited
                self.declared = declared
                self.variants = variants
                self.definitions = defined
                self.config_version = config_version
        self._tell(told)

    def check(self, declared: Configs, variants: ScoreKinds | None) -> None:
        """Raise ValueError if an edit stands in the way of an experiment that was started without a file.

        The first config is never refused for that, so that a replica starts with any that is right.
        """
        if not self.config_version:
            return
        with self._lock:
            names = {config.name for config in self.declared}
            held = {config.name for config in self._held}
            for index, config in enumerate(declared):
                if config.name in held - names:
                    raise ValueError(
                        f"experiments[{index}].name: an experiment {config.name!r} was started without a "
                        "file; give this one another name"
                    )
            paused = self._folded(declared, variants).paused
            for name, obstacle in paused.items():
                if name not in self.state.paused:
                    raise ValueError(f"{obstacle.text}; change that, or stop {name!r} first")

    def refresh(self) -> None:
        """Record the unrecorded actions, and reread the log. Blocks.

        If the database is down, the state stays as it is.
        """

        def record() -> None:
            if self._may_start:
                self._record_removals(self._removals, self.definitions)
                self._removals = ()
                self._record_terms(self.declared, self.variants, self.definitions, self._edited)

        with self._exchanging:
            gone = [removal.config for removal in self._removals]
            self._synchronise((*gone, *self.declared), record)
            told = self._fold()
        self._tell(told)

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

    @property
    def is_down(self) -> bool:
        """Whether the database failed when it was last asked."""
        return self._database_failed

    def add(self, action: Action) -> None:
        """Put a roll-back in force on this replica now, and have it recorded soon. On the event loop.

        Replicas judge the same requests, so several may roll an arm back at once. The one whose roll-back is
        recorded logs and counts it; without a database, each does.
        """
        with self._lock:
            self._unrecorded.append(action)
            self._unannounced.append(action)
        self._has_unrecorded.set()
        self._fold()

    def act(
        self, names: Sequence[str], decide: Decision, *, new: ExperimentConfig | None = None
    ) -> list[Action]:
        """Record what `decide` makes of a log, put it in force, and return the log. Blocks.

        The log is that of `names` and as `Store.act` says, which takes `new`.
        Raises DatabaseUnavailable and what `decide` raises; then nothing is recorded.
        """
        self.flush()  # so that `decide` knows of a roll-back of the last second
        log = self.store.act(names, decide, new=new)
        self.refresh()
        return log

    def config(self, name: str) -> ExperimentConfig | None:
        """Return the experiment of this name."""
        return next((config for config in self.configs if config.name == name), None)

    def standing(self, name: str) -> Standing:
        """Return where an experiment stands."""
        return self.standings.get(name, IDLE)

    def history(self, name: str) -> list[Action]:
        """Return the actions on an experiment in their order, as far as this replica knows them."""
        with self._lock:
            return self._actions(name)

    def identity_at_start(self, name: str) -> str | None:
        """Return the identity that an experiment began with; None if it has not begun."""
        starts = (action.detail for action in self.history(name) if action.kind == "start")
        return next(starts, None)

    def exposures(self, name: str) -> Counter[str]:
        """Return the units exposed so far, by arm."""
        return self._unit_counts.get(name, Counter())

    def _synchronise(self, declared: Sequence[ExperimentConfig], record: Callable[[], None]) -> None:
        """Exchange what is new with the database. record: called once the log of `declared` is known."""
        if not declared and not self._unrecorded and not self.store.is_made:
            return
        try:
            self._exchange(declared)
            record()
            if self._database_failed:
                logger.warning("the experiments' database is back")
            self._database_failed = False
        except DatabaseUnavailable as error:
            if not self._database_failed:
                logger.error(
                    "the experiments' database is down; the last state stays in force, and guardrails judge "
                    "each replica's requests alone: %s",
                    error,
                )
            self._database_failed = True
            for action in list(self._unrecorded):
                self._announce(action, is_new=True)

    def _exchange(self, declared: Sequence[ExperimentConfig]) -> None:
        self.store.check()
        self.impression_key = self.store.impression_key()
        # First the experiments, then their log: whoever could take another's slots finds its end in the log.
        self._read_held()
        names = self._names = sorted({config.name for config in (*declared, *self._held)})
        self._read(names)
        while self._unrecorded:
            action = self._unrecorded[0]
            is_new = self.store.record_action(action)
            self._read(names, recorded=action)
            self._announce(action, is_new=is_new)
        if self._refreshes % COUNTS_EVERY == 0:
            self._unit_counts = self.store.unit_counts(names)
        self._refreshes += 1

    def _announce(self, action: Action, *, is_new: bool) -> None:
        """Log and count a roll-back of this replica once.

        is_new: whether no other replica has recorded it.
        """
        with self._lock:
            if action not in self._unannounced:
                return
            self._unannounced.remove(action)
        if is_new:
            logger.error(
                "experiment %s: arm %s rolled back (%s): %s",
                action.experiment,
                action.arm,
                action.reason,
                action.detail,
            )
            self.metrics.count("experiment_rollbacks_total", action.experiment, action.reason)

    def _record_removals(self, removals: Sequence[_Removal], definitions: Mapping[str, str]) -> None:
        for removal in removals:
            terms = terms_of(removal.config, definitions, in_force=False)
            self._record_edit(removal.config, terms, since=removal.time)

    def _record_terms(
        self,
        declared: Configs,
        variants: ScoreKinds | None,
        definitions: Mapping[str, str],
        edited: float,
    ) -> None:
        """Record the start of new experiments, and new terms of those that run. Arguments as of `apply`.

        edited: when this config was put in force.
        """
        for config in declared:
            if not any(action.kind == "start" for action in self._log[config.name]):
                terms = terms_of(config, definitions)
                detail = identity(config)
                start = Action(config.name, "start", self.clock(), "config", detail=detail, terms=terms)
                self.store.record_action(start)
                self._read(self._names)
        with self._lock:
            state = self._folded(declared, variants)
        for config in state.configs:
            standing = state.standings[config.name]
            terms = terms_of(config, definitions, in_force=standing.is_running)
            logged = standing.terms
            # Slots are the config's at once; traffic is the log's.
            is_at_once = logged is not None and replace(logged, slots=terms.slots) == terms
            self._record_edit(config, terms, since=edited if is_at_once else None)

    def _record_edit(self, config: ExperimentConfig, terms: Terms, since: float | None) -> None:
        """Record the terms of an experiment that has begun and is not over, if they are new.

        since: when they were put in force, which the database may have been too late to hear of; None: now.
        This replica's terms are compared with the log once, so that replicas whose configs differ for a
        moment do not overrule each other again and again.
        """
        name = config.name

        def decide(log: Log, _: Sequence[ExperimentConfig]) -> Action | None:
            standing = fold(config, [action for action in log if action.experiment == name])
            if standing.started is None or standing.ended is not None or standing.terms == terms:
                return None
            time = self.clock() if since is None else since
            return Action(name, "edit", time, "config", detail=_changes(terms, standing), terms=terms)

        actions = self._log.get(name, ())
        is_first = self._compared.get(name) != terms
        self._compared[name] = terms
        if decide(actions, ()) is None:
            return
        if is_first or _lacks_terms(actions) or self._is_wrongly_out(actions, terms):
            try:
                self.store.act([name], decide)
            except DatabaseUnavailable:
                del self._compared[name]
                raise
            self._read(self._names)

    def _is_wrongly_out(self, actions: Log, terms: Terms) -> bool:
        """Return whether the log has said for a while that an experiment which runs here is not in force."""
        last = [action for action in actions if action.terms is not None][-1]
        is_disputed = terms.in_force and last.terms is not None and not last.terms.in_force
        return is_disputed and self.clock() - last.time > DISPUTE_SECONDS

    def _read_held(self) -> None:
        """Read which experiments were started without a file. Their definitions never change."""
        names = self.store.started_names()
        known = {config.name: config for config in self._held}
        new = [name for name in names if name not in known and name not in self._unreadable]
        if new:
            known |= {config.name: config for config in self.store.definitions(new)}
            unreadable = [name for name in new if name not in known]
            self._unreadable.update(unreadable)
            if unreadable:
                logger.error("another release started %s, which does not run here", ", ".join(unreadable))
        with self._lock:
            self._held = tuple(known[name] for name in names if name in known)

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

    def _fold(self) -> list[str]:
        with self._lock:
            return self._put(self._folded(self.declared, self.variants))

    def _put(self, state: State) -> list[str]:
        """Put a state in force, and return what the operator should know. Needs the lock."""
        previous = self.state
        self.state = replace(
            state,
            configs=_same(previous.configs, state.configs),
            started=_same(previous.started, state.started),
        )
        return [
            f"the experiment {name!r} is paused, and its units get the default: {obstacle.text}; change the "
            f"config, or stop {name!r}"
            for name, obstacle in state.paused.items()
            if previous.paused.get(name) != obstacle
        ]

    def _tell(self, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            logger.warning("%s", sentence)
            self.metrics.notify_operator(sentence)

    def _folded(self, declared: Configs, variants: ScoreKinds | None) -> State:
        """Return the state under a config. Needs the lock."""
        configs = merged(declared, self._held)
        standings = {config.name: fold(config, self._actions(config.name)) for config in configs}
        held = configs[len(declared) :]
        started = tuple(config for config in held if standings[config.name].status != "stopped")
        paused: dict[str, Obstacle] = {}
        for obstacle in obstacles(declared, started, standings, variants):
            paused.setdefault(obstacle.name, obstacle)
        for name in paused:
            standings[name] = replace(standings[name], status="paused", traffic=0.0)
        return State(configs, started, standings, paused)

    def _actions(self, name: str) -> list[Action]:
        unrecorded = (action for action in self._unrecorded if action.experiment == name)
        return [*self._log.get(name, ()), *unrecorded]


def _lacks_terms(actions: Log) -> bool:
    return not any(action.terms is not None for action in actions)


def _changes(terms: Terms, standing: Standing) -> str:
    """Return what is new in an experiment's terms, as words. standing: by the log."""
    previous = standing.terms
    if previous is None:
        return "the config's terms, which the start lacks"
    changes = []
    if terms.traffic != previous.traffic:
        changes.append(f"traffic {previous.traffic:g} to {terms.traffic:g}")
    if terms.slots != previous.slots:
        changes.append(f"slots {list(previous.slots)} to {list(terms.slots)}")
    if terms.planned_units != previous.planned_units:
        changes.append(f"planned_units {previous.planned_units} to {terms.planned_units}")
    if terms.variants != previous.variants:
        names = [name for name in terms.variants if terms.variants[name] != previous.variants.get(name)]
        changes.append(f"variants: {', '.join(names) or 'fewer'}")
    if terms.in_force != previous.in_force:
        changes.append("units get their arm again" if terms.in_force else "units get the default")
    return "; ".join(changes)


def _same(previous: Configs, configs: Configs) -> Configs:
    """Return the earlier tuple if both hold the same objects, so that `is` tells whether they differ."""
    is_same = len(previous) == len(configs) and all(map(is_, previous, configs))
    return previous if is_same else configs
