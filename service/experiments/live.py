"""The experiments of a running replica: who gets which arm, what became of it, and the background tasks.

A unit is exposed by a request that its arm's variant answered or failed. A request that was refused for a
reason that no arm causes (a full queue, a wrong field, draining) exposes nobody. So an arm that fails keeps
its units in the analysis, and a refusal adds none. The caller tells them apart: `succeeded`, `failed`,
`fell_back` or `abandoned`. No request waits for the database.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from headroom.models.lru import LeastRecentlyUsed
from headroom.service.experiments.assignment import Assigned, Assigner
from headroom.service.experiments.buckets import NO_BUCKET, bucket
from headroom.service.experiments.definition import LAYER_SALT, ExperimentConfig, ScoreKinds
from headroom.service.experiments.events import Exposure, Impression, ShadowResult
from headroom.service.experiments.guardrails import GUARDRAILS, GuardrailWatcher
from headroom.service.experiments.interleaving import NOT_SHOWN, SHARED, Draw, impression_id
from headroom.service.experiments.ledger import Clock, Ledger
from headroom.service.experiments.log import Declared
from headroom.service.experiments.store import Store
from headroom.service.experiments.verdicts import running_p
from headroom.service.experiments.windows import Scores, Windows
from headroom.service.experiments.writer import Writer
from headroom.service.observe.metrics import Metrics

logger = logging.getLogger("headroom.experiments")

SHADOW_DEPTH = 1_000
"""If the buffer holds this many records, shadow results, which may be large, are not added to it."""

MAX_SEEN = 50_000
"""Units and arms whose exposure is not sent to the database again, at most."""

WARNING_SECONDS = 10.0
"""Between two warnings of failed arms: few lines a minute are shown, and a roll-back must be among them."""


@dataclass(frozen=True, slots=True)
class Route:
    """The experiments' answer to one request.

    variant: None leaves the choice to the config's default.
    unit, time: of the exposure, which is logged once it is clear that the request was not refused.
    """

    variant: str | None = None
    assigned: Assigned | None = None
    unit: str = ""
    time: float = 0.0


class LiveExperiments:
    """One replica's share in the experiments: assigns requests, logs exposures, counts each arm's requests.

    ledger: the state of the experiments; its `follow` runs in the background. guard: watches the guardrails;
        its `run` runs in the background. windows: of the arms; their `run` runs in the background.
    writer: stores exposures.
    store: the database; a SQLite file is made with the first experiment.
    nodes: returns the number of nodes that serve together, each with files of its own, or raises
        TimeoutError.
    clock: returns Unix seconds. monotonic: returns seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        nodes: Callable[[], int] = lambda: 1,
        clock: Clock = time.time,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self.metrics = metrics
        self._nodes = nodes
        store.on_failure = self._database_failed
        self.ledger = Ledger(store, metrics, clock=clock, monotonic=monotonic)
        self.writer = Writer(store, metrics)
        self.windows = Windows(self.ledger)
        self.guard = GuardrailWatcher(self.ledger, self.windows.counts)
        self._shown: set[str] = set()  # the experiments that have gauges
        self._seen = LeastRecentlyUsed[tuple[str, str, str], None]()  # experiment, unit and arm
        self._next_warning = -math.inf  # of a failed arm, on the monotonic clock

    def check(
        self,
        configs: tuple[ExperimentConfig, ...],
        config_version: str = "",
        variants: ScoreKinds | None = None,
    ) -> None:
        """Raise ValueError if a config cannot be put in force, as `Ledger.check` and `check_nodes` do.

        variants: the kind of score of each; None: any variant exists.
        """
        if configs:
            self.check_nodes()
        self.ledger.check(Declared(configs, variants), config_version)

    def apply(
        self,
        configs: tuple[ExperimentConfig, ...],
        config_version: str,
        *,
        variants: ScoreKinds | None = None,
        definitions: Mapping[str, str] | None = None,
        may_start: bool = True,
    ) -> None:
        """Put a config in force. Blocks until the log has it. Raises ValueError or TimeoutError if it cannot.

        definitions: what each variant computes with: a text that changes if that does.
        """
        is_start = not self.ledger.config_version
        if is_start:
            self.ledger.refresh()  # reads which experiments were started without a file
        if configs or (is_start and self.ledger.assigner.experiments):
            self.check_nodes()
        declared = Declared(configs, variants, definitions or {})
        self.ledger.apply(declared, config_version, may_start=may_start)
        self.writer.start()

    def check_nodes(self) -> None:
        """Raise ValueError if several nodes serve, and each would keep experiments of its own.

        Raises TimeoutError if the nodes cannot be counted now. Blocks.
        """
        if not self.ledger.store.is_file:
            return
        nodes = self._nodes()
        if nodes > 1:
            raise ValueError(
                f"experiments: {nodes} nodes serve together, and each would keep results of its own in a "
                "SQLite file; set HEADROOM_DATABASE_URL to a PostgreSQL"
            )

    async def close(self, timeout_s: float) -> None:
        """Store the buffered records within the timeout, and end."""
        await asyncio.to_thread(self.ledger.flush)
        unstored = await asyncio.to_thread(self.writer.close, timeout_s)
        if unstored:  # the metric that counts them ends with this process
            logger.warning(
                "%d rows (exposures and lists) had not reached the database when this replica stopped, and "
                "are lost",
                unstored,
            )
        await asyncio.to_thread(self.windows.close)
        await asyncio.to_thread(self.ledger.close)

    def route(
        self, assigner: Assigner, unit: str | None, arm: str | None = None, experiment: str | None = None
    ) -> Route:
        """Return the variant for a request that names neither variant nor mask. Never blocks.

        arm, experiment: those that the caller chose, if it did. Raises InvalidRequest for wrong ones.
        """
        assigned = None
        if unit is not None and arm is not None:
            assigned = assigner.choose(unit, arm, experiment)
        elif unit is not None:
            assigned = assigner.assign(unit)
        if assigned is None:
            return Route(assigner.shipped)
        return Route(assigned.variant, assigned, unit or "", self.ledger.clock())

    def succeeded(self, route: Route, elapsed: float, *scores: Callable[[], Scores]) -> None:
        """Log that the variants of the request's arms answered it, `elapsed` seconds after it came.

        scores: return the scores of each of `Assigned.arms`.
        """
        self._record(route, elapsed, scores=scores)

    def failed(self, route: Route, elapsed: float, arms: Collection[str] | None = None) -> None:
        """Log that variants failed a request, and that nothing answered in their place.

        arms: those whose variants failed; None: all that the request was scored under.
        """
        assert route.assigned is not None
        self._record(route, elapsed, failed=route.assigned.arms if arms is None else arms)

    def fell_back(self, route: Route, elapsed: float, error: Exception) -> None:
        """Log that the arm's variant failed a request, and that the control's variant answered it.

        Of an interleaved request, it is the treatment's that failed.
        """
        assigned = route.assigned
        assert assigned is not None
        arm = assigned.arms[-1]
        self._record(route, elapsed, failed=[arm])
        self.metrics.count("experiment_fallbacks_total", assigned.experiment, arm)
        now = self.ledger.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + WARNING_SECONDS
            logger.warning("experiment %s: arm %s failed: %r", assigned.experiment, arm, error)

    def show(
        self,
        route: Route,
        drawn: Draw,
        places: Sequence[int],
        titles: int,
        ids: Sequence[str] | None,
        query_id: str | None = None,
    ) -> str:
        """Hand an interleaved answer to the writer, and return its impression's id.

        places: the titles that the answer shows, in the drawn order. titles: how many the request has.
        ids: of the request's titles. query_id: the caller's own id of the list.
        """
        assigned = route.assigned
        assert assigned is not None
        assert assigned.interleaved is not None
        team_by_index = dict(zip(drawn.order, drawn.teams, strict=True))
        teams = [NOT_SHOWN] * titles
        for index in places:
            teams[index] = team_by_index[index]
        impression = impression_id(assigned.experiment, route.unit, query_id)
        self.writer.put(
            Impression(
                experiment=assigned.experiment,
                id=impression,
                unit=route.unit,
                time=route.time,
                config_version=self.ledger.config_version,
                teams_by_index="".join(teams),
                places=tuple(places),
                ids=None if ids is None else tuple(ids),
                query_id=query_id,
            )
        )
        rankings = "equal" if set(teams) <= {SHARED, NOT_SHOWN} else "different"
        self.metrics.count("interleaved_total", assigned.experiment, rankings)
        return impression

    def abandoned(self, route: Route, elapsed: float, *, late: bool) -> None:
        """Log that the client no longer waits for the answer. late: its deadline passed, which is an error.

        A client that hung up says something about the arm only if it had already waited too long. Its unit
        is exposed in any case, because a slow arm loses more clients.
        """
        assigned = route.assigned
        experiment = None if assigned is None else self.ledger.experiments.get(assigned.experiment)
        limit_ms = None if experiment is None else experiment.config.guardrails.p99_ms
        if assigned is not None and (late or (limit_ms is not None and elapsed * 1000 > limit_ms)):
            self._record(route, elapsed, failed=assigned.arms if late else ())
        else:
            self._expose(route)

    def shadow_result(self, result: ShadowResult) -> None:
        """Hand a paired comparison to the writer, unless exposures need the room."""
        if self.writer.failure is None and self.writer.depth < SHADOW_DEPTH:
            self.writer.put(result)
        else:
            self.metrics.count("shadow_results_lost_total")

    def show_gauges(self) -> None:
        """Set the gauges of each experiment: the share of units that it should expose, whether it waits, and
        the p-value of its sample ratio.

        Those of an experiment that is no longer there become 0, or no number.
        """
        names = set()
        for experiment in self.ledger.assigner.experiments:
            name = experiment.config.name
            names.add(name)
            is_pending = not (experiment.is_running or experiment.is_over)
            p = running_p(experiment, self.ledger.exposures(name))
            self._set_gauges(name, is_pending, experiment.exposed_share, math.nan if p is None else p)
            if experiment.is_running:  # Prometheus sees no increase if the first value is already 1
                self.metrics.series("experiment_requests_total", name)
                for guardrail in GUARDRAILS:
                    self.metrics.series("experiment_rollbacks_total", name, guardrail)
        for gone in self._shown - names:
            self._set_gauges(gone, False, 0.0, math.nan)
        self._shown = names

    def _set_gauges(self, name: str, is_pending: bool, share: float, p: float) -> None:
        self.metrics.set_gauge("experiment_pending", is_pending, name)
        self.metrics.set_gauge("experiment_share", share, name)
        self.metrics.set_gauge("sample_ratio_p", p, name)

    def _database_failed(self, reason: str) -> None:
        self.metrics.count("experiment_database_errors_total")
        self.metrics.notify_operator(
            f"the experiments' database fails, and outcomes are refused until it works: {reason}"
        )

    def _expose(self, route: Route) -> None:
        assigned = route.assigned
        if assigned is None:
            return
        self.metrics.count("experiment_requests_total", assigned.experiment)
        member = (assigned.experiment, route.unit, assigned.arm)
        is_seen = member in self._seen
        self._seen.put(member, None, limit=MAX_SEEN)
        if is_seen:
            return
        exposure = Exposure(
            experiment=assigned.experiment,
            unit=route.unit,
            arm=assigned.arm,
            bucket=NO_BUCKET if assigned.is_chosen else assigned.bucket,
            time=route.time,
            config_version=self.ledger.config_version,
            slot=None if assigned.is_chosen else bucket(LAYER_SALT, route.unit),
        )
        if not self.writer.put(exposure):
            self._seen.remove(member)  # the unit's next request tries again

    def _record(
        self,
        route: Route,
        elapsed: float,
        *,
        scores: Sequence[Callable[[], Scores]] = (),
        failed: Collection[str] = (),
    ) -> None:
        """Log the exposure, and count the request for the guardrails of each arm that it was scored under.

        scores: of each of these arms, or empty. failed: those whose variants failed.
        """
        self._expose(route)
        assigned = route.assigned
        if assigned is None:
            return
        now = self.ledger.monotonic()
        for arm, scores_of_arm in zip_longest(assigned.arms, scores):
            window = self.windows.of(assigned.experiment, arm)
            if window is not None:
                window.record(now, elapsed, unit=route.unit, scores=scores_of_arm, is_error=arm in failed)
