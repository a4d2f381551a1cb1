"""The score cache: what was scored before is not scored again, because search traffic repeats itself.

It has two levels: a replica's memory, and a server that replicas and nodes share (`shared_cache`). A row has
one key for both: a hash of the checkpoint's files (SHA-256), the number format, its mask, and its tokens,
which are what the network reads of a query and a title. So a new checkpoint under the same path, another mask
under the same name, or a longer window never meets an old score, and texts are not stored.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from weakref import WeakKeyDictionary

import numpy as np

from headroom.models.checkpoint.files import digest_of
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.errors import ModelError
from headroom.models.lru import LeastRecentlyUsed
from headroom.models.masks.head_mask import HeadMask
from headroom.service.config.settings import Settings
from headroom.service.engine.threads import PairRow, RowScore, row_scores
from headroom.service.observe.metrics import Metrics
from headroom.service.scoring.shared_cache import SharedCache

logger = logging.getLogger("headroom.score_cache")

KEY_BYTES = 24
"""Nobody finds two rows with the same key of 192 bits, although callers choose texts and masks."""


def weights_key(classifier: Classifier) -> bytes:
    """Return what names a checkpoint's weights and number format in keys. It reads the checkpoint's files.

    Raises OSError or ModelError if they cannot be read.
    """
    assert classifier.directory is not None
    network = classifier.network
    exact = ", deterministic" if network.deterministic else ""
    order = classifier.config.changed_order
    labels = f", labels {order}" if order else ""  # the order of a row's logits
    kind = f"{network.number_format} {network.device.type}{exact}{labels}"
    return f"{digest_of(classifier.directory)} {kind}".encode()


def row_keys(rows: Sequence[tuple[EncodedPair, HeadMask]], weights: bytes) -> list[bytes]:
    """Return the keys of rows that the same weights score."""
    hashes: dict[int, blake2b] = {}
    keys = []
    for pair, mask in rows:
        if id(mask) not in hashes:
            # Not the mask's id: of its 48 bits, another mask with the same can be found.
            digest = blake2b(digest_size=KEY_BYTES)
            for part in (weights, mask.matrix.tobytes(), mask.structure):
                digest.update(len(part).to_bytes(4) + part)
            hashes[id(mask)] = digest
        hashed = hashes[id(mask)].copy()
        hashed.update(pair.query_tokens.to_bytes(4))
        hashed.update(pair.data)
        keys.append(hashed.digest())
    return keys


@dataclass(slots=True)
class Missing:
    """The rows that are to be computed, and the keys under which their scores are to be cached.

    keys: one per row; empty where the row's score is not to be cached.
    """

    rows: list[PairRow]
    keys: list[bytes]


class ScoreCache:
    """The scores that were computed before. It belongs to the event loop.

    size: how many rows the memory keeps; the least recently used is evicted first. shared: the server; None:
    there is none.
    """

    def __init__(self, size: int, shared: SharedCache | None, metrics: Metrics) -> None:
        self.shared = shared
        self._size = size
        self._metrics = metrics
        self._memory = LeastRecentlyUsed[bytes, bytes]()  # float32 logits
        self._weights: WeakKeyDictionary[Classifier, bytes] = WeakKeyDictionary()

    def register(self, classifiers: Iterable[Classifier]) -> None:
        """Let the scores of checkpoints that were just loaded be cached. It reads their files."""
        for classifier in classifiers:
            if classifier in self._weights or classifier.directory is None:
                continue
            try:
                self._weights[classifier] = weights_key(classifier)
            except (OSError, ModelError) as error:
                logger.warning("no scores of %s are cached: %s", classifier.name, error)

    async def recall(self, rows: Sequence[PairRow]) -> Missing:
        """Give the rows whose scores are known their results; return the others."""
        keys = self._keys(rows)
        known = [self._memory.get(key) for key in keys]
        if self.shared is not None:
            asked = [index for index, key in enumerate(keys) if key and known[index] is None]
            values = await self.shared.read([keys[index] for index in asked])
            for index, logits in zip(asked, values, strict=True):
                known[index] = logits
                self._remember(keys[index], logits)
        _set_results(rows, known)
        unknown = [index for index, logits in enumerate(known) if logits is None]
        self._metrics.count("cache_total", "hit", by=len(rows) - len(unknown))
        self._metrics.count("cache_total", "miss", by=len(unknown))
        return Missing([rows[index] for index in unknown], [keys[index] for index in unknown])

    def keep(self, missing: Missing) -> None:
        """Cache the scores of rows that were computed."""
        scored: dict[bytes, bytes] = {}
        for key, row in zip(missing.keys, missing.rows, strict=True):
            if key and isinstance(row.result, RowScore):
                scored[key] = row.result.logits.tobytes()
        for key, logits in scored.items():
            self._remember(key, logits)
        if self.shared is not None:
            self.shared.keep(scored)

    def _remember(self, key: bytes, logits: bytes | None) -> None:
        if logits is not None and self._size:
            self._memory.put(key, logits, limit=self._size)

    def _keys(self, rows: Sequence[PairRow]) -> list[bytes]:
        """Return the key of each row; empty where its checkpoint is not registered."""
        keys = [b""] * len(rows)
        for classifier in dict.fromkeys(row.lane.classifier for row in rows):
            weights = self._weights.get(classifier)
            if weights is not None:
                indices = [index for index, row in enumerate(rows) if row.lane.classifier is classifier]
                found = row_keys([(rows[index].pair, rows[index].mask) for index in indices], weights)
                for index, key in zip(indices, found, strict=True):
                    keys[index] = key
        return keys


def _set_results(rows: Sequence[PairRow], known: Sequence[bytes | None]) -> None:
    """Give the rows whose logits are known, as float32 bytes, their results."""
    recalled: defaultdict[Classifier, list[tuple[PairRow, bytes]]] = defaultdict(list)
    for row, logits in zip(rows, known, strict=True):
        if logits is not None:
            recalled[row.lane.classifier].append((row, logits))
    for classifier, of_classifier in recalled.items():
        matrix = np.frombuffer(b"".join(logits for _, logits in of_classifier), np.float32)
        scores = row_scores(classifier, matrix.reshape(len(of_classifier), -1))
        for (row, _), score in zip(of_classifier, scores, strict=True):
            row.result = score


def score_cache(settings: Settings, metrics: Metrics) -> ScoreCache | None:
    """Return the cache that the settings ask for; None if they ask for none. Raises ModelError."""
    shared = None if settings.score_cache is None else SharedCache(settings.score_cache, metrics)
    if not settings.score_cache_size and shared is None:
        return None
    return ScoreCache(settings.score_cache_size, shared, metrics)
