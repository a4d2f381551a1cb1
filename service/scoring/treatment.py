"""The treatment of a request that names no variant: an experiment's arm, or the default.

Assign the unit to an arm, score under the arm's variant, let the control's variant answer if that fails, and
report to the experiments what became of it. No other file tells them about requests. A unit of an interleaved
experiment is scored under both arms' variants together, and answered in one order that is drawn from both.

While the queue is long, the variant of the config's `degrade` answers in place of the default. A unit in an
arm keeps its arm's variant. If another variant answered, the result could not count for the arm. It could not
be ignored either: the unit saw it, so its later behaviour would no longer show the arm's effect.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headroom.service.engine.request import Deadline
from headroom.service.errors import (
    DeadlineExceeded,
    DeviceFailed,
    Draining,
    InvalidRequest,
    QueueFull,
    RateLimited,
    as_service_error,
)
from headroom.service.experiments.assignment import Assigned, Assigner
from headroom.service.experiments.interleaving import Draw
from headroom.service.experiments.live import LiveExperiments, Route
from headroom.service.observe.access_log import current
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import Assignment, ScoreResponse, ScoreResult
from headroom.service.scoring.catalog import Catalog, Variant
from headroom.service.scoring.column import Computed
from headroom.service.scoring.cutoff import check_cutoff
from headroom.service.scoring.interleave import draw_order, merge
from headroom.service.scoring.original import AnyColumn
from headroom.service.scoring.score import Scorer
from headroom.service.scoring.shadow import Shadow
from headroom.service.scoring.tokens import INLINE_CHARS, read_to_the_end

# Errors that no arm causes and that a retry would make worse; a request that ends with one exposes nobody.
_CAUSED_BY_NO_ARM = (QueueFull, RateLimited, Draining, DeviceFailed)


class Treatment:
    """Scores requests under the variants that the experiments choose.

    queued_tokens: returns the tokens that wait for the device.
    """

    def __init__(
        self, scorer: Scorer, experiments: LiveExperiments, shadow: Shadow, queued_tokens: Callable[[], int]
    ) -> None:
        self._scorer = scorer
        self._experiments = experiments
        self._shadow = shadow
        self._queued_tokens = queued_tokens

    async def score(
        self,
        request: ScoreRequest,
        catalog: Catalog,
        deadline: Deadline,
    ) -> ScoreResponse:
        """Score under the variant or mask that the request names, else under the experiments' choice."""
        if request.unit is not None:
            self._experiments.metrics.count("unit_requests_total")
        if request.variant is not None or request.head_mask is not None:
            variant = await self._scorer.choose(catalog, request.variant, request.head_mask)
            return await self._scorer.score(request, variant, deadline)
        assigner = self._experiments.ledger.assigner
        route = Route()
        if assigner.experiments or request.arm is not None:
            route = self._experiments.route(assigner, request.unit, request.arm, request.experiment)
        if route.assigned is not None:
            current().set_arm(route.assigned.experiment, route.assigned.arm)
            _check_cutoff_of_arms(request, catalog, assigner, route.assigned.experiment)
        if route.assigned is not None and route.assigned.interleaved is not None:
            answer = await self._interleave(request, catalog, route, deadline)
        elif route.assigned is None:
            wanted = catalog.choose(route.variant, None)
            variant = self._stand_in(catalog, request) or wanted
            is_degraded = variant.name != wanted.name
            answer = await self._scorer.score(request, variant, deadline, degraded=is_degraded)
        else:
            answer = await self._score_in_arm(request, catalog, route, deadline)
        if assigner.experiments:
            self._shadow.offer(catalog, request)
        return answer

    def _stand_in(self, catalog: Catalog, request: ScoreRequest) -> Variant | None:
        """Return the variant of `degrade` while the queue is long, else None.

        `original` stands in only for orders: it has no labels and no scores to give.
        """
        degrade = catalog.config.degrade
        if degrade is None or self._queued_tokens() <= degrade.above_queue_tokens:
            return None
        variant = catalog.variants[degrade.variant]
        return None if variant.is_original and request.ranked_query() is None else variant

    async def _score_in_arm(
        self,
        request: ScoreRequest,
        catalog: Catalog,
        route: Route,
        deadline: Deadline,
    ) -> ScoreResponse:
        """Score under the arm's variant; if it fails, under the control's."""
        assigned = route.assigned
        assert assigned is not None
        try:
            variant = catalog.choose(assigned.variant, None)
            answer = await self._scorer.score(request, variant, deadline, assigned)
        except _CAUSED_BY_NO_ARM:
            raise
        except (DeadlineExceeded, asyncio.CancelledError):
            self._experiments.abandoned(route, deadline.elapsed(), late=deadline.is_close())
            raise
        except Exception as error:
            answer = await self._fall_back(request, catalog, route, deadline, error)
            self._experiments.fell_back(route, deadline.elapsed(), error)
            return answer
        self._experiments.succeeded(route, deadline.elapsed(), _relevance(variant, answer.results))
        return answer

    async def _fall_back(
        self,
        request: ScoreRequest,
        catalog: Catalog,
        route: Route,
        deadline: Deadline,
        error: Exception,
    ) -> ScoreResponse:
        """Score under the control's variant after the arm's raised `error`.

        Raises `error` if the arm is the control, or what the control's variant raises.
        """
        assigned = route.assigned
        try:
            if assigned is None or assigned.fallback is None:
                raise error
            variant = catalog.choose(assigned.fallback, None)
            return await self._scorer.score(request, variant, deadline, assigned)
        except BaseException:
            if as_service_error(error).status >= 500:  # else the control refuses the request as well
                self._experiments.failed(route, deadline.elapsed())
            raise

    async def _interleave(
        self,
        request: ScoreRequest,
        catalog: Catalog,
        route: Route,
        deadline: Deadline,
    ) -> ScoreResponse:
        """Score under both arms' variants, and answer in an order that is drawn from both rankings.

        If the treatment's variant fails, the control's answers alone. Raises InvalidRequest if the answer to
        this request is no order.
        """
        assigned = route.assigned
        assert assigned is not None
        query = _query_of(request, assigned.experiment)
        try:
            variants = [catalog.choose(name, None) for name in (assigned.fallback, assigned.variant)]
            columns, computed = await self._scorer.columns(
                request, variants, deadline, shared=True, may_fail=True
            )
            rankings = [column.results() for column in columns if column.error is None]
            drawn = await self._draw(request, rankings, route, query) if len(rankings) == 2 else None
        except _CAUSED_BY_NO_ARM:
            raise
        except (DeadlineExceeded, asyncio.CancelledError):
            self._experiments.abandoned(route, deadline.elapsed(), late=deadline.is_close())
            raise
        except Exception as error:  # a variant cannot read the texts, or has just left the config
            answer = await self._fall_back(request, catalog, route, deadline, error)
            self._experiments.fell_back(route, deadline.elapsed(), error)
            return answer
        if drawn is None:
            return self._without_treatment(columns, computed, route, deadline)
        return self._show(request, route, columns, rankings, drawn, computed, deadline)

    def _show(
        self,
        request: ScoreRequest,
        route: Route,
        columns: Sequence[AnyColumn],
        rankings: Sequence[list[ScoreResult]],
        drawn: Draw,
        computed: Computed,
        deadline: Deadline,
    ) -> ScoreResponse:
        """Answer in the drawn order, and tell the experiments who was shown what."""
        assigned = route.assigned
        assert assigned is not None
        variants = [column.variant for column in columns]
        for arm, column, results in zip(assigned.arms, columns, rankings, strict=True):
            self._scorer.count(column, results, computed, arm)
        relevance = [_relevance(*ranked) for ranked in zip(variants, rankings, strict=True)]
        self._experiments.succeeded(route, deadline.elapsed(), *relevance)
        control, treatment = rankings
        network = next((variant for variant in variants if not variant.is_original), variants[0])
        results = merge(control, treatment, drawn, network.classifier)
        shown = drawn.order[: request.titles_shown]
        impression = self._experiments.show(route, drawn, shown, len(control), request.ids, request.query_id)
        assignment = _interleaved(assigned, impression=impression)
        answer = self._scorer.answer(results, columns, computed, deadline, assignment)
        answer.dropped = len(control) - len(drawn.order)
        return answer

    async def _draw(
        self, request: ScoreRequest, rankings: Sequence[Sequence[ScoreResult]], route: Route, query: str
    ) -> Draw:
        """Draw the order of the titles that the request wants from both arms' results."""
        assert route.assigned is not None
        assert route.assigned.interleaved is not None
        control, treatment = rankings
        salt = route.assigned.interleaved.salt
        drawing = draw_order(control, treatment, request, salt, route.unit, query)
        if len(query) <= INLINE_CHARS:
            return read_to_the_end(drawing)
        return await self._scorer.off_loop(drawing, len(query))

    def _without_treatment(
        self, columns: Sequence[AnyColumn], computed: Computed, route: Route, deadline: Deadline
    ) -> ScoreResponse:
        """Answer with control's scores, after a variant failed. Raises control's error, if it has one."""
        assigned = route.assigned
        assert assigned is not None
        control, treatment = columns
        if control.error is not None:
            failed = [
                arm for arm, column in zip(assigned.arms, columns, strict=True) if column.error is not None
            ]
            if as_service_error(control.error).status >= 500:
                self._experiments.failed(route, deadline.elapsed(), failed)
            raise control.error
        assert treatment.error is not None
        self._experiments.fell_back(route, deadline.elapsed(), treatment.error)
        results = control.results()
        self._scorer.count(control, results, computed, assigned.arms[0])
        assignment = _interleaved(assigned, fallback=True)
        return self._scorer.answer(results, [control], computed, deadline, assignment)


def _check_cutoff_of_arms(request: ScoreRequest, catalog: Catalog, assigner: Assigner, name: str) -> None:
    """Raise InvalidRequest if an arm's model gives no such score or grade as the request's cut-off.

    A caller does not know which arm answers, and what it asks for is no failure of an arm.
    """
    experiment = assigner.find(name)
    assert experiment is not None
    for arm in experiment.config.arms:
        variant = catalog.variants.get(arm.variant)
        if variant is not None:
            check_cutoff(request, variant)


def _query_of(request: ScoreRequest, experiment: str) -> str:
    """Return the query whose titles are ordered. Raises InvalidRequest if the answer is no such order."""
    query = request.ranked_query()
    if query is None:
        raise InvalidRequest(
            f"is in the interleaved experiment {experiment!r}, which orders the titles of one query; leave "
            "out unit, or send one query and its titles to /v1/score or a rerank route",
            param="unit",
        )
    return query


def _interleaved(assigned: Assigned, *, fallback: bool = False, impression: str | None = None) -> Assignment:
    """Return the assignment to an interleaved experiment, as answers say it."""
    return Assignment(assigned.experiment, assigned.arm, assigned.bucket, fallback, impression)


def _relevance(variant: Variant, results: Sequence[ScoreResult]) -> Callable[[], NDArray[np.float32]]:
    """Return a function that returns a variant's scores of a request, from 0 to 1."""
    classifier = variant.classifier
    return lambda: classifier.relevance(np.array([result.score for result in results], dtype=np.float32))
