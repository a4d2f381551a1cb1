"""The actions of people on the experiments, as HTTP calls them: show, record outcomes, ramp, stop, ship.

An operator's action is decided in the transaction that records it, so that two operators, or an operator and
a guardrail, cannot act on a state that is no longer there.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from service.errors import Conflict, DatabaseUnavailable, InvalidRequest, NotFound
from service.experiments.analysis import analyse, look_times, past_look
from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action, Outcome, OutcomeReceipt, values_of
from service.experiments.guardrails import population_stability
from service.experiments.live import LiveExperiments
from service.experiments.report import (
    ArmView,
    Course,
    ExperimentDetail,
    ExperimentsView,
    ExperimentView,
    GuardrailView,
    Look,
    Report,
)
from service.experiments.state import Standing, fold

REPORT_SECONDS = 5.0
"""An analysis that is younger than this is shown again."""

COURSE_SECONDS = 5.0
"""How long one request computes past looks; the next one goes on."""

MAX_RECORDING_CALLS = 32
"""Calls with outcomes that may wait for the database at once; further ones are told to come again."""

T = TypeVar("T")

Decide = Callable[[ExperimentConfig, Standing], dict[str, Any]]
"""Returns the fields of the action to record. Raises Conflict or InvalidRequest if the state forbids it."""


def ramp(config: ExperimentConfig, standing: Standing, *, traffic: float) -> dict[str, Any]:
    """Set the traffic."""
    if standing.status != "running":
        raise _over(config, standing)
    if (reason := config.uneven(traffic, standing.rolled_back)) is not None:
        raise InvalidRequest(reason, param="traffic")
    return {"kind": "ramp", "traffic": traffic}


def stop(config: ExperimentConfig, standing: Standing) -> dict[str, Any]:
    """End the experiment. This also undoes a `ship`."""
    if standing.status == "stopped":
        raise _over(config, standing)
    return {"kind": "stop"}


def ship(config: ExperimentConfig, standing: Standing, *, arm: str) -> dict[str, Any]:
    """End the experiment and give everybody an arm's variant."""
    names = [candidate.name for candidate in config.arms]
    if arm not in names:
        raise InvalidRequest(f"there is no arm {arm!r}; there are {', '.join(names)}", param="arm")
    if arm in standing.rolled_back:
        raise Conflict(f"A guardrail rolled back the arm {arm!r}; its variant can only become the `default`.")
    if standing.status in ("shipped", "changed"):
        raise _over(config, standing)
    return {"kind": "ship", "arm": arm}


def _over(config: ExperimentConfig, standing: Standing) -> Conflict:
    """Say why an action is refused: where the experiment stands."""
    if standing.status == "shipped":
        why = f"has shipped arm {standing.shipped!r}; stop it to take that back."
    elif standing.status == "pending":
        why = "has not started yet; try again in a moment."
    else:
        states = {"stopped": "is stopped already", "rolled_back": "is rolled back"}
        state = states.get(standing.status, "began with another salt or other arms than the config's")
        why = f"{state}; to go on, give a new experiment another name and salt."
    return Conflict(f"The experiment {config.name!r} {why}")


class ExperimentAdmin:
    """Answers the experiment routes. Asks the database in threads, and raises DatabaseUnavailable."""

    def __init__(self, live: LiveExperiments) -> None:
        self._ledger = live.ledger
        self._windows = live.windows
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="experiment-admin")
        self._reports: dict[str, tuple[float, Report]] = {}
        self._looks: dict[str, tuple[tuple[str, int], dict[float, Look]]] = {}
        self._analysing = asyncio.Lock()
        self._recording = 0

    def close(self) -> None:
        """End the threads once they have finished their current calls."""
        self._threads.shutdown(wait=False)

    async def record(self, outcomes: Sequence[Outcome]) -> OutcomeReceipt:
        """Store outcomes. One whose id is stored already is counted as a duplicate."""
        if self._recording >= MAX_RECORDING_CALLS:
            raise DatabaseUnavailable(
                message=f"{MAX_RECORDING_CALLS} calls with outcomes wait for the database; "
                "send these again later."
            )
        store, configs = self._ledger.store, self._ledger.configs
        self._recording += 1
        try:
            return await self._in_thread(lambda: store.record_outcomes(outcomes, configs))
        finally:
            self._recording -= 1

    def listing(self) -> ExperimentsView:
        """Return the experiments of the live config as this replica knows them, without the database."""
        ledger = self._ledger
        views = [self._view(config) for config in ledger.configs]
        return ExperimentsView(ledger.config_version, views)

    async def show(self, name: str, *, report: bool = True) -> ExperimentDetail:
        """Return one experiment with its log and its analysis, which is None while the database is down."""
        config = self._config(name)
        try:
            analysis = await self._report(config) if report else None
        except DatabaseUnavailable:
            analysis = None
        history = self._ledger.history(name)
        return ExperimentDetail(**values_of(self._view(config)), history=history, report=analysis)

    async def course(self, name: str) -> Course:
        """Return the experiment's intervals at past times, evenly spaced.

        Past looks are kept as long as the config and the log stay, so outcomes that come late are in later
        looks only.
        """
        config, history = self._config(name), self._ledger.history(name)
        basis = (self._ledger.config_version, len(history))
        async with self._analysing:
            if self._looks.get(name, (None,))[0] != basis:
                self._looks[name] = basis, {}
            looks, until = self._looks[name][1], time.monotonic() + COURSE_SECONDS
            times = look_times(config, history, self._ledger.clock())
            for moment in times:
                if moment not in looks and time.monotonic() < until:
                    call = partial(past_look, self._ledger.store, config, history, moment)
                    looks[moment] = await self._in_thread(call)
        found = [looks[moment] for moment in times if moment in looks]
        return Course(name, found, len(found) == len(times))

    async def act(self, name: str, decide: Decide, *, reason: str, actor: str) -> ExperimentDetail:
        """Do what an operator asks for: `ramp`, `stop` or `ship`."""
        ledger, config = self._ledger, self._config(name)

        def action(log: Sequence[Action]) -> Action:
            fields = decide(config, fold(config, log))
            return Action(experiment=name, time=ledger.clock(), actor=actor, reason=reason, **fields)

        await self._in_thread(lambda: ledger.act(name, action))
        return await self.show(name, report=False)

    def _config(self, name: str) -> ExperimentConfig:
        config = self._ledger.config(name)
        if config is None:
            names = ", ".join(config.name for config in self._ledger.configs) or "none"
            raise NotFound(f"There is no experiment {name!r} in the live config, which has {names}.")
        return config

    async def _report(self, config: ExperimentConfig) -> Report | None:
        async with self._analysing:
            now = self._ledger.clock()
            made, report = self._reports.get(config.name, (0.0, None))
            if report is None or now - made >= REPORT_SECONDS:
                history = self._ledger.history(config.name)
                report = await self._in_thread(lambda: analyse(self._ledger.store, config, history, now))
                self._reports[config.name] = (now, report)
            return report

    def _view(self, config: ExperimentConfig) -> ExperimentView:
        ledger = self._ledger
        standing = ledger.standing(config.name)
        exposures = ledger.exposures(config.name)
        return ExperimentView(
            name=config.name,
            status=standing.status,
            traffic=standing.traffic,
            started=standing.started,
            slots=config.slots,
            shadow=config.shadow,
            arms=[
                ArmView(arm.name, arm.variant, arm.weight, arm.name == config.control, exposures[arm.name])
                for arm in config.arms
            ],
            rolled_back=sorted(standing.rolled_back),
            shipped=standing.shipped,
            sample_ratio_p=ledger.sample_ratio_p(config),
            guardrails=[self._guardrail_view(config, arm.name) for arm in config.arms],
        )

    def _guardrail_view(self, config: ExperimentConfig, arm: str) -> GuardrailView:
        counts = self._windows.counts(config.name, arm)
        control = self._windows.counts(config.name, config.control)
        shift = None
        if config.guardrails.score_shift is not None and arm != config.control:
            shift = population_stability(counts.scores, control.scores)
        errors, slow = (
            part / counts.requests if counts.requests else None for part in (counts.errors, counts.slow)
        )
        has_limit = config.guardrails.p99_ms is not None
        return GuardrailView(arm, counts.requests, errors, slow if has_limit else None, shift)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
