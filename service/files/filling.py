"""Fills the shared score cache with the scores of a file's pairs: `headroom score --input F --cache URL`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.errors import ModelError
from headroom.models.rows import known_format
from headroom.service.files.options import ScoreOptions
from headroom.service.files.reading import WINDOW_ROWS, Window, windows
from headroom.service.files.running import ReportProgress
from headroom.service.files.scoring import NOT_FINITE, WindowScorer
from headroom.service.files.storage import Storage
from headroom.service.scoring.cache import row_keys, weights_key
from headroom.service.scoring.shared_cache import PREFIX, check_url, sealed, unsealed

NO_COLUMNS = "\0"
"""A prefix of names that no file has: nothing is written beside the file's own columns."""


@dataclass(slots=True)
class Filled:
    """The outcome of a file. pairs: rows of the file whose scores the cache was given or had.

    computed: pairs that were scored; known: those whose scores the cache had.
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

    try:
        weights = weights_key(scorer.variant.classifier)
        for window in _windows(name, options):
            computed = _fill_window(window, options, scorer, cache, weights)
            if window.rejects and not filled.problem:
                first = min(window.rejects)  # by its line
                filled.problem = f"line {first.line}: {first.reason}"
            filled.set_aside += len(window.rejects)
            filled.known += len(window.rows) - computed
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


def _fill_window(
    window: Window, options: ScoreOptions, scorer: WindowScorer, cache: _Cache, weights: bytes
) -> int:
    """Compute and store the scores of a window that the cache lacks, and return how many they are.

    weights: names the checkpoint in keys. Rows whose scores are not finite become rejects of the window.
    """
    pairs = [(row[options.fields.query], row[options.fields.title]) for row in window.rows]
    rows = scorer.variant.classifier.tokenizer.encode(pairs)
    keys = row_keys([(row, scorer.variant.mask) for row in rows], weights)
    known = cache.known(keys)
    computed = _computed(scorer, {key: row for key, row in zip(keys, rows, strict=True) if key not in known})
    cache.store(computed)
    failed = [index for index, key in enumerate(keys) if key not in known and key not in computed]
    window.set_aside(dict.fromkeys(failed, NOT_FINITE))
    return len(computed)


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


def _computed(scorer: WindowScorer, missing: dict[bytes, EncodedPair]) -> dict[bytes, bytes]:
    """Return the float32 logits of rows by their keys; rows whose logits are not finite are left out."""
    if not missing:
        return {}
    keys = list(missing)
    computed: dict[bytes, bytes] = {}
    for rows, future in scorer.start(list(missing.values())):
        for row, logits in zip(rows, future.result(), strict=True):
            if np.isfinite(logits).all():
                computed[keys[row]] = logits.astype(np.float32).tobytes()
    return computed
