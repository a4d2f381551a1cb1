"""Shadow scoring: scores some requests again, under every arm, when the device has nothing else to do.

The user's answer is out before a shadow row runs. A request waits in a short line; under load the line
overflows and the oldest are dropped. One request at a time is read, and its rows go to the scheduler as
background work. So admission does not count them, and a new request waits for one small batch at most. Arms
that can share a batch do, so the same pairs are compared at the same moment; a sliced variant runs in batches
of its own as it does for users.
"""

import asyncio
import logging
import random
from collections import deque
from dataclasses import dataclass
from math import inf

import numpy as np

from headroom.service.engine.request import Deadline
from headroom.service.errors import DeviceFailed, Draining, QueueFull
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import ShadowResult
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.shadow_report import paired_differences
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.scoring.catalog import Catalog
from headroom.service.scoring.original import AnyColumn
from headroom.service.scoring.score import Scorer

logger = logging.getLogger("headroom.shadow")

MAX_WAITING = 64
MAX_CHARS = 2_000_000
"""The limits on what waits: requests, and characters of them all."""


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """A request to score once more, under the config that it was answered under. chars: of its texts."""

    experiment: ExperimentConfig
    catalog: Catalog
    request: ScoreRequest
    chars: int


class Shadow:
    """Draws requests, whatever their units and arms, and scores them under every arm.

    Belongs to the event loop.
    """

    def __init__(self, experiments: LiveExperiments, scorer: Scorer) -> None:
        self._experiments = experiments
        self._scorer = scorer
        self._waiting: deque[ShadowRequest] = deque()
        self._chars = 0
        self._work = asyncio.Event()

    def offer(self, catalog: Catalog, request: ScoreRequest) -> None:
        """Draw whether to score this request again, later. Never waits."""
        for experiment in self._experiments.ledger.assigner.experiments:
            config = experiment.config
            if experiment.is_running and random.random() < config.shadow:
                chars = sum(len(query) + len(title) for query, title in request.texts())
                self._waiting.append(ShadowRequest(config, catalog, request, chars))
                self._chars += chars
        while len(self._waiting) > MAX_WAITING or self._chars > MAX_CHARS:
            self._count(self._pop(), "dropped")
        self._work.set()

    async def run(self) -> None:
        """Score the drawn requests, one after the other, until cancelled."""
        while True:
            while not self._waiting:
                self._work.clear()
                await self._work.wait()
            drawn = self._pop()
            try:
                self._count(drawn, "scored" if await self._score(drawn) else "dropped")
            except Draining:
                return
            except (QueueFull, DeviceFailed):
                self._count(drawn, "dropped")
            except Exception as error:
                # The guardrails act on an arm that cannot score; here it only has no result.
                logger.warning("shadow scoring for %s failed: %s", drawn.experiment.name, error)
                self._count(drawn, "failed")

    def _count(self, drawn: ShadowRequest, fate: str) -> None:
        self._experiments.metrics.count("shadow_requests_total", drawn.experiment.name, fate)

    def _pop(self) -> ShadowRequest:
        drawn = self._waiting.popleft()
        self._chars -= drawn.chars
        return drawn

    def _arms(self, experiment: ExperimentConfig) -> dict[str, str]:
        """Return the variants of the arms that are compared now, by arm; empty if fewer than two are."""
        state = self._experiments.ledger.experiments.get(experiment.name)
        if state is None or not state.is_running:
            return {}
        arms = {arm.name: arm.variant for arm in experiment.arms if arm.name not in state.rolled_back}
        return arms if len(arms) >= 2 else {}

    async def _score(self, drawn: ShadowRequest) -> bool:
        """Score a request under every arm. Return False if its experiment compares nothing any more."""
        variants = {
            arm: drawn.catalog.choose(variant, None) for arm, variant in self._arms(drawn.experiment).items()
        }
        if not variants:
            return False
        scored, _ = await self._scorer.columns(
            drawn.request, [*variants.values()], Deadline(0.0, inf), background=True
        )
        columns = dict(zip(variants, scored, strict=True))
        # While it waited for an idle device, the experiment may have been stopped or an arm rolled back.
        if self._arms(drawn.experiment).keys() != columns.keys():
            return False
        for arm, column in columns.items():
            if arm != drawn.experiment.control:
                self._report(drawn, arm, columns[drawn.experiment.control], column)
        return True

    def _report(self, drawn: ShadowRequest, arm: str, control: AnyColumn, treatment: AnyColumn) -> None:
        relevance = []
        raw_scores = []
        is_order = control.variant.is_original or treatment.variant.is_original
        for column in (control, treatment):
            results = column.results()
            scores = np.array([result.score for result in results], np.float32)
            relevance.append(scores * 0 if is_order else column.variant.classifier.relevance(scores))
            raw_scores.append(np.array([result.raw_score for result in results]))
        self._experiments.shadow_result(
            ShadowResult(
                experiment=drawn.experiment.name,
                arm=arm,
                time=self._experiments.ledger.clock(),
                seconds_delta=treatment.seconds - control.seconds,
                unit=drawn.request.unit,
                **paired_differences(relevance[0], relevance[1], drawn.request.grades, raw_scores),
            )
        )
