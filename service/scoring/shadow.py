"""Shadow scoring: scores some requests again, under every arm, when the device has nothing else to do.

The user's answer is out before a shadow row runs. A request waits in a short line until the scheduler is
idle; under load the line overflows and the oldest are dropped. Then it runs in batches of about
`PASS_SECONDS`, past the scheduler's queue, so that admission does not count them and a new request waits
for one of them at most. Arms that can share a batch do, so the same pairs are compared at the same moment; a
sliced variant runs in its own as it does for users.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.chunks import LongTitles, encode_chunks
from models.checkpoint.tokenizer import EncodedPair
from service.batching.scheduler import Batch, Item
from service.engine import Lane, Outcome, Row, RowScore, Work
from service.experiments.analysis.paired import paired
from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.events import ShadowResult
from service.experiments.definition.fields import Attribute
from service.experiments.definition.state import IDLE
from service.experiments.online.live import LiveExperiments
from service.schemas.requests import ScoreRequest
from service.scoring.catalog import Catalog, Variant

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


@dataclass(frozen=True, slots=True)
class Job:
    """A request to score once more, under the config that it was answered under."""

    experiment: ExperimentConfig
    catalog: Catalog
    texts: Sequence[tuple[str, str]]
    long_titles: LongTitles | None
    grades: Sequence[int] | None

    @property
    def chars(self) -> int:
        return sum(len(query) + len(title) for query, title in self.texts)


@dataclass(slots=True)
class _Arm:
    """The best score that one arm's variant gave a row of each of a job's pairs so far."""

    scores: list[np.float32] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, pair: int, score: np.float32) -> None:
        """Note the score of a row of a pair; pairs come in their order."""
        if pair == len(self.scores):
            self.scores.append(score)
        else:
            self.scores[pair] = max(self.scores[pair], score)


class _Step(NamedTuple):
    """The rows that are scored at the same moment, by arm: a pair, or one chunk of its title."""

    pair: int
    rows: Mapping[str, Row]


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
                self._enqueue(Job(config, catalog, request.texts(), request.long_titles, request.grades))

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
                    await self._score(job)
                    self._experiments.observer.shadowed(job.experiment.name, "scored")
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

    async def _score(self, job: Job) -> None:
        standing = self._experiments.ledger.standings.get(job.experiment.name, IDLE)
        arms = {
            arm.name: job.catalog.variants[arm.variant]
            for arm in job.experiment.arms
            if arm.name not in standing.rolled_back
        }
        if not standing.is_running or len(arms) < 2:
            return
        scored = {name: _Arm() for name in arms}
        portion: list[_Step] = []
        tokens = 0
        for pair in range(len(job.texts)):
            for step in await _steps(job, arms, pair):
                portion.append(step)
                tokens += sum(len(row.pair) for row in step.rows.values())
                if tokens >= self._batch_tokens:
                    await self._score_portion(arms, portion, scored)
                    portion, tokens = [], 0
        await self._score_portion(arms, portion, scored)
        relevance = {
            name: arms[name].classifier.relevance(np.array(arm.scores, dtype=np.float32))
            for name, arm in scored.items()
        }
        for name in scored:
            if name != job.experiment.control:
                self._report(job, name, relevance, scored)

    async def _score_portion(
        self, arms: Mapping[str, Variant], portion: Sequence[_Step], scored: Mapping[str, _Arm]
    ) -> None:
        """Score about a batch of rows under every arm."""
        lanes: dict[Lane, list[str]] = {}
        for name, variant in arms.items():
            lanes.setdefault(variant.lane, []).append(name)
        for lane, names in lanes.items():
            rows = [(name, step) for name in names for step in portion if name in step.rows]
            if not rows:
                continue
            scores, seconds = await self._pass(lane, [step.rows[name] for name, step in rows])
            for (name, step), score in zip(rows, scores, strict=True):
                scored[name].add(step.pair, score)
                scored[name].seconds += seconds / len(rows)

    async def _pass(self, lane: Lane, rows: Sequence[Row]) -> tuple[list[np.float32], float]:
        """Run one batch once nobody else wants the device; return its scores and the seconds it took."""
        await self._idle()
        items: tuple[Item[Work], ...] = tuple(Item(len(row.pair), lane, row) for row in rows)
        tokens = sum(item.tokens for item in items)
        started = time.monotonic()
        outcomes = await self._run(Batch(lane, items, tokens))
        seconds = time.monotonic() - started
        fitting = tokens * PASS_SECONDS / max(seconds, 1e-6)
        self._batch_tokens = max(1, min(self._budget_tokens, int((self._batch_tokens + fitting) / 2)))
        scores = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            assert isinstance(outcome, RowScore)
            scores.append(outcome.score)
        return scores, seconds

    def _report(
        self,
        job: Job,
        name: str,
        relevance: Mapping[str, NDArray[np.float32]],
        scored: Mapping[str, _Arm],
    ) -> None:
        control = job.experiment.control
        difference = paired(relevance[control], relevance[name], job.grades)
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
                control_seconds=scored[control].seconds,
                arm_seconds=scored[name].seconds,
            )
        )


async def _steps(job: Job, arms: Mapping[str, Variant], pair: int) -> list[_Step]:
    """Encode a job's pair. Checkpoints may cut its title into different numbers of chunks."""
    rows: dict[str, Sequence[EncodedPair]] = {}
    for variant in arms.values():
        if variant.checkpoint in rows:
            continue
        tokenizer, texts = variant.classifier.tokenizer, [job.texts[pair]]
        if job.long_titles is None:
            rows[variant.checkpoint] = tokenizer.encode(texts)
        else:  # a title may be megabytes long, and is read whole
            (chunked,) = await asyncio.to_thread(encode_chunks, tokenizer, texts, job.long_titles)
            rows[variant.checkpoint] = chunked.rows
    return [
        _Step(
            pair,
            {
                name: Row(rows[variant.checkpoint][chunk], variant.mask)
                for name, variant in arms.items()
                if chunk < len(rows[variant.checkpoint])
            },
        )
        for chunk in range(max(map(len, rows.values())))
    ]
