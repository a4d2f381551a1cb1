"""Warms the score store: scores the pairs of a file that it does not know, when the device has nothing else
to do."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from math import inf
from pathlib import Path

from headroom.models.errors import ModelError
from headroom.models.quality.labelled import read_pairs
from headroom.service.engine.request import Deadline
from headroom.service.errors import DeviceFailed, Draining, QueueFull, ServiceError
from headroom.service.observe.metrics import Metrics
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.scoring.catalog import Catalog
from headroom.service.scoring.score import Scorer

logger = logging.getLogger("headroom.store")

AT_ONCE = 32
"""Pairs that are scored together."""

PAUSE_S = 1.0
"""While the queue is full, or the store cannot be used yet, the next pairs wait for this time."""


class Warming:
    """Scores the pairs of a file under the config's default variant, once.

    catalog: returns the config in force. keeps_all: returns whether the store keeps what is computed now.
    """

    def __init__(
        self,
        path: Path,
        scorer: Scorer,
        catalog: Callable[[], Catalog],
        metrics: Metrics,
        keeps_all: Callable[[], bool],
    ) -> None:
        self._path = path
        self._scorer = scorer
        self._catalog = catalog
        self._metrics = metrics
        self._keeps_all = keeps_all
        self._is_done = False

    async def run(self) -> None:
        """Score what is not known yet, and then wait to be cancelled."""
        if not self._is_done:
            try:
                await self._warm(await asyncio.to_thread(read_pairs, self._path))
            except ModelError as error:
                self._metrics.notify_operator(f"score_store_warm: {error}; nothing is warmed")
            except Draining:  # the rest is for the next start
                pass
            self._is_done = True
        await asyncio.Event().wait()

    async def _warm(self, pairs: list[tuple[str, str]]) -> None:
        parts = [pairs[start : start + AT_ONCE] for start in range(0, len(pairs), AT_ONCE)]
        random.shuffle(parts)  # so that the replicas of a node share the work
        left_out = 0
        for part in parts:
            try:
                await self._score(part)
            except (DeviceFailed, Draining):
                raise
            except ServiceError:
                left_out += await self._score_each(part)
        if left_out:
            self._metrics.notify_operator(
                f"score_store_warm: {left_out} of {len(pairs)} pairs of {self._path} cannot be scored"
            )
        logger.info("score_store_warm: %d pairs of %s are scored", len(pairs) - left_out, self._path)

    async def _score_each(self, pairs: list[tuple[str, str]]) -> int:
        """Score pairs one by one, because one of them cannot be scored; return how many cannot."""
        left_out = 0
        for pair in pairs:
            try:
                await self._score([pair])
            except (DeviceFailed, Draining):
                raise
            except ServiceError as error:
                left_out += 1
                logger.warning("score_store_warm: a pair is left out: %s", error)
        return left_out

    async def _score(self, pairs: list[tuple[str, str]]) -> None:
        """Score pairs when the store keeps them and the queue has room."""
        request = ScoreRequest(pairs=pairs)
        while True:
            while not self._keeps_all():
                await asyncio.sleep(PAUSE_S)
            try:
                await self._scorer.columns(
                    request,
                    [self._catalog().default],
                    Deadline(time.monotonic(), inf),
                    use_kept=True,
                    background=True,
                )
            except QueueFull:
                await asyncio.sleep(PAUSE_S)
            else:
                return
