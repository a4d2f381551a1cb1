"""Fills a score store with the scores of a file's pairs: `headroom score --input F --store PATH`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from headroom.models.batch import batches_by_length, in_halves
from headroom.models.checkpoint.chunks import LongTitles, encode_chunks
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.errors import ModelError
from headroom.models.rows import known_format
from headroom.service.files.options import ScoreOptions
from headroom.service.files.reading import WINDOW_ROWS, Window, windows
from headroom.service.files.scoring import WindowScorer, forward
from headroom.service.files.storage import Storage
from headroom.service.scoring.catalog import Variant
from headroom.service.scoring.store import ModelKey, ScoreStore

Progress = Callable[[float, int, int], None]
"""Takes (share done, rows done, 0)."""

NO_COLUMNS = "\0"
"""A prefix of names that no file has: nothing is written beside the file's own columns."""


@dataclass(slots=True)
class Filled:
    """The outcome of a file. pairs: rows of the file that the store now knows under every mask asked for.

    computed: rows of the network, chunks of long titles included; known: those whose scores the store had.
    set_aside: rows of the file that cannot be scored; problem: the first one's, "" if there is none.
    """

    pairs: int = 0
    computed: int = 0
    known: int = 0
    set_aside: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows under way. keys: of each row in the store."""

    model: ModelKey
    keys: list[bytes]
    logits: Future[np.ndarray]


def fill(
    name: str, options: ScoreOptions, scorer: WindowScorer, store: ScoreStore, report: Progress
) -> Filled:
    """Score the pairs of a file whose scores the store does not know, and keep them.

    If it is stopped, what is kept stays, and the next call computes the rest.
    Raises ModelError if the file cannot be read, or sqlite3.Error if the store cannot be written.
    """
    filling = _Filling(options, scorer, store)
    under_way: deque[tuple[Window, list[_Batch]]] = deque()

    def finish() -> None:
        filling.keep(*under_way.popleft())
        report(filling.share, filling.filled.pairs + filling.filled.set_aside, 0)

    for window in _windows(name, options):
        under_way.append((window, filling.submit(window)))
        if len(under_way) > 1:
            finish()
    while under_way:
        finish()
    filled = filling.filled
    if not filled.pairs:
        raise ModelError(f"{name}: no row can be scored" + (f"; {filled.problem}" if filled.problem else ""))
    return filled


class _Filling:
    """A store that is being filled. share: of the file that is done."""

    def __init__(self, options: ScoreOptions, scorer: WindowScorer, store: ScoreStore) -> None:
        self.filled = Filled()
        self.share = 0.0
        self._options = options
        self._scorer = scorer
        self._store = store
        self._variants = [
            scorer.catalog.choose(column.variant, column.mask, with_units=True) for column in options.columns
        ]
        self._models = {one.classifier: store.register(one.classifier) for one in self._variants}

    def submit(self, window: Window) -> list[_Batch]:
        """Hand the rows of a window that the store does not know to the forward threads."""
        self.filled.set_aside += len(window.rejects)
        if window.rejects and not self.filled.problem:
            self.filled.problem = f"line {window.rejects[0].line}: {window.rejects[0].reason}"
        fields = self._options.fields
        pairs = [(row[fields.query], row[fields.title]) for row in window.rows]
        batches: list[_Batch] = []
        for variant in self._variants:
            rows = _encoded(variant, pairs, self._options.overflow)
            model = self._models[variant.classifier]
            found = self._store.look_up(model, [(row, variant.mask) for row in rows])
            missing = {key: row for key, row in zip(found.keys, rows, strict=True) if key not in found.logits}
            self.filled.known += len(found.keys) - len(missing)
            batches += _submitted(self._scorer, variant, model, missing)
        return batches

    def keep(self, window: Window, batches: list[_Batch]) -> None:
        """Wait for a window's scores, and keep those that are finite."""
        for batch in batches:
            logits = batch.logits.result()
            finite = np.isfinite(logits).all(axis=1)
            rows = zip(batch.keys, logits, finite, strict=True)
            self._store.keep(batch.model, {key: row.tobytes() for key, row, is_finite in rows if is_finite})
            self.filled.computed += len(batch.keys)
        for model in self._models.values():  # in use, also if everything was known
            self._store.keep(model, {})
        self.filled.pairs += len(window.rows)
        self.share = window.share


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


def _submitted(
    scorer: WindowScorer, variant: Variant, model: ModelKey, missing: dict[bytes, EncodedPair]
) -> Iterator[_Batch]:
    """Hand rows to the forward threads. missing: the rows by their keys."""
    keys = list(missing)
    encoded = list(missing.values())
    if not encoded:
        return
    beginnings = variant.classifier.beginnings(encoded, [None] * len(encoded))
    for rows in batches_by_length([len(row) for row in encoded], scorer.batch_tokens, beginnings):

        def run(some: Sequence[int]) -> np.ndarray:
            return forward(variant, [encoded[row] for row in some])

        logits = scorer.pool.submit(in_halves, run, rows, scorer.device)
        yield _Batch(model, [keys[row] for row in rows], logits)
