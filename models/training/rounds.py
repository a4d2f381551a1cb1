"""Makes rounds of batches ahead, in processes: a GPU trains faster than one core draws pairs."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count

from models.training.batches import Batch

MakeRound = Callable[[int], list[Batch]]

_make_round: MakeRound | None = None  # of a worker process


def rounds(make_round: MakeRound, first: int, *, workers: int = 0) -> Iterator[list[Batch]]:
    """Yield make_round(first), make_round(first + 1), … without end.

    workers: processes that make the next ones meanwhile; 0: each is made when it is asked for. They are
    forked, so what `make_round` reads is not copied, and it must not use the GPU.
    """
    if not workers:
        yield from map(make_round, count(first))
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _remember, (make_round,))
    pending: deque[Future[list[Batch]]] = deque()
    try:
        for index in count(first):
            pending.append(pool.submit(_made, index))
            if len(pending) > workers:
                yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _remember(make_round: MakeRound) -> None:
    global _make_round
    _make_round = make_round


def _made(index: int) -> list[Batch]:
    assert _make_round is not None
    return _make_round(index)
