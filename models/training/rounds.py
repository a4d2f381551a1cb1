"""Makes rounds of batches ahead, in processes: a GPU trains faster than one core draws pairs."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from models.training.batches import Batch

MakeRound = Callable[[int], list[Batch]]

_make_round: MakeRound | None = None  # of a worker process


def rounds(make_round: MakeRound, first: int, *, workers: int = 0) -> Iterator[list[Batch]]:
    """Yield make_round(first), make_round(first + 1), … without end.

    workers: processes that make the next ones meanwhile; 0: each is made when it is asked for. They are
    forked, so what `make_round` reads is not copied, and it must not use the GPU.
    """
    if not workers:
        index = first
        while True:
            yield make_round(index)
            index += 1
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, fork, _remember, (make_round,)) as pool:
        try:
            pending: deque[Future[list[Batch]]] = deque()
            index = first
            while True:
                while len(pending) <= workers:
                    pending.append(pool.submit(_made, index))
                    index += 1
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _remember(make_round: MakeRound) -> None:
    global _make_round
    _make_round = make_round


def _made(index: int) -> list[Batch]:
    assert _make_round is not None
    return _make_round(index)
