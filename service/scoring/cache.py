"""The score cache: what was scored before is not scored again, because search traffic repeats itself.

A row is known by the weights that score it (the loaded checkpoint, with its number format), by its mask, and
by its tokens, which are what the network reads of a query and a title. So a new checkpoint under the same
path, another mask under the same name, or a longer window never meets an old score.
"""

import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from weakref import WeakKeyDictionary

import numpy as np

from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.lru import LeastRecentlyUsed
from headroom.models.masks.head_mask import HeadMask
from headroom.service.engine.threads import PairRow, RowScore, row_scores

KEY_BYTES = 16
"""With the secret, nobody finds two rows with the same key of 128 bits."""


class ScoreCache:
    """Keeps the logits of rows, and evicts the least recently used first.

    It belongs to the event loop. An entry takes the same memory however long its texts are.

    size: how many rows it keeps.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._logits: LeastRecentlyUsed[bytes, bytes] = LeastRecentlyUsed()
        # Callers choose texts and masks. Without the secret they could look for two with the same key.
        self._secret = secrets.token_bytes(32)
        self._numbers: WeakKeyDictionary[Classifier, int] = WeakKeyDictionary()
        self._count = count()

    def recall(self, rows: Sequence[PairRow]) -> list[tuple[bytes, PairRow]]:
        """Give the rows that were scored before their results; return the others with their keys."""
        missing: list[tuple[bytes, PairRow]] = []
        known: defaultdict[Classifier, list[tuple[PairRow, bytes]]] = defaultdict(list)
        for key, row in zip(self._keys(rows), rows, strict=True):
            logits = self._logits.get(key)
            if logits is None:
                missing.append((key, row))
            else:
                known[row.lane.classifier].append((row, logits))
        set_results(known)
        return missing

    def keep(self, scored: Sequence[tuple[bytes, PairRow]]) -> None:
        """Keep the logits of rows that were scored, by their keys."""
        for key, row in scored:
            if isinstance(row.result, RowScore):
                self._logits.put(key, row.result.logits.tobytes(), limit=self._size)

    def _keys(self, rows: Sequence[PairRow]) -> Iterator[bytes]:
        """Yield the key of each row."""
        hashes: dict[tuple[Classifier, int], blake2b] = {}
        for row in rows:
            network = row.lane.classifier, id(row.mask)
            if network not in hashes:
                weights = self._number(row.lane.classifier)
                hashes[network] = mask_hash(row.mask, weights, size=KEY_BYTES, secret=self._secret)
            yield row_key(hashes[network], row.pair)

    def _number(self, classifier: Classifier) -> bytes:
        """Return what stands for the weights that score a row."""
        if classifier not in self._numbers:
            self._numbers[classifier] = next(self._count)
        return self._numbers[classifier].to_bytes(8)


def mask_hash(mask: HeadMask, weights: bytes, *, size: int, secret: bytes = b"") -> blake2b:
    """Return the hash of a mask, to which a row's tokens are to be added.

    weights: names the weights and their number format. size: bytes of the key. secret: without it nobody can
    look for two rows with one key.
    """
    # Not the mask's id: of its 48 bits, another mask with the same can be found.
    digest = blake2b(key=secret, digest_size=size)
    for part in (weights, mask.matrix.tobytes(), mask.structure):
        digest.update(len(part).to_bytes(4) + part)
    return digest


def row_key(hash_of_mask: blake2b, pair: EncodedPair) -> bytes:
    """Return the key of a pair under the mask whose hash this is."""
    hashed = hash_of_mask.copy()
    hashed.update(pair.query_tokens.to_bytes(4))
    hashed.update(pair.ids.tobytes())
    return hashed.digest()


def set_results(known: Mapping[Classifier, Sequence[tuple[PairRow, bytes]]]) -> None:
    """Give rows their results. known: the rows of each model, with their logits as float32 bytes."""
    for classifier, recalled in known.items():
        matrix = np.frombuffer(b"".join(logits for _, logits in recalled), np.float32)
        scores = row_scores(classifier, matrix.reshape(len(recalled), -1))
        for (row, _), score in zip(recalled, scores, strict=True):
            row.result = score
