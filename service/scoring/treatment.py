"""The treatment of a request that names no variant: an experiment's arm, or the default.

Assign the unit to an arm, score under the arm's variant, let the control's variant answer if that fails, and
report to the experiments what became of it. No other file tells them about requests.

While the queue is long, the variant of the config's `degrade` answers in place of the default. A unit in an
arm keeps its arm's variant. If another variant answered, the result could not count for the arm. It could not
be ignored either: the unit saw it, so its later behaviour would no longer show the arm's effect.
"""

import asyncio
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headroom.service.engine.request import Deadline
from headroom.service.errors import (
    DeadlineExceeded,
    DeviceFailed,
    Draining,
    QueueFull,
    RateLimited,
    as_service_error,
)
from headroom.service.experiments.live import UNROUTED, LiveExperiments, Route
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import ScoreResponse
from headroom.service.scoring.catalog import Catalog, Variant
from headroom.service.scoring.score import Scorer
from headroom.service.scoring.shadow import Shadow

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

    async def score(self, request: ScoreRequest, catalog: Catalog, deadline: Deadline) -> ScoreResponse:
        """Score under the variant or mask that the request names, else under the experiments' choice."""
        if request.variant is not None or request.head_mask is not None:
            variant = await self._scorer.choose(catalog, request.variant, request.head_mask)
            return await self._scorer.score(request, variant, deadline)
        assigner = self._experiments.assigner(catalog.config.assigner)
        route = UNROUTED
        if assigner.experiments:
            route = self._experiments.route(assigner, request.unit)
        if route.assigned is None:
            wanted = catalog.choose(route.variant, None)
            variant = self._stand_in(catalog) or wanted
            is_degraded = variant.name != wanted.name
            answer = await self._scorer.score(request, variant, deadline, degraded=is_degraded)
        else:
            answer = await self._score_in_arm(request, catalog, route, deadline)
        if assigner.experiments:
            self._shadow.offer(catalog, request)
        return answer

    def _stand_in(self, catalog: Catalog) -> Variant | None:
        """Return the variant of `degrade` while the queue is long, else None."""
        degrade = catalog.config.degrade
        if degrade is None or self._queued_tokens() <= degrade.above_queue_tokens:
            return None
        return catalog.variants[degrade.variant]

    async def _score_in_arm(
        self, request: ScoreRequest, catalog: Catalog, route: Route, deadline: Deadline
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
        classifier = variant.classifier
        self._experiments.succeeded(route, deadline.elapsed(), lambda: classifier.relevance(_scores(answer)))
        return answer

    async def _fall_back(
        self, request: ScoreRequest, catalog: Catalog, route: Route, deadline: Deadline, error: Exception
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


def _scores(answer: ScoreResponse) -> NDArray[np.float32]:
    return np.array([result.score for result in answer.results], dtype=np.float32)
