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
from headroom.service.errors import DeviceFailed, Draining, InvalidRequest, ServiceError
from headroom.service.observe.metrics import Metrics
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.scoring.catalog import Catalog
from headroom.service.scoring.score import Scorer

logger = logging.getLogger("headroom.store")

AT_ONCE = 32
"""Pairs that are scored together."""

PAUSE_S = 1.0
"""After a refusal, such as a full queue, the next pairs wait for this time."""


class Warming:
    """Scores the pairs of a file under the config's default variant, once.

    catalog: returns the config in force.
    """

    def __init__(self, path: Path, scorer: Scorer, catalog: Callable[[], Catalog], metrics: Metrics) -> None:
        self._path = path
        self._scorer = scorer
        self._catalog = catalog
        self._metrics = metrics
        self._is_done = False

    async def run(self) -> None:
        """Score what is not known yet, and then wait to be cancelled."""
        if not self._is_done:
            try:
                await self._warm(await asyncio.to_thread(read_pairs, self._path))
            except ModelError as error:
                self._metrics.notify_operator(f"score_store_warm: {error}; nothing is warmed")
            self._is_done = True
        await asyncio.Event().wait()

    async def _warm(self, pairs: list[tuple[str, str]]) -> None:
        parts = [pairs[start : start + AT_ONCE] for start in range(0, len(pairs), AT_ONCE)]
        random.shuffle(parts)  # so that the replicas of a node share the work
        for part in parts:
            request = ScoreRequest(pairs=part)
            while True:
                now = time.monotonic()
                try:
                    await self._scorer.columns(
                        request, [self._catalog().default], Deadline(now, inf), use_kept=True, background=True
                    )
                except (DeviceFailed, Draining):
                    raise
                except InvalidRequest as error:
                    logger.warning("score_store_warm: some pairs are left out: %s", error)
                except ServiceError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                break
        logger.info("the score store knows all %d pairs of %s", len(pairs), self._path)
