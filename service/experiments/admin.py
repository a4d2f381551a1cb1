"""The experiment routes: show, start, act (as rules.py decides), export, and record outcomes.

An operator's action is decided in the transaction that records it, so that two operators, or an operator and
a guardrail, cannot act on a state that is no longer there.
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import orjson

from headroom.service.errors import (
    Conflict,
    DatabaseUnavailable,
    Draining,
    NotFound,
    Unavailable,
)
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.buckets import ByArm
from headroom.service.experiments.definition import INTERLEAVED, ExperimentConfig
from headroom.service.experiments.events import (
    Action,
    Click,
    Outcome,
    OutcomeReceipt,
    UnmatchedReason,
    values_of,
)
from headroom.service.experiments.export import Source, page
from headroom.service.experiments.guardrails import population_stability
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.log import Entry, Experiment, State, World
from headroom.service.experiments.outcomes import Recorded, Unmatched, count_unmatched, record
from headroom.service.experiments.preference import deciding
from headroom.service.experiments.report import (
    ArmView,
    ExperimentDetail,
    ExperimentsView,
    ExperimentView,
    GuardrailView,
    Look,
    Report,
)
from headroom.service.experiments.rules import Decide, check_start, check_variants
from headroom.service.experiments.sample_ratio import running_p
from headroom.service.off_loop import in_thread

logger = logging.getLogger("headroom.experiments")

REPORT_SECONDS = 5.0
"""A report that is younger than this, or than twice the time it took, is returned from the cache."""

LOOKS_SECONDS = 5.0
"""How long one report computes past looks; the next one goes on."""

ANALYSES = 3
"""Experiments that are analysed at once; the database has connections for these and for the other calls."""

UNMATCHED_SECONDS = 10.0
"""Between two looks for clicks whose list has not come."""

MAX_RECORDING_CALLS = 32
"""Calls with outcomes that may wait for the database on one replica; further ones are refused."""


@dataclass(slots=True)
class _Analysis:
    """The analyses of one experiment that are remembered.

    report: the last one, fresh until `fresh_until` on the ledger's monotonic clock. basis: the experiment
    that it and the looks are computed from. task: the analysis under way.
    """

    basis: Experiment | None = None
    report: Report | None = None
    fresh_until: float = -math.inf
    looks: dict[float, Look] = field(default_factory=dict)
    task: asyncio.Task[Report] | None = None

    def begin(self, basis: Experiment) -> None:
        """Forget what another log led to."""
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
        self._unmatched = Unmatched()
        self._refreshing = asyncio.Lock()
        self._refreshed = -math.inf  # when the last reading began, on the ledger's monotonic clock

    def close(self) -> None:
        """End the analyses, and the threads once they have finished their current calls."""
        for analysis in self._analyses.values():
            if analysis.task is not None:
                analysis.task.cancel()
        self._threads.shutdown(wait=False)
        self._analysts.shutdown(wait=False)

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

        def store(rows: Sequence[Outcome | Click]) -> Recorded:
            configs = [config for config in ledger.configs if ledger.state(config.name).deleted is None]
            return record(ledger.store, rows, configs)

        try:
            sent, has_unknown = await in_thread(self._threads, lambda: self._look_up(outcomes()))
            if has_unknown:
                await self._refresh()
            recorded = await in_thread(self._threads, lambda: store(sent))
        finally:
            self._recording -= 1
        self._count_unmatched(recorded.unmatched)
        self._unmatched.add(recorded.listless, ledger.monotonic())
        return recorded.receipt

    async def count_unmatched_clicks(self) -> None:
        """Count clicks whose list has not come, as long as the service runs."""
        while True:
            await asyncio.sleep(UNMATCHED_SECONDS)
            due = self._unmatched.due(self._ledger.monotonic())
            if due:
                with suppress(DatabaseUnavailable):  # the report counts them all the same
                    self._count_unmatched(await asyncio.to_thread(count_unmatched, self._ledger.store, due))

    def _count_unmatched(self, clicks: Mapping[UnmatchedReason, int]) -> None:
        for reason, number in clicks.items():
            self._live.metrics.count("clicks_unmatched_total", reason, by=number)

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
            self._view(config, ledger.state(config.name), ledger.exposures(config.name))
            for config in ledger.configs
        ]
        return ExperimentsView(ledger.config_version, views)

    async def show(self, name: str) -> ExperimentDetail:
        """Return one experiment with its log and its analysis, which is None while the database is down."""
        config = await self._find(name)
        try:
            report = await self._report(name)
        except DatabaseUnavailable:
            report = None
        ledger = self._ledger
        # The units of the analysis, so that all numbers of the answer are of one moment.
        exposures = ledger.exposures(name) if report is None else report.exposures
        return self._detail(config, ledger.state(name), exposures, ledger.history(name), report)

    async def act(self, name: str, decide: Decide, *, reason: str, actor: str) -> ExperimentDetail:
        """Do what an operator asks for (such as `rules.ramp`), and return the state that this leads to.

        Somebody's next action is not in it, even if it is recorded before the answer goes out.
        """
        ledger = self._ledger
        config = await self._find(name)

        def entry(world: World) -> Entry:
            known = world.experiments.get(name)
            decided = decide(config if known is None else known.config, world)
            return replace(decided, time=ledger.clock(), actor=actor, reason=reason)

        world = await in_thread(self._threads, lambda: ledger.act(entry))
        return self._after(world.experiments[name])

    async def start(self, config: ExperimentConfig, *, actor: str) -> ExperimentDetail:
        """Start an experiment that the config does not declare, and return its state.

        Raises InvalidRequest for an unknown variant, and Conflict if its name or slots are taken, or the
        database is a SQLite file of one of several nodes; Unavailable if these cannot be counted now.
        """
        ledger = self._ledger
        check_variants(config, ledger.variants)
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
        return self._after(world.experiments[config.name])

    def _after(self, experiment: Experiment) -> ExperimentDetail:
        """Return an experiment after an action, without its analysis."""
        exposures = self._ledger.exposures(experiment.config.name)
        return self._detail(experiment.config, experiment.state, exposures, experiment.history, None)

    def _detail(
        self,
        config: ExperimentConfig,
        state: State,
        exposures: ByArm,
        history: Sequence[Action],
        report: Report | None,
    ) -> ExperimentDetail:
        return ExperimentDetail(
            **values_of(self._view(config, state, exposures)),
            history=list(history),
            report=report,
            kept_days=self._kept_days,
            preference=deciding(report),
        )

    def _look_up(self, sent: Sequence[Outcome | Click]) -> tuple[Sequence[Outcome | Click], bool]:
        """Return what was sent, and whether some of it names an experiment that is not known here yet."""
        names = {each.experiment for each in sent if each.experiment}
        return sent, any(self._ledger.find(name) is None for name in names)

    async def _find(self, name: str) -> ExperimentConfig:
        """Return an experiment, also one that another replica has just started. Raises NotFound."""
        config = self._ledger.find(name)
        if config is None:
            await self._refresh()
            config = self._ledger.find(name)
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

    async def _report(self, name: str) -> Report | None:
        """Return a report that is fresh, or that of the analysis under way, which all callers share.

        None before the experiment's start. An analysis goes on if its callers give up, and its report is kept
        for the next one.
        """
        ledger = self._ledger
        analysis = self._analyses[name]
        while True:
            basis = ledger.experiment(name)
            if analysis.task is None or analysis.basis == basis:
                break
            await asyncio.wait([analysis.task])
        if basis is None:
            return None
        if analysis.basis != basis:
            analysis.begin(basis)
        if analysis.report is not None and ledger.monotonic() < analysis.fresh_until:
            return analysis.report
        if analysis.task is None:
            analysis.task = asyncio.create_task(self._analyse(basis, analysis))
            analysis.task.add_done_callback(analysis.end)
        task = analysis.task
        await asyncio.wait([task])  # cancelled with its caller, the task is not
        if task.cancelled():
            raise Draining
        return task.result()

    async def _analyse(self, experiment: Experiment, analysis: _Analysis) -> Report:
        ledger = self._ledger
        begun = ledger.monotonic()
        now = ledger.clock()
        report = await in_thread(
            self._analysts,
            lambda: analyse(
                ledger.store,
                experiment,
                now,
                analysis.looks,
                kept_days=self._kept_days,
                looks_seconds=LOOKS_SECONDS,
            ),
        )
        seconds = ledger.monotonic() - begun
        analysis.fresh_until = begun + max(REPORT_SECONDS, 2 * seconds)
        return report

    def _view(self, config: ExperimentConfig, state: State, exposures: ByArm) -> ExperimentView:
        of_both = exposures.get(INTERLEAVED, 0)
        return ExperimentView(
            name=config.name,
            kind=config.kind,
            in_config=self._ledger.declared.find(config.name) is not None,
            status=state.status,
            paused=state.paused,
            traffic=state.traffic,
            started=state.started,
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
            rolled_back=sorted(state.rolled_back),
            shipped=state.shipped,
            sample_ratio_p=running_p(config, state, exposures),
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
