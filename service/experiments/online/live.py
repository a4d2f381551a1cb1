"""The experiments of a running replica: assign, expose, watch, roll back; no request waits for the database.

A request reads two immutable things, the config's `Assigner` and the `standings`, and never waits for the
database. A thread refreshes the standings from the log of actions every second. While the database is down
the last standings stay in force, exposures wait in the writer's bounded buffer, and a roll-back counts at
once and is recorded later.

A unit is exposed by a request that its arm's variant answered, or failed: not by one that was refused for a
reason that no arm causes (a full queue, a wrong field, draining). So an arm that fails keeps its units in the
analysis, and a refusal adds nobody. `succeeded`, `failed`, `fell_back` and `abandoned` tell which it was.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import DatabaseUnavailable
from service.experiments.analysis.sample_ratio import sequential_p
from service.experiments.definition.assignment import Assigned, Assigner
from service.experiments.definition.config import Attribute, ExperimentConfig, seconds
from service.experiments.definition.events import Action, Exposure, ShadowResult
from service.experiments.definition.state import IDLE, Standing, fold, identity
from service.experiments.online.exposures import RecentlySeen
from service.experiments.online.guardrails import Breach, breach
from service.experiments.online.observer import Observer
from service.experiments.online.window import Counts, Window
from service.experiments.storage.store import Store
from service.experiments.storage.writer import Writer

logger = logging.getLogger("headroom.experiments")

REFRESH_SECONDS = 1.0
WATCH_SECONDS = 1.0
COUNTS_EVERY = 5
"""Exposures are counted with every so many refreshes."""

SHADOW_DEPTH = 1_000
"""From so many rows in the buffer on, shadow results, which may be large, are not added to it."""

WARNING_SECONDS = 10.0
"""How often a failing arm is logged."""

ERROR_SECONDS = 600.0
"""How often an error of one kind that comes every second is logged."""

GUARDRAIL = "guardrail"
SCHEDULE = "schedule"


Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Route:
    """What experiments say about one request. variant: None leaves it to the config's default.

    exposure: what is logged once it is clear that the request was not refused; None for a listed unit.
    """

    variant: str | None = None
    assigned: Assigned | None = None
    exposure: Exposure | None = None


UNROUTED = Route()


class Experiments:
    """One replica's share in the experiments.

    Args:
        store: opened with the first config that has an experiment.
        observer: told what is worth counting.
        retention_days: exposures, outcomes and shadow results that are older are deleted; None: never.
        clock: Unix seconds; `monotonic`: seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        observer: Observer,
        *,
        retention_days: float | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.observer = observer
        self.clock = clock
        self._monotonic = monotonic
        self._writer = Writer(
            store, retention_days=retention_days, on_lost=observer.lost, on_written=observer.written
        )
        self._writes = False
        self._assigner = Assigner()
        self._config_version = ""
        self._log: Mapping[str, Sequence[Action]] = {}
        self._unrecorded: list[Action] = []
        self._refreshing = threading.Lock()
        self._lock = threading.Lock()  # of what the refresh shares with the event loop
        self._seen = RecentlySeen()
        self._windows: dict[tuple[str, str], Window] = {}
        self._next_warning: dict[tuple[str, str], float] = {}
        self._refreshes = 0
        self._database_failed = False
        self._next_error: dict[tuple[str, type[Exception]], float] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="experiments")
        self._to_record = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.standings: Mapping[str, Standing] = {}
        self.exposures: Mapping[str, Mapping[str, int]] = {}
        self._epoch_counts: Mapping[str, Mapping[str, Mapping[str, int]]] = {}
        self.state_version = 0

    @property
    def config_version(self) -> str:
        """The live config's version."""
        return self._config_version

    @property
    def configs(self) -> tuple[ExperimentConfig, ...]:
        """The experiments of the live config."""
        return self._assigner.experiments

    def check(self, assigner: Assigner) -> None:
        """Raises ValueError where a config would move the units of an experiment that has begun."""
        now = {config.name: config for config in self._assigner.experiments}
        for number, config in enumerate(assigner.experiments):
            before = now.get(config.name)
            if before is None or self.standings.get(config.name, IDLE).started is None:
                continue
            if identity(before) != identity(config):
                raise ValueError(
                    f"experiments[{number}]: {config.name!r} has begun, so its salt and arms must stay as "
                    "they are; give the changed experiment another name and salt"
                )

    def apply(self, assigner: Assigner, config_version: str) -> None:
        """Puts a config in force; blocks while the database is asked where its experiments stand.

        Without a database they stand as far as is known. Raises what the database has against one of them,
        and leaves all as it was.
        """
        with self._refreshing:
            # Those of the config before, too: it is in force until all is known about the new one.
            self._synchronise({config.name: config for config in (*self.configs, *assigner.experiments)})
            if assigner.experiments and not self._writes:
                self._writer.start()
                self._writes = True
            with self._lock:
                self.standings = self._folded(assigner.experiments)
                self._assigner, self._config_version = assigner, config_version
                self._windows = {}
            self.observer.state(self.state_version)

    def start(self) -> None:
        """Begins to follow the database and to watch the guardrails, on the running event loop."""
        # Two tasks: a database that hangs must not keep the guardrails from being watched.
        self._tasks = [asyncio.create_task(work) for work in (self._follow(), self._guard())]

    @property
    def failure(self) -> str | None:
        """Why the experiments cannot go on; None while they do."""
        return "the experiments' guardrails stopped" if any(task.done() for task in self._tasks) else None

    async def close(self, timeout_s: float) -> None:
        """Stops, and writes what is still buffered within the timeout."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._unrecorded:  # or the next replica would know nothing of a roll-back made in the last second
            await asyncio.to_thread(self.refresh)
        if self._writes:
            await asyncio.to_thread(self._writer.close, timeout_s)
            self.observer.unwritten(0)
        await asyncio.to_thread(self._thread.shutdown)
        await asyncio.to_thread(self.store.close)

    def route(self, assigner: Assigner, unit: str | None, attributes: Mapping[str, Attribute]) -> Route:
        """The variant for a request that names neither variant nor mask. Never blocks."""
        if not assigner.experiments:
            return UNROUTED
        standings = self.standings
        if unit is not None and (found := assigner.assign(unit, attributes, standings)) is not None:
            return Route(found.variant, found, None if found.forced else self._exposure(found, unit))
        return Route(assigner.shipped(unit, attributes, standings))

    def succeeded(self, route: Route, elapsed: float, scores: Callable[[], Scores]) -> None:
        """A request was answered by its own arm's variant, `elapsed` seconds after it came."""
        self._record(route, elapsed, scores=scores)

    def failed(self, route: Route, elapsed: float) -> None:
        """The arm's variant failed a request, and nothing answered in its place."""
        self._record(route, elapsed, is_error=True)

    def fell_back(self, route: Route, elapsed: float, error: Exception) -> None:
        """The arm's variant failed a request, which the control's answered."""
        self._record(route, elapsed, is_error=True)
        assigned = route.assigned
        assert assigned is not None
        self.observer.fell_back(assigned.experiment, assigned.arm)
        key, now = (assigned.experiment, assigned.arm), self._monotonic()
        if now >= self._next_warning.get(key, now):  # a broken arm fails all its requests
            self._next_warning[key] = now + WARNING_SECONDS
            logger.warning("experiment %s: arm %s failed a request: %r", *key, error)

    def abandoned(self, route: Route, elapsed: float, *, late: bool) -> None:
        """Nobody waits for the answer any more; `late`: since its deadline passed, which is an error.

        A client that hung up says something about the arm only where it had waited too long already. It is
        exposed in any case: a slow arm loses more of them.
        """
        assigned = route.assigned
        config = None if assigned is None else self.config(assigned.experiment)
        limit_ms = None if config is None else config.guardrails.p99_ms
        if late or (limit_ms is not None and elapsed * 1000 > limit_ms):
            self._record(route, elapsed, is_error=late)
        else:
            self._expose(route)

    def shadow_result(self, result: ShadowResult) -> None:
        """Hands a paired comparison to the writer, unless exposures need the room."""
        if self._writer.failure is None and self._writer.depth < SHADOW_DEPTH:
            self._writer.put(result)
        else:
            self.observer.lost("shadow", 1)

    def _exposure(self, assigned: Assigned, unit: str) -> Exposure:
        return Exposure(
            experiment=assigned.experiment,
            unit=unit,
            arm=assigned.arm,
            bucket=assigned.bucket,
            time=self.clock(),
            config_version=self._config_version,
            epoch=assigned.epoch,
        )

    def _expose(self, route: Route) -> None:
        exposure = route.exposure
        if exposure is None:
            return
        member = (exposure.experiment, exposure.epoch, exposure.unit)
        if not self._seen.add(member):
            return
        self.observer.exposed(exposure.experiment, exposure.arm)
        if not self._writer.put(exposure):
            self._seen.forget(member)  # its next request tries again

    def _record(
        self,
        route: Route,
        elapsed: float,
        *,
        scores: Callable[[], Scores] | None = None,
        is_error: bool = False,
    ) -> None:
        """Logs the exposure, and counts the request for the guardrails."""
        self._expose(route)
        assigned = route.assigned
        config = None if assigned is None or assigned.forced else self.config(assigned.experiment)
        if assigned is None or config is None:
            return
        limits = config.guardrails
        key = (assigned.experiment, assigned.arm)
        window = self._windows.get(key)
        if window is None:
            slow_seconds = None if limits.p99_ms is None else limits.p99_ms / 1000
            window = self._windows[key] = Window(seconds(limits.window), slow_seconds)
        wanted = None if scores is None or limits.score_shift is None else scores()
        window.record(self._monotonic(), elapsed, scores=wanted, is_error=is_error)

    def config(self, name: str) -> ExperimentConfig | None:
        """The experiment of this name in the live config."""
        return next((config for config in self._assigner.experiments if config.name == name), None)

    def history(self, name: str) -> list[Action]:
        """What was done to an experiment, in order, as far as this replica knows."""
        with self._lock:
            return self._actions(name)

    def sample_ratio(self, config: ExperimentConfig) -> tuple[dict[str, int], dict[str, int]]:
        """Units that came in the present epoch, and the buckets that are exposed, both by arm."""
        standing = self.standings.get(config.name, IDLE)
        buckets = config.exposed(standing.traffic, standing.rolled_back)
        counted = self._epoch_counts.get(config.name, {}).get(standing.epoch, {})
        return {arm: counted.get(arm, 0) for arm in buckets}, buckets

    def window(self, experiment: str, arm: str) -> Counts:
        """What this replica's guardrails look at now."""
        window = self._windows.get((experiment, arm))
        return Counts() if window is None else window.total(self._monotonic())

    def refresh(self) -> None:
        """Reads and writes what the database has to know; blocks. Without a database all stays as it is."""
        with self._refreshing:
            try:
                self._synchronise({config.name: config for config in self.configs})
            finally:
                self._fold()  # time has passed, too

    def _synchronise(self, configs: Mapping[str, ExperimentConfig]) -> None:
        if not configs and not self._unrecorded:
            return
        try:
            self._exchange(configs)
            if self._database_failed:
                logger.warning("the experiments' database is back")
            self._database_failed = False
        except DatabaseUnavailable as error:
            if not self._database_failed:
                logger.error("the experiments' database is down, the last state stays in force: %s", error)
            self._database_failed = True

    def _exchange(self, configs: Mapping[str, ExperimentConfig]) -> None:
        names = list(configs)
        while self._unrecorded:
            self.store.record_action(self._unrecorded[0])
            self._read(names)  # first, so that the roll-back is never in neither list
            with self._lock:
                del self._unrecorded[0]
        self._read(names)
        if self._refreshes % COUNTS_EVERY == 0:
            self.exposures = self.store.exposure_counts(names)
            self._epoch_counts = self.store.epoch_counts(names)
        self._refreshes += 1
        for name, config in configs.items():
            if not any(action.kind == "start" for action in self._log[name]):
                self.store.record_action(self._start_of(config))
                self._read(names)

    def watch(self) -> None:
        """Takes back to control what breaks a guardrail. On the event loop, as the windows are."""
        for config in self.configs:
            with self._supervised(f"the guardrails of {config.name}"):
                self._watch(config)

    def _watch(self, config: ExperimentConfig) -> None:
        standing = self.standings.get(config.name, IDLE)
        if not standing.is_running:
            return
        control = self.window(config.name, config.control)
        broken: list[Breach] = []
        for arm in config.treatments:
            if arm not in standing.rolled_back:
                found = breach(arm, self.window(config.name, arm), control, config.guardrails)
                broken += [] if found is None else [found]
        broken = broken or self._sample_ratio(config)
        if broken:
            self.roll_back(config.name, broken)

    def roll_back(self, experiment: str, broken: Sequence[Breach]) -> None:
        """Takes arms back to control: here at once, everywhere with the next refresh of each replica."""
        for found in broken:
            logger.error(
                "experiment %s: arm %s rolled back (%s): %s",
                experiment,
                found.arm,
                found.guardrail,
                found.detail,
            )
            action = Action(
                experiment=experiment,
                kind="rollback",
                time=self.clock(),
                actor=GUARDRAIL,
                arm=found.arm,
                reason=found.guardrail,
                detail=found.detail,
            )
            with self._lock:
                self._unrecorded.append(action)
            self.observer.rolled_back(experiment, found.guardrail)
        self._fold()
        self._to_record.set()

    def _sample_ratio(self, config: ExperimentConfig) -> list[Breach]:
        counts, buckets = self.sample_ratio(config)
        if not any(counts.values()):
            return []
        p = sequential_p(counts, buckets)
        self.observer.sample_ratio(config.name, p)
        limit = config.guardrails.srm
        if limit is None or p >= limit:
            return []
        detail = (
            f"units {counts} do not fit the exposed buckets {buckets} (p = {p:.2g}; the limit is {limit:g})"
        )
        return [Breach(arm, "srm", detail) for arm in counts if arm != config.control]

    def _start_of(self, config: ExperimentConfig) -> Action:
        return Action(
            experiment=config.name, kind="start", time=self.clock(), actor=SCHEDULE, detail=identity(config)
        )

    def _read(self, names: Sequence[str]) -> None:
        numbered = self.store.actions(names)
        log: dict[str, list[Action]] = {name: [] for name in names}
        for _, action in numbered:
            log[action.experiment].append(action)
        with self._lock:
            self._log = log
            self.state_version = max((number for number, _ in numbered), default=0)

    def _fold(self) -> None:
        with self._lock:
            self.standings = self._folded(self.configs)
        self.observer.state(self.state_version)

    def _folded(self, configs: Sequence[ExperimentConfig]) -> dict[str, Standing]:
        now = self.clock()
        return {config.name: fold(config, self._actions(config.name), now) for config in configs}

    def _actions(self, name: str) -> list[Action]:
        return [*self._log.get(name, ()), *(a for a in self._unrecorded if a.experiment == name)]

    async def _follow(self) -> None:
        """Refreshes every second, and at once where a roll-back is to be recorded."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._to_record.wait()
            self._to_record.clear()
            with self._supervised("the state of the experiments"):
                await loop.run_in_executor(self._thread, self.refresh)

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            with self._supervised("the guardrails"):
                self.watch()
                self.observer.unwritten(self._writer.depth)

    @contextmanager
    def _supervised(self, what: str) -> Iterator[None]:
        """Logs an error and goes on. One that comes every second is logged once in ERROR_SECONDS."""
        try:
            yield
        except Exception as error:
            kind, now = (what, type(error)), self._monotonic()
            if now >= self._next_error.get(kind, now):
                self._next_error[kind] = now + ERROR_SECONDS
                logger.exception("%s cannot be kept up; tried again every second: %s", what, error)
