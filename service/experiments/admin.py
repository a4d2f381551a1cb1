"""The actions of people on the experiments, as HTTP calls them: show, start, ramp, stop, ship, roll back, and
record outcomes.

An operator's action is decided in the transaction that records it, so that two operators, or an operator and
a guardrail, cannot act on a state that is no longer there.
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from headroom.service.errors import (
    Conflict,
    DatabaseUnavailable,
    Draining,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.buckets import ByArm
from headroom.service.experiments.definition import INTERLEAVED, ExperimentConfig, ScoreKinds
from headroom.service.experiments.events import Action, Log, Outcome, OutcomeReceipt, SentClick, values_of
from headroom.service.experiments.export import Source, page
from headroom.service.experiments.guardrails import population_stability
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.preference_report import deciding
from headroom.service.experiments.report import (
    ArmView,
    ExperimentDetail,
    ExperimentsView,
    ExperimentView,
    GuardrailView,
    Look,
    Report,
)
from headroom.service.experiments.sample_ratio import running_p
from headroom.service.experiments.started import check_start, check_variants, merged
from headroom.service.experiments.state import Standing, Standings, fold, identity, terms_of
from headroom.service.off_loop import in_thread

logger = logging.getLogger("headroom.experiments")

REPORT_SECONDS = 5.0
"""A report that is younger than this, or than twice the time it took, is returned from the cache."""

LOOKS_SECONDS = 5.0
"""How long one report computes past looks; the next one goes on."""

ANALYSES = 3
"""Experiments that are analysed at once; the database has connections for these and for the other calls."""

MAX_RECORDING_CALLS = 32
"""Calls with outcomes that may wait for the database on one replica; further ones are refused."""

T = TypeVar("T")

Decide = Callable[[ExperimentConfig, Standings], dict[str, Any]]
"""Returns the fields of the action to record, from an experiment and the standings of all of them. Raises
Conflict or InvalidRequest if these forbid it."""


def ramp(config: ExperimentConfig, standings: Standings, *, traffic: float) -> dict[str, Any]:
    """Set the traffic."""
    standing = standings[config.name]
    if not standing.is_running:
        raise _over(config, standing)
    if (reason := config.uneven(traffic, standing.rolled_back)) is not None:
        raise InvalidRequest(reason, param="traffic")
    return {"kind": "ramp", "traffic": traffic}


def stop(config: ExperimentConfig, standings: Standings) -> dict[str, Any]:
    """End the experiment. This also undoes a `ship`."""
    standing = standings[config.name]
    if standing.status == "stopped" and not standing.may_ship_again:
        raise _over(config, standing)
    return {"kind": "stop"}


def ship(config: ExperimentConfig, standings: Standings, *, arm: str) -> dict[str, Any]:
    """End the experiment and give everybody an arm's variant."""
    standing = standings[config.name]
    names = [candidate.name for candidate in config.arms]
    if arm not in names:
        raise InvalidRequest(f"there is no arm {arm!r}; there are {', '.join(names)}", param="arm")
    if arm in standing.rolled_back:
        raise Conflict(f"A guardrail rolled back the arm {arm!r}; its variant can only become the `default`.")
    if not standing.is_running and not standing.may_ship_again:
        raise _over(config, standing)
    for name, other in standings.items():
        if other.shipped is not None:
            raise Conflict(
                f"The experiment {name!r} has shipped arm {other.shipped!r}, and everybody can get only one "
                f"variant: roll {name!r} back, or make that variant the `default` and stop {name!r} or take "
                "it out of the config, before you ship another."
            )
    return {"kind": "ship", "arm": arm}


def rollback(config: ExperimentConfig, standings: Standings) -> dict[str, Any]:
    """Give everybody the default again after a `ship`."""
    standing = standings[config.name]
    if standing.shipped is None:
        raise Conflict(
            f"The experiment {config.name!r} has shipped no arm, so there is nothing to roll back; `stop` "
            "ends an experiment that runs."
        )
    return {"kind": "rollback", "detail": f"{standing.shipped} had been shipped"}


def _check_variant_is_there(config: ExperimentConfig, arm: str, variants: ScoreKinds | None) -> None:
    """Raise Conflict if the variant that everybody would get has left the config. variants: its own, if
    known."""
    variant = config.variant_of(arm)
    if variants is not None and variant not in variants:
        raise Conflict(
            f"The arm {arm!r} has the variant {variant!r}, which is not in the config: everybody would go on "
            "to get the default. Put it back before you ship it."
        )


def _over(config: ExperimentConfig, standing: Standing) -> Conflict:
    """Say why an action is refused: where the experiment stands."""
    if standing.status == "shipped":
        why = f"has shipped arm {standing.shipped!r}; roll it back to undo that."
    elif standing.status == "pending":
        why = "has not started yet; try again in a moment."
    elif standing.status == "paused":
        why = "is paused, because the config stands in its way; stop it, or change the config."
    else:
        states = {"stopped": "is stopped already", "rolled_back": "is rolled back"}
        state = states.get(standing.status, "began with another salt or other arms than the config's")
        why = f"{state}; to go on, give a new experiment another name and salt."
    return Conflict(f"The experiment {config.name!r} {why}")


@dataclass(slots=True)
class _Analysis:
    """The analyses of one experiment that are remembered.

    report: the last one, fresh until `fresh_until` on the ledger's monotonic clock. basis: the config's
    version and the length of the log that it and the looks are computed from. task: the analysis under way.
    """

    basis: tuple[str, int] = ("", 0)
    report: Report | None = None
    fresh_until: float = -math.inf
    looks: dict[float, Look] = field(default_factory=dict)
    task: asyncio.Task[Report] | None = None

    def begin(self, basis: tuple[str, int]) -> None:
        """Forget what another config or log led to."""
        self.basis = basis
        self.report = None
        self.looks = {}

    def end(self, task: asyncio.Task[Report]) -> None:
        """Keep the report of a task that is done. Its error is logged, in case that nobody waits any more."""
        self.task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.report = task.result()
        elif not isinstance(error, DatabaseUnavailable):
            logger.error("an experiment could not be analysed", exc_info=error)


class ExperimentAdmin:
    """Answers the experiment routes. Asks the database in threads, and raises DatabaseUnavailable.

    kept_days: `outcome_days`.
    """

    def __init__(self, live: LiveExperiments, kept_days: float = 30.0) -> None:
        self._kept_days = kept_days
        self._live = live
        self._ledger = live.ledger
        self._pool = live.pool
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="experiment-admin")
        # Threads of their own, so that no action or outcome waits for a slow analysis.
        self._analysts = ThreadPoolExecutor(ANALYSES, thread_name_prefix="experiment-analysis")
        self._analyses: defaultdict[str, _Analysis] = defaultdict(_Analysis)
        self._recording = 0
        self._refreshing = asyncio.Lock()
        self._refreshed = -math.inf  # when the last reading began, on the ledger's monotonic clock

    def close(self) -> None:
        """End the analyses, and the threads once they have finished their current calls."""
        for analysis in self._analyses.values():
            if analysis.task is not None:
                analysis.task.cancel()
        self._threads.shutdown(wait=False)
        self._analysts.shutdown(wait=False)

    async def record(self, outcomes: Callable[[], Sequence[Outcome | SentClick]]) -> OutcomeReceipt:
        """Store outcomes and clicks. One that is stored already is counted as a duplicate.

        outcomes: returns them; called in a thread, because there may be many.
        """
        if self._recording >= MAX_RECORDING_CALLS:
            raise DatabaseUnavailable(
                message=f"{MAX_RECORDING_CALLS} calls with outcomes wait for the database; "
                "send these again later."
            )
        ledger = self._ledger
        self._recording += 1

        def store(rows: Sequence[Outcome | SentClick]) -> OutcomeReceipt:
            configs = ledger.configs
            over = [config.name for config in configs if ledger.standing(config.name).is_over]
            return ledger.store.record_outcomes(rows, configs, ledger.clock(), over)

        try:
            sent, has_unknown = await in_thread(self._threads, lambda: self._look_up(outcomes()))
            if has_unknown:
                await self._refresh()
            return await in_thread(self._threads, lambda: store(sent))
        finally:
            self._recording -= 1

    async def rows(self, name: str, source: Source, after: str) -> bytes:
        """Return a page of an experiment's rows as JSON: `columns`, `rows`, and the `next` to go on after."""
        await self._find(name)
        store = self._ledger.store

        def read() -> bytes:
            return orjson.dumps(page(store, name, source, after))

        return await in_thread(self._analysts, read)

    def listing(self) -> ExperimentsView:
        """Return the experiments as this replica knows them, without the database."""
        ledger = self._ledger
        views = [
            self._view(config, ledger.standing(config.name), ledger.exposures(config.name))
            for config in ledger.configs
        ]
        return ExperimentsView(ledger.config_version, views)

    async def show(self, name: str) -> ExperimentDetail:
        """Return one experiment with its log and its analysis, which is None while the database is down."""
        config = await self._find(name)
        try:
            report = await self._report(config)
        except DatabaseUnavailable:
            report = None
        ledger = self._ledger
        # The units of the analysis, so that all numbers of the answer are of one moment.
        exposures = ledger.exposures(name) if report is None else report.exposures
        view = self._view(config, ledger.standing(name), exposures)
        return ExperimentDetail(
            **values_of(view),
            history=ledger.history(name),
            report=report,
            kept_days=self._kept_days,
            preference=deciding(report),
        )

    async def act(self, name: str, decide: Decide, *, reason: str, actor: str) -> ExperimentDetail:
        """Do what an operator asks for (such as `ramp`), and return the state that this leads to.

        Somebody's next action is not in it, even if it is recorded before the answer goes out.
        """
        ledger = self._ledger
        config = await self._find(name)
        configs = ledger.configs

        def action(log: Log, started: Sequence[ExperimentConfig]) -> Action:
            standings = self._standings(merged(configs, started), log)
            fields = decide(config, standings)
            if fields["kind"] == "ship":
                _check_variant_is_there(config, fields["arm"], ledger.variants)
            return Action(experiment=name, time=ledger.clock(), actor=actor, reason=reason, **fields)

        names = [each.name for each in configs]
        log = await in_thread(self._threads, lambda: ledger.act(names, action))
        return self._detail(config, log)

    async def start(self, config: ExperimentConfig, *, actor: str) -> ExperimentDetail:
        """Start an experiment that the config does not declare, and return its state.

        Raises InvalidRequest for an unknown variant, and Conflict if its name or slots are taken, or the
        database is a SQLite file of one of several nodes; Unavailable if these cannot be counted now.
        """
        ledger = self._ledger
        declared = ledger.declared
        check_variants(config, ledger.variants or {})
        try:
            await in_thread(self._threads, self._live.check_reach)
        except ValueError as error:
            raise Conflict(str(error)) from None
        except TimeoutError as error:
            raise Unavailable(message=str(error)) from None

        def action(log: Log, started: Sequence[ExperimentConfig]) -> Action:
            standings = self._standings(merged(declared, started), log)
            check_start(config, declared, started, log, standings)
            terms = terms_of(config, ledger.definitions)
            return Action(config.name, "start", ledger.clock(), actor, detail=identity(config), terms=terms)

        names = [config.name, *(each.name for each in declared)]
        log = await in_thread(self._threads, lambda: ledger.act(names, action, new=config))
        return self._detail(config, log)

    def _standings(self, configs: Sequence[ExperimentConfig], log: Log) -> Standings:
        """Return where experiments stand by their log."""
        paused = self._ledger.state.paused
        standings = {config.name: fold(config, _log_of(config.name, log)) for config in configs}
        for name in paused.keys() & standings.keys():
            if standings[name].status != "stopped":
                standings[name] = replace(standings[name], status="paused")
        return standings

    def _detail(self, config: ExperimentConfig, log: Log) -> ExperimentDetail:
        """Return an experiment without its analysis. log: holds its own."""
        history = _log_of(config.name, log)
        standing = self._standings([config], history)[config.name]
        view = self._view(config, standing, self._ledger.exposures(config.name))
        return ExperimentDetail(
            **values_of(view), history=history, report=None, kept_days=self._kept_days, preference=None
        )

    def _look_up(self, sent: Sequence[Outcome | SentClick]) -> tuple[Sequence[Outcome | SentClick], bool]:
        """Return what was sent, and whether some of it names an experiment that is not known here yet."""
        names = {each.experiment for each in sent if each.experiment is not None}
        return sent, any(self._ledger.config(name) is None for name in names)

    async def _find(self, name: str) -> ExperimentConfig:
        """Return an experiment, also one that another replica has just started. Raises NotFound."""
        config = self._ledger.config(name)
        if config is None:
            await self._refresh()
            config = self._ledger.config(name)
        if config is None:
            names = ", ".join(config.name for config in self._ledger.configs) or "none"
            raise NotFound(f"There is no experiment {name!r} (known: {names}).")
        return config

    async def _refresh(self) -> None:
        """Read the database's state as of now. Calls that come while it is read share the next reading."""
        asked = self._ledger.monotonic()
        async with self._refreshing:
            if self._refreshed < asked:
                begun = self._ledger.monotonic()
                await in_thread(self._threads, self._ledger.refresh)
                self._refreshed = begun

    async def _report(self, config: ExperimentConfig) -> Report:
        """Return a report that is fresh, or that of the analysis under way, which all callers share.

        An analysis goes on if its callers give up, and its report is kept for the next one.
        """
        ledger = self._ledger
        analysis = self._analyses[config.name]
        while True:
            history = ledger.history(config.name)
            basis = (ledger.config_version, len(history))
            if analysis.task is None or analysis.basis == basis:
                break
            await asyncio.wait([analysis.task])
        if analysis.basis != basis:
            analysis.begin(basis)
        if analysis.report is not None and ledger.monotonic() < analysis.fresh_until:
            return analysis.report
        if analysis.task is None:
            analysis.task = asyncio.create_task(self._analyse(config, history, analysis))
            analysis.task.add_done_callback(analysis.end)
        task = analysis.task
        await asyncio.wait([task])  # cancelled with its caller, the task is not
        if task.cancelled():
            raise Draining
        return task.result()

    async def _analyse(self, config: ExperimentConfig, history: Log, analysis: _Analysis) -> Report:
        ledger = self._ledger
        begun = ledger.monotonic()
        now = ledger.clock()
        report = await in_thread(
            self._analysts,
            lambda: analyse(
                ledger.store,
                config,
                history,
                now,
                analysis.looks,
                kept_days=self._kept_days,
                looks_seconds=LOOKS_SECONDS,
            ),
        )
        seconds = ledger.monotonic() - begun
        analysis.fresh_until = begun + max(REPORT_SECONDS, 2 * seconds)
        return report

    def _view(self, config: ExperimentConfig, standing: Standing, exposures: ByArm) -> ExperimentView:
        state = self._ledger.state
        obstacle = state.paused.get(config.name)
        of_both = exposures.get(INTERLEAVED, 0)
        return ExperimentView(
            name=config.name,
            kind=config.kind,
            in_config=any(declared.name == config.name for declared in self._ledger.declared),
            status=standing.status,
            paused=obstacle.text if obstacle is not None and standing.status == "paused" else None,
            traffic=standing.traffic,
            started=standing.started,
            slots=config.slots,
            shadow=config.shadow,
            arms=[
                ArmView(
                    name=arm.name,
                    variant=arm.variant,
                    weight=arm.weight,
                    control=arm.name == config.control,
                    exposures=exposures.get(arm.name, of_both),
                )
                for arm in config.arms
            ],
            rolled_back=sorted(standing.rolled_back),
            shipped=standing.shipped,
            sample_ratio_p=running_p(config, standing, exposures),
            guardrails=[self._guardrail_view(config, arm.name) for arm in config.arms],
        )

    def _guardrail_view(self, config: ExperimentConfig, arm: str) -> GuardrailView:
        counts = self._pool.counts(config.name, arm)
        control = self._pool.counts(config.name, config.control)
        requests = counts.requests
        limits = config.guardrails
        has_shift = limits.score_shift is not None and arm != config.control
        return GuardrailView(
            arm=arm,
            replicas=counts.replicas,
            requests=requests,
            error_rate=counts.errors / requests if requests else None,
            slow_rate=counts.slow / requests if requests and limits.p99_ms is not None else None,
            score_shift=population_stability(counts.scores, control.scores) if has_shift else None,
        )


def _log_of(experiment: str, log: Log) -> list[Action]:
    return [action for action in log if action.experiment == experiment]
