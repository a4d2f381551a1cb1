"""Fills the shared score cache with the scores of a file's pairs: `headroom score --input F --cache URL`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from headroom.models.batch import batches_by_length, in_halves
from headroom.models.checkpoint.chunks import LongTitles, encode_chunks
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.errors import ModelError
from headroom.models.rows import known_format
from headroom.service.files.options import ScoreOptions
from headroom.service.files.reading import WINDOW_ROWS, Window, windows
from headroom.service.files.running import ReportProgress
from headroom.service.files.scoring import WindowScorer, forward
from headroom.service.files.storage import Storage
from headroom.service.scoring.cache import row_keys, weights_key
from headroom.service.scoring.catalog import Variant
from headroom.service.scoring.shared_cache import PREFIX, check_url, sealed, unsealed

NO_COLUMNS = "\0"
"""A prefix of names that no file has: nothing is written beside the file's own columns."""


@dataclass(slots=True)
class Filled:
    """The outcome of a file. pairs: rows of the file whose scores the cache was given or had.

    computed: rows of the network, chunks of long titles included; known: those whose scores the cache had.
    set_aside: rows of the file that cannot be scored; problem: the first one's, "" if there is none.
    """

    pairs: int = 0
    computed: int = 0
    known: int = 0
    set_aside: int = 0
    problem: str = ""


def fill(name: str, options: ScoreOptions, scorer: WindowScorer, url: str, report: ReportProgress) -> Filled:
    """Score the pairs of a file whose scores the cache lacks, and store them.

    If it is stopped, what is stored stays, and the next call computes the rest.
    Raises ModelError if the file cannot be read, or the server cannot be reached.
    """
    filled = Filled()
    cache = _Cache(url)
    import redis

    variant = scorer.variant
    try:
        weights = weights_key(variant.classifier)
        for window in _windows(name, options):
            filled.set_aside += len(window.rejects)
            if window.rejects and not filled.problem:
                filled.problem = f"line {window.rejects[0].line}: {window.rejects[0].reason}"
            pairs = [(row[options.fields.query], row[options.fields.title]) for row in window.rows]
            rows = _encoded(variant, pairs, options.overflow)
            keys = row_keys([(row, variant.mask) for row in rows], weights)
            computed = _store_missing(cache, scorer, dict(zip(keys, rows, strict=True)))
            filled.known += len(rows) - computed
            filled.computed += computed
            filled.pairs += len(window.rows)
            report(window.share, filled.pairs + filled.set_aside, 0)
    except (redis.RedisError, OSError) as error:
        raise ModelError(f"--cache: the server does not answer: {error}") from None
    finally:
        cache.close()
    if not filled.pairs:
        raise ModelError(f"{name}: no row can be scored" + (f"; {filled.problem}" if filled.problem else ""))
    return filled


def _store_missing(cache: _Cache, scorer: WindowScorer, rows: dict[bytes, EncodedPair]) -> int:
    """Compute and store the scores of rows, by their keys, that the cache lacks; return how many they are."""
    known = cache.known(list(rows))
    missing = {key: row for key, row in rows.items() if key not in known}
    cache.store(_computed(scorer, missing))
    return len(missing)


class _Cache:
    """The shared score cache, from a program that waits for it."""

    def __init__(self, url: str) -> None:
        check_url(url, "--cache")
        import redis

        self._client = redis.Redis.from_url(url)

    def known(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return the keys whose scores are stored."""
        if not keys:
            return set()
        values = cast(list[bytes | None], self._client.mget([PREFIX + key for key in keys]))
        found = zip(keys, values, strict=True)
        return {key for key, value in found if unsealed(key, value) is not None}

    def store(self, logits: dict[bytes, bytes]) -> None:
        """Store float32 logits by their keys."""
        if logits:
            self._client.mset({PREFIX + key: sealed(key, row) for key, row in logits.items()})

    def close(self) -> None:
        """End the connection."""
        self._client.close()


def _windows(name: str, options: ScoreOptions) -> Iterator[Window]:
    source = known_format(name, options.fields.delimiter)
    storage = Storage(name)
    if storage.stat(name) is None:
        raise ModelError(f"{name} does not exist, or is no file")
    first = Window(name, 0, known_format("rows.jsonl", ","))
    return windows(storage, first, source, replace(options, prefix=NO_COLUMNS), WINDOW_ROWS)


def _encoded(variant: Variant, pairs: Sequence[tuple[str, str]], overflow: str) -> list[EncodedPair]:
    """Return what the network reads of pairs, several rows of a long title that is cut into chunks."""
    tokenizer = variant.classifier.tokenizer
    if overflow == "chunks":
        return [row for pair in encode_chunks(tokenizer, pairs, LongTitles("chunks")) for row in pair.rows]
    return list(tokenizer.encode(pairs))


def _computed(scorer: WindowScorer, missing: dict[bytes, EncodedPair]) -> dict[bytes, bytes]:
    """Return the float32 logits of rows by their keys; rows whose logits are not finite are left out."""
    if not missing:
        return {}
    variant = scorer.variant
    keys = list(missing)
    encoded = list(missing.values())

    def run(rows: Sequence[int]) -> np.ndarray:
        return forward(variant, [encoded[row] for row in rows])

    beginnings = variant.classifier.beginnings(encoded, [None] * len(encoded))
    batches = batches_by_length([len(row) for row in encoded], scorer.batch_tokens, beginnings)
    under_way = [(rows, scorer.pool.submit(in_halves, run, rows, scorer.device)) for rows in batches]
    computed: dict[bytes, bytes] = {}
    for rows, future in under_way:
        for row, logits in zip(rows, future.result(), strict=True):
            if np.isfinite(logits).all():
                computed[keys[row]] = logits.astype(np.float32).tobytes()
    return computed
