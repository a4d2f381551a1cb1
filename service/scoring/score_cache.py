"""The score cache: what was scored before is not scored again, because search traffic repeats itself.

A row is known by the weights that score it (the loaded checkpoint, with its number format), by its mask, and
by its tokens, which are what the network reads of a query and a title. So a new checkpoint under the same
path, another mask under the same name, or a longer window never meets an old score.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from models.classifier import Classifier
from models.masks.head_mask import HeadMask
from service.engine.scheduler import Item, Round
from service.engine.threads import Outcome, Row, RowScore, Work, row_scores
from service.engine.ticket import NextRound

KEY_BYTES = 16


class ScoreCache:
    """Keeps the logits of the rows that were used last; the one that was not used for longest goes first.

    It belongs to the event loop. An entry takes the same memory however long its texts are.

    size: how many rows it keeps.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._logits: OrderedDict[bytes, bytes] = OrderedDict()
        # Callers choose texts and masks. Without the secret they could look for two with the same key.
        self._secret = secrets.token_bytes(32)
        self._numbers: WeakKeyDictionary[Classifier, int] = WeakKeyDictionary()
        self._loaded = 0

    def __len__(self) -> int:
        return len(self._logits)

    def keys(self, classifiers: Mapping[str, Classifier], items: Sequence[Item[Work]]) -> list[bytes]:
        """Return the key of each item, a Row. classifiers: by the checkpoint of its lane."""
        keys = []
        networks: dict[tuple[str, int], blake2b] = {}
        for item in items:
            row, checkpoint = item.payload, item.lane.checkpoint  # type: ignore[attr-defined]
            assert isinstance(row, Row)
            network = networks.get((checkpoint, id(row.mask)))
            if network is None:
                network = self._network(classifiers[checkpoint], row.mask)
                networks[checkpoint, id(row.mask)] = network
            key = network.copy()
            key.update(row.pair.query_tokens.to_bytes(4))
            key.update(row.pair.ids.tobytes())
            keys.append(key.digest())
        return keys

    def get(self, key: bytes) -> bytes | None:
        """Return the logits of a row, as the bytes of float32 numbers; None if they are not known."""
        logits = self._logits.get(key)
        if logits is not None:
            self._logits.move_to_end(key)
        return logits

    def put(self, key: bytes, logits: np.ndarray) -> None:
        """Keep the logits of a row, (labels,) float32."""
        self._logits[key] = logits.tobytes()
        if len(self._logits) > self._size:
            self._logits.popitem(last=False)

    def _network(self, classifier: Classifier, mask: HeadMask) -> blake2b:
        """Return the hash of what scores a row, to which its tokens are to be added."""
        if classifier not in self._numbers:
            self._loaded += 1
            self._numbers[classifier] = self._loaded
        # Not the mask's id: of its 48 bits, another mask with the same can be found.
        skipped = np.array(mask.skipped, np.int32).tobytes()
        parts = self._numbers[classifier].to_bytes(8), mask.matrix.tobytes(), skipped, mask.units_key
        digest = blake2b(key=self._secret, digest_size=KEY_BYTES)
        for part in parts:
            digest.update(len(part).to_bytes(4) + part)
        return digest


class Recalled:
    """The items of one request on their way through the cache: only what it lacks is handed to the scheduler.

    It stands between the scheduler and the later rounds of a cascade, which see the results of all items.

    classifiers: by checkpoint, for all items. next_round: of a cascade.
    results: of the items so far, in their order; None: not scored yet.
    hits, misses: how many items the cache had, and how many were scored because it lacked them.
    """

    def __init__(
        self, cache: ScoreCache, classifiers: Mapping[str, Classifier], next_round: NextRound | None
    ) -> None:
        self._cache = cache
        self._classifiers = classifiers
        self._next_round = next_round
        self._wanted: list[tuple[int, bytes]] = []  # the places and keys of what is being scored
        self.results: list[Any] = []
        self.hits = self.misses = 0

    def lacking(self, coming: Round[Work]) -> Round[Work]:
        """Return the items of a round that the cache lacks; if there are none, those of a later round."""
        while True:
            missing = self._look_up(coming.items)
            if missing or not coming.items or self._next_round is None:
                return Round(missing, coming.later_tokens)
            coming = self._next_round(self.results)

    def __call__(self, results: Sequence[Any]) -> Round[Work]:
        """Take the scheduler's results of all rounds, of which the last is new; return the next round."""
        scored = results[len(results) - len(self._wanted) :]
        for (place, key), result in zip(self._wanted, scored, strict=True):
            self.results[place] = result
            if isinstance(result, RowScore):
                self._cache.put(key, np.asarray(result.logits))
        self.misses += len(self._wanted)
        self._wanted = []
        if self._next_round is None:
            return Round(())
        return self.lacking(self._next_round(self.results))

    def _look_up(self, items: Sequence[Item[Work]]) -> list[Item[Work]]:
        """Give the known items their results; return the others."""
        start = len(self.results)
        self.results += [None] * len(items)
        missing: list[Item[Work]] = []
        known: dict[str, tuple[list[int], list[bytes]]] = {}
        for place, (item, key) in enumerate(
            zip(items, self._cache.keys(self._classifiers, items), strict=True), start
        ):
            logits = self._cache.get(key)
            if logits is None:
                missing.append(item)
                self._wanted.append((place, key))
            else:
                checkpoint = item.lane.checkpoint  # type: ignore[attr-defined]
                places, rows = known.setdefault(checkpoint, ([], []))
                places.append(place)
                rows.append(logits)
        for checkpoint, (places, rows) in known.items():
            logits_of_rows = np.frombuffer(b"".join(rows), np.float32).reshape(len(rows), -1)
            outcomes: list[Outcome] = list(row_scores(self._classifiers[checkpoint], logits_of_rows))
            for place, outcome in zip(places, outcomes, strict=True):
                self.results[place] = outcome
            self.hits += len(places)
        return missing
