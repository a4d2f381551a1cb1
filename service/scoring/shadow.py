"""Shadow scoring: scores some requests again, under every arm, when the device has nothing else to do.

The user's answer is out before a shadow row runs. A request waits in a short line until the scheduler is
idle; under load the line overflows and the oldest are dropped. Then it runs in batches that take about
`PASS_SECONDS`. They do not go through the scheduler's queue: admission does not count them, and a new request
waits for one of them at most. Arms that can share a batch do, so the same pairs are compared at the same
moment; a sliced variant runs in its own as it does for users.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from service.engine.scheduler import Batch, Item
from service.engine.threads import Lane, Outcome, RowScore, Work
from service.experiments.analysis.paired import paired
from service.experiments.definition.events import ShadowResult
from service.experiments.definition.fields import Attribute
from service.experiments.definition.state import IDLE
from service.experiments.online.live import LiveExperiments
from service.experiments.online.observer import ShadowFate
from service.schemas.requests import ScoreRequest
from service.scoring.catalog import Catalog, Variant
from service.scoring.shadow_arms import Arm, Job, Step, steps

logger = logging.getLogger("headroom.shadow")

MAX_JOBS = 64
MAX_CHARS = 2_000_000
"""The limits on what waits: requests, and characters of them all."""

IDLE_POLL_SECONDS = 0.005
PASS_SECONDS = 0.02
FIRST_TOKENS = 64
"""The size of the first batch, before the speed of batches is known."""


class Queue(Protocol):
    """The scheduler, as this file uses it."""

    @property
    def queued_tokens(self) -> int: ...

    @property
    def in_flight_items(self) -> int: ...


class Shadow:
    """Draws requests and scores them under every arm. Belongs to the event loop.

    Args:
        queue: the scheduler, which is asked whether anybody's request waits or runs.
        run: one forward pass.
        budget_tokens: the largest batch.
        draw: a number in [0, 1), independent of unit and arm.
    """

    def __init__(
        self,
        experiments: LiveExperiments,
        queue: Queue,
        run: Callable[[Batch[Work]], Awaitable[Sequence[Outcome | Exception]]],
        budget_tokens: int,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._experiments = experiments
        self._queue = queue
        self._run = run
        self._budget_tokens = budget_tokens
        self._batch_tokens = FIRST_TOKENS
        self._draw = draw
        self._jobs: deque[Job] = deque()
        self._chars = 0
        self._work = asyncio.Event()

    def offer(
        self,
        catalog: Catalog,
        request: ScoreRequest,
        attributes: Mapping[str, Attribute],
    ) -> None:
        """Draw whether to score this request again, later. Never waits."""
        experiments = self._experiments
        for config in catalog.assigner.shadowed(attributes, experiments.ledger.standings):
            if self._draw() < config.shadow:
                self._enqueue(Job(config, catalog, request, request.texts()))

    async def run(self) -> None:
        """Score the drawn requests, one after the other, until cancelled."""
        while True:
            while not self._jobs:
                self._work.clear()
                await self._work.wait()
            await self._idle()
            if self._jobs:
                job = self._pop()
                try:
                    fate: ShadowFate = "scored" if await self._score(job) else "dropped"
                    self._experiments.observer.shadowed(job.experiment.name, fate)
                except Exception as error:
                    # The guardrails act on an arm that cannot score; here it only has no result.
                    logger.warning("shadow scoring for %s failed: %s", job.experiment.name, error)
                    self._experiments.observer.shadowed(job.experiment.name, "failed")

    def _enqueue(self, job: Job) -> None:
        self._jobs.append(job)
        self._chars += job.chars
        while len(self._jobs) > MAX_JOBS or (self._chars > MAX_CHARS and self._jobs):
            dropped = self._pop()
            self._experiments.observer.shadowed(dropped.experiment.name, "dropped")
        self._work.set()

    def _pop(self) -> Job:
        job = self._jobs.popleft()
        self._chars -= job.chars
        return job

    async def _idle(self) -> None:
        """Wait until no request is queued or running."""
        while self._queue.queued_tokens or self._queue.in_flight_items:
            await asyncio.sleep(IDLE_POLL_SECONDS)

    async def _score(self, job: Job) -> bool:
        """Score a request under every arm. Returns False if its experiment compares nothing any more."""
        standing = self._experiments.ledger.standings.get(job.experiment.name, IDLE)
        arms = {
            arm.name: Arm(job.catalog.variants[arm.variant], job.texts)
            for arm in job.experiment.arms
            if arm.name not in standing.rolled_back
        }
        if not standing.is_running or len(arms) < 2:
            return False
        while due := {name: pairs for name, arm in arms.items() if (pairs := arm.due())}:
            await self._score_round(job, arms, due)
            for name in due:
                arms[name].end_round()
        for name in arms:
            if name != job.experiment.control:
                self._report(job, name, arms)
        return True

    async def _score_round(
        self, job: Job, arms: Mapping[str, Arm], due: Mapping[str, Mapping[int, Variant]]
    ) -> None:
        """Score the pairs that are due in each arm: all of them, or what a stage of a cascade kept."""
        portion: list[Step] = []
        tokens = 0
        for pair in range(len(job.texts)):
            variants = {name: pairs[pair] for name, pairs in due.items() if pair in pairs}
            for step in await steps(job, pair, variants):
                portion.append(step)
                tokens += sum(item.tokens for item in step.items.values())
                if tokens >= self._batch_tokens:
                    await self._score_portion(arms, portion)
                    portion, tokens = [], 0
        await self._score_portion(arms, portion)

    async def _score_portion(self, arms: Mapping[str, Arm], portion: Sequence[Step]) -> None:
        """Score about a batch of rows under every arm."""
        lanes: dict[Lane, list[tuple[Arm, int, Item[Work]]]] = {}
        for name, arm in arms.items():
            for step in portion:
                if name in step.items:
                    item = step.items[name]
                    assert isinstance(item.lane, Lane)
                    lanes.setdefault(item.lane, []).append((arm, step.pair, item))
        for lane, rows in lanes.items():
            scores, seconds = await self._pass(lane, [item for _, _, item in rows])
            for (arm, pair, item), score in zip(rows, scores, strict=True):
                arm.add(pair, item.payload.pair, score)
                arm.seconds += seconds / len(rows)

    async def _pass(self, lane: Lane, items: Sequence[Item[Work]]) -> tuple[list[RowScore], float]:
        """Run one batch once nobody else wants the device; return its rows' scores and its seconds."""
        await self._idle()
        tokens = sum(item.tokens for item in items)
        started = time.monotonic()
        outcomes = await self._run(Batch(lane, tuple(items), tokens))
        seconds = time.monotonic() - started
        fitting = tokens * PASS_SECONDS / max(seconds, 1e-6)
        self._batch_tokens = max(1, min(self._budget_tokens, int((self._batch_tokens + fitting) / 2)))
        scores = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            assert isinstance(outcome, RowScore)
            scores.append(outcome)
        return scores, seconds

    def _report(self, job: Job, name: str, arms: Mapping[str, Arm]) -> None:
        control = job.experiment.control
        before, after = arms[control], arms[name]
        difference = paired(
            before.relevance(),
            after.relevance(),
            job.request.grades,
            (before.raw_scores(), after.raw_scores()),
        )
        self._experiments.router.shadow_result(
            ShadowResult(
                experiment=job.experiment.name,
                arm=name,
                time=self._experiments.ledger.clock(),
                mean_delta=difference.mean_delta,
                abs_deltas=difference.abs_deltas,
                rank_correlation=difference.rank_correlation,
                top10_overlap=difference.top10_overlap,
                ndcg_control=difference.ndcg_control,
                ndcg_arm=difference.ndcg_arm,
                control_seconds=arms[control].seconds,
                arm_seconds=arms[name].seconds,
                unit=job.request.unit,
            )
        )
