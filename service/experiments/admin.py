"""The experiment routes: show, start, act, export, and record outcomes.

An operator's action is decided in the transaction that records it, so that two operators, or an operator and
a guardrail, cannot act on a state that is no longer there.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import orjson

from headroom.service.errors import Conflict, DatabaseUnavailable, InvalidRequest, NotFound, Unavailable
from headroom.service.experiments.buckets import ByArm
from headroom.service.experiments.definition import INTERLEAVED, ExperimentConfig
from headroom.service.experiments.estimates import finite
from headroom.service.experiments.events import Click, Outcome, OutcomeReceipt, values_of
from headroom.service.experiments.export import Source, page
from headroom.service.experiments.guardrails import population_stability
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.log import Entry, EntryKind, World
from headroom.service.experiments.outcomes import record
from headroom.service.experiments.report import (
    ArmView,
    ExperimentDetail,
    ExperimentsView,
    ExperimentView,
    GuardrailView,
    Report,
)
from headroom.service.experiments.report_cache import ReportCache
from headroom.service.experiments.rules import check_action, check_start
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.verdicts import running_p
from headroom.service.off_loop import in_thread

MAX_RECORDING_CALLS = 32
"""Calls with outcomes that may wait for the database on one replica; further ones are refused."""


class ExperimentAdmin:
    """Answers the experiment routes. Asks the database in threads, and raises DatabaseUnavailable."""

    def __init__(self, live: LiveExperiments) -> None:
        self._live = live
        self._ledger = live.ledger
        self._windows = live.windows
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="experiment-admin")
        self._reports = ReportCache(live.ledger)
        self._recording = 0
        self._refreshing = asyncio.Lock()
        self._refreshed = -math.inf  # when the last reading began, on the ledger's monotonic clock

    def close(self) -> None:
        """End the analyses, and the threads once they have finished their current calls."""
        self._reports.close()
        self._threads.shutdown(wait=False)

    async def record(self, outcomes: Callable[[], Sequence[Outcome | Click]]) -> OutcomeReceipt:
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
        try:
            sent = await in_thread(self._threads, outcomes)
            named = {row.experiment for row in sent} - {""}
            if not named <= ledger.experiments.keys():  # another replica may have started it just now
                await self._refresh()
            there = [each.config for each in ledger.experiments.values() if each.deleted is None]
            receipt, unmatched = await in_thread(self._threads, lambda: record(ledger.store, sent, there))
        finally:
            self._recording -= 1
        for reason, number in unmatched.items():
            self._live.metrics.count("clicks_unmatched_total", reason, by=number)
        return receipt

    async def rows(self, name: str, source: Source, after: str) -> bytes:
        """Return a page of an experiment's rows as JSON: `columns`, `rows`, and the `next` to go on after."""
        await self._find(name)
        store = self._ledger.store

        def read() -> bytes:
            return orjson.dumps(page(store, name, source, after))

        return await in_thread(self._reports.threads, read)

    def listing(self) -> ExperimentsView:
        """Return the experiments as this replica knows them, without the database."""
        ledger = self._ledger
        views = [self._view(each, ledger.exposures(name)) for name, each in ledger.experiments.items()]
        return ExperimentsView(ledger.config_version, views)

    async def show(self, name: str) -> ExperimentDetail:
        """Return one experiment with its log and its analysis, which is None while the database is down."""
        experiment = await self._find(name)
        try:
            report = await self._reports.get(name)
        except DatabaseUnavailable:
            report = None
        return self._detail(self._ledger.experiments.get(name, experiment), report)

    async def act(
        self,
        name: str,
        kind: EntryKind,
        *,
        actor: str,
        reason: str = "",
        arm: str | None = None,
        traffic: float | None = None,
    ) -> ExperimentDetail:
        """Do what an operator asks for, and return the state that this leads to.

        Somebody's next action is not in it, even if it is recorded before the answer goes out.
        Raises Conflict if the state does not allow it, and InvalidRequest for a wrong arm or traffic.
        """
        ledger = self._ledger
        await self._find(name)

        def decide(world: World) -> Entry:
            entry = Entry(kind, ledger.clock(), actor, name, arm=arm, traffic=traffic, reason=reason)
            check_action(entry, world)
            return entry

        world = await in_thread(self._threads, lambda: ledger.act(decide))
        return self._detail(world.experiments[name], None)

    async def start(self, config: ExperimentConfig, *, actor: str) -> ExperimentDetail:
        """Start an experiment that the config does not declare, and return its state.

        Raises InvalidRequest for an unknown variant, and Conflict if its name or slots are taken, or the
        database is a SQLite file of one of several nodes; Unavailable if these cannot be counted now.
        """
        ledger = self._ledger
        for field, clause in config.unfit_variants(ledger.declared.variants or {}):
            raise InvalidRequest(clause, param=field)
        try:
            await in_thread(self._threads, self._live.check_nodes)
        except ValueError as error:
            raise Conflict(str(error)) from None
        except TimeoutError as error:
            raise Unavailable(message=str(error)) from None
        declared = replace(ledger.declared, experiments=(config,))

        def entry(world: World) -> Entry:
            check_start(config, world)
            return Entry("start", ledger.clock(), actor=actor, experiment=config.name, declared=declared)

        world = await in_thread(self._threads, lambda: ledger.act(entry))
        return self._detail(world.experiments[config.name], None)

    def _detail(self, experiment: Experiment, report: Report | None) -> ExperimentDetail:
        """Return an experiment with its analysis; None: it was not asked for, or could not be made."""
        # The units of the analysis, so that all numbers of the answer are of one moment.
        exposures = self._ledger.exposures(experiment.config.name) if report is None else report.exposures
        return ExperimentDetail(
            **values_of(self._view(experiment, exposures)),
            history=list(experiment.history),
            report=report,
            preference=None if report is None else report.preference,
        )

    async def _find(self, name: str) -> Experiment:
        """Return an experiment, also one that another replica has just started. Raises NotFound."""
        experiment = self._ledger.experiments.get(name)
        if experiment is None:
            await self._refresh()
            experiment = self._ledger.experiments.get(name)
        if experiment is None:
            names = ", ".join(self._ledger.experiments) or "none"
            raise NotFound(f"There is no experiment {name!r} (known: {names}).")
        return experiment

    async def _refresh(self) -> None:
        """Read the database's state as of now. Calls that come while it is read share the next reading."""
        asked = self._ledger.monotonic()
        async with self._refreshing:
            if self._refreshed < asked:
                begun = self._ledger.monotonic()
                await in_thread(self._threads, self._ledger.refresh)
                self._refreshed = begun

    def _view(self, experiment: Experiment, exposures: ByArm) -> ExperimentView:
        config = experiment.config
        of_both = exposures.get(INTERLEAVED, 0)
        return ExperimentView(
            name=config.name,
            kind=config.kind,
            in_config=self._ledger.declared.find(config.name) is not None,
            status=experiment.status,
            paused=experiment.paused,
            traffic=experiment.traffic,
            started=finite(experiment.started),
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
            rolled_back=sorted(experiment.rolled_back),
            shipped=experiment.everybody_gets,
            sample_ratio_p=running_p(experiment, exposures),
            guardrails=[self._guardrail_view(config, arm.name) for arm in config.arms],
        )

    def _guardrail_view(self, config: ExperimentConfig, arm: str) -> GuardrailView:
        counts = self._windows.counts(config.name, arm)
        control = self._windows.counts(config.name, config.control)
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
