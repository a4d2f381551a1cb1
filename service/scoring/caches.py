"""The two levels of the score cache: a replica's memory, and a server that replicas and nodes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headroom.service.config.settings import Settings
from headroom.service.engine.threads import PairRow
from headroom.service.observe.metrics import Metrics
from headroom.service.scoring.cache import ScoreCache
from headroom.service.scoring.shared_cache import SharedCache


@dataclass(slots=True)
class Missing:
    """The rows that are to be computed, and the keys under which their scores are to be cached.

    memory_keys, shared_keys: one per row; empty without that level.
    """

    rows: list[PairRow]
    memory_keys: list[bytes] = field(default_factory=list)
    shared_keys: list[bytes] = field(default_factory=list)


class ScoreCaches:
    """The scores that were computed before. It belongs to the event loop."""

    def __init__(self, memory: ScoreCache | None, shared: SharedCache | None, metrics: Metrics) -> None:
        self._memory = memory
        self._shared = shared
        self._metrics = metrics

    async def recall(self, rows: Sequence[PairRow]) -> Missing:
        """Give the rows whose scores are known their results; return the others."""
        missing = Missing(list(rows))
        if self._memory is not None:
            unknown = self._memory.recall(rows)
            missing = Missing([row for _, row in unknown], [key for key, _ in unknown])
        if self._shared is not None and missing.rows:
            missing = await self._recall_shared(self._shared, missing)
        self._metrics.count("cache_total", "hit", by=len(rows) - len(missing.rows))
        self._metrics.count("cache_total", "miss", by=len(missing.rows))
        return missing

    async def _recall_shared(self, shared: SharedCache, missing: Missing) -> Missing:
        """Ask the server for the rows that the memory lacks; return those that it lacks, too."""
        keys = await shared.recall(missing.rows)
        if self._memory is not None:
            asked = zip(missing.memory_keys, missing.rows, strict=True)
            self._memory.keep([(key, row) for key, row in asked if row.result is not None])
        unknown = [index for index, row in enumerate(missing.rows) if row.result is None]
        self._metrics.count("shared_cache_total", "hit", by=len(missing.rows) - len(unknown))
        self._metrics.count("shared_cache_total", "miss", by=len(unknown))
        return Missing(
            [missing.rows[index] for index in unknown],
            [missing.memory_keys[index] for index in unknown if missing.memory_keys],
            [keys[index] for index in unknown],
        )

    def keep(self, missing: Missing) -> None:
        """Cache the scores of rows that were computed."""
        if self._memory is not None:
            self._memory.keep(list(zip(missing.memory_keys, missing.rows, strict=True)))
        if self._shared is not None:
            self._shared.keep(missing.rows, missing.shared_keys)


def score_caches(settings: Settings, shared: SharedCache | None, metrics: Metrics) -> ScoreCaches | None:
    """Return the cache that the settings ask for; None if they ask for none."""
    if not settings.score_cache_size and shared is None:
        return None
    memory = ScoreCache(settings.score_cache_size) if settings.score_cache_size else None
    return ScoreCaches(memory, shared, metrics)
