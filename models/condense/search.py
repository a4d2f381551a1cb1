"""Chooses the words of a query: in which order they go, and how many.

The search yields the queries that it wants judged and is sent their judgments. So it runs alike in a
command and on the service's scheduler.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headroom.models.arrays import Floats
from headroom.models.condense.words import Word, join

Method = Literal["greedy", "leave_one_out"]
"""greedy: leaves out one word after the other, each time the one that costs least. leave_one_out: leaves
words out in the order of the loss of each alone, which takes a fifth of the judgments for a query of 15
words."""

METHODS: tuple[Method, ...] = get_args(Method)

Steps = Generator[list[str], Floats, "Condensed"]
"""Yields distinct queries; is sent (queries, titles, grades), each title's distribution over the grades."""

MAX_LOSS = 0.1
"""The bound on the loss if a request gives neither a bound nor a number of words."""

_MIN_PROBABILITY = 1e-12  # so that its logarithm is finite


@dataclass(frozen=True, slots=True)
class Task:
    """A query to condense.

    words: of the query, at least one. max_words: how many words the result has at most. max_loss: its
    largest loss; None: with `max_words` no bound, else MAX_LOSS.
    """

    query: str
    words: tuple[Word, ...]
    method: Method = "greedy"
    max_words: int | None = None
    max_loss: float | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """The query of one length.

    left_out: the index of the word that the query before this one has and this one has not; None for the
    first. measured: whether the loss was measured; otherwise it was estimated from single deletions.
    """

    words: int
    query: str
    left_out: int | None
    loss: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Condensed:
    """A condensed query.

    query: its text. loss: what it loses. kept: of each word of the task, in order. importance: the loss of
    the query without this word alone. path: the queries of all lengths, from all words to one. note: what a
    person should know about the result.
    """

    query: str
    loss: float
    kept: tuple[bool, ...]
    importance: tuple[float, ...]
    path: tuple[Length, ...]
    note: str | None


def largest_cost(words: int, method: Method) -> int:
    """Return how many queries a method judges at most, each with all titles, for a query of this length."""
    if method == "leave_one_out":
        return 1 + 2 * words
    later_steps = -(-(words**2 - 1) // 3) - 1  # the sum of _tried(k) for k from 2 to words - 1
    return 2 + words + max(0, later_steps)


def _tried(words: int) -> int:
    """Return how many deletions greedy judges at a later step: two thirds, rounded up."""
    return -(-2 * words // 3)


def search(task: Task, repeats: Sequence[int] | None = None) -> Steps:
    """Condense a query. repeats: how often each of the judged titles comes; None: once."""
    run = _Run(task, repeats)
    indices = range(len(task.words))
    without_one = [run.without([index]) for index in indices if len(indices) > 1]
    yield from run.judge([task.query, run.without([]), *without_one])
    importance = [run.losses[query] for query in without_one] or [1.0]
    if task.method == "greedy":
        order = yield from _greedy(run, dict(enumerate(importance)))
    else:
        order = sorted(indices, key=lambda index: (importance[index], -index))
    path = run.path(order)
    shortest = run.choice(path)
    while run.bound is not None and shortest is not None and not path[shortest].measured:
        query = path[shortest].query
        yield from run.judge([query])
        path[shortest] = replace(path[shortest], loss=run.losses[query], measured=True)
        shortest = run.choice(path)
    left_out = set(order[: shortest or 0])
    note = None
    if len(indices) == 1:
        note = "The query is one word: words stand between spaces, and it has none between its letters."
    elif not left_out and run.bound is not None:
        note = f"No shorter query that was tried loses at most {run.bound:g}."
    return Condensed(
        query=task.query if shortest is None else path[shortest].query,
        loss=0.0 if shortest is None else path[shortest].loss,
        kept=tuple(index not in left_out for index in indices),
        importance=tuple(map(float, importance)),
        path=tuple(path),
        note=note,
    )


def _greedy(run: _Run, losses: dict[int, float]) -> Generator[list[str], Floats, list[int]]:
    """Return the words in the order in which they go; the last one stays. losses: without each word alone."""
    order: list[int] = []
    tried = list(losses)
    while len(losses) > 1:
        if order:
            tried = sorted(losses, key=lambda index: (losses[index], -index))[: _tried(len(losses))]
            queries = {index: run.without([*order, index]) for index in tried}
            yield from run.judge(list(queries.values()))
            losses |= {index: run.losses[query] for index, query in queries.items()}
        order.append(min(tried, key=lambda index: (losses[index], -index)))
        del losses[order[-1]]
    return [*order, *losses]


def jensen_shannon(left: NDArray[np.floating], right: NDArray[np.floating]) -> Floats:
    """Return the Jensen–Shannon distance (base 2, from 0 to 1) of distributions in the last axis.

    In numpy alone: a replica needs it, and importing scipy takes most of a second.
    """
    middle = (left + right) / 2
    safe = np.where(middle > 0, middle, 1)
    divergence = left * np.log2(np.where(left > 0, left / safe, 1))
    divergence = divergence + right * np.log2(np.where(right > 0, right / safe, 1))
    return np.asarray(np.sqrt(np.clip(divergence.sum(-1) / 2, 0, 1)))


class _Run:
    """One search.

    repeats: how often each title comes. judged: the judgments of each query, (titles, grades). losses: of
    each judged query. bound: the largest loss, or None.
    """

    def __init__(self, task: Task, repeats: Sequence[int] | None) -> None:
        self.task = task
        self.repeats = repeats
        self.bound = MAX_LOSS if task.max_loss is None and task.max_words is None else task.max_loss
        self.judged: dict[str, Floats] = {}
        self.losses: dict[str, float] = {}

    def without(self, indices: Sequence[int]) -> str:
        """Return the query without these words."""
        gone = set(indices)
        return join(word for index, word in enumerate(self.task.words) if index not in gone)

    def judge(self, queries: Sequence[str]) -> Generator[list[str], Floats, None]:
        """Judge those of the queries that have not been judged."""
        texts = [text for text in dict.fromkeys(queries) if text not in self.losses]
        if texts:
            answers = yield texts
            self.judged |= zip(texts, answers, strict=True)
            self.losses |= {text: self._loss(self.judged[text]) for text in texts}

    def _loss(self, judged: Floats) -> float:
        """Return the mean distance of the titles' distributions from those under the whole query: 0 if
        every title keeps its own, 1 if no title keeps any of its probable grades."""
        distances = jensen_shannon(self.judged[self.task.query], judged)
        return float(np.average(distances, weights=self.repeats))

    def path(self, order: Sequence[int]) -> list[Length]:
        """Return the queries of all lengths if the words go in this order."""
        lengths = []
        for count, estimate in enumerate(self._estimates(order)):
            query = self.without(order[:count])
            lengths.append(
                Length(
                    words=len(order) - count,
                    query=query,
                    left_out=order[count - 1] if count else None,
                    loss=self.losses.get(query, estimate),
                    measured=query in self.losses,
                )
            )
        return lengths

    def _estimates(self, order: Sequence[int]) -> list[float]:
        """Return the loss of each length if each word changed the log-probabilities by itself."""
        queries = [self.task.query, *(self.without([index]) for index in order[:-1])]
        whole, *logs = (np.log(np.maximum(self.judged[query], _MIN_PROBABILITY)) for query in queries)
        powers = (np.exp(total) for total in accumulate((log - whole for log in logs), initial=whole))
        return [self._loss(power / power.sum(-1, keepdims=True)) for power in powers]

    def choice(self, path: Sequence[Length]) -> int | None:
        """Return the index of the query of the path that answers the task; None: the query as it was typed.

        It is the shortest one within the bound on the loss, but never has more than `max_words` words.
        """
        first = 0  # with few enough words
        if self.task.max_words is not None:
            first = max(0, len(path) - self.task.max_words)
        if self.bound is None:
            return first
        within = [index for index, length in enumerate(path) if length.loss <= self.bound]
        if within:
            return max(first, within[-1])
        return first or None
