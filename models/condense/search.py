"""Chooses the words of a query: in which order they go, and how many.

The search yields the queries that it wants judged and is sent their judgments. So it runs alike in a
command and on the service's scheduler.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import numpy as np

from models.condense.loss import MAX_LOSS, Floats, loss_against
from models.condense.words import Word, join

Method = Literal["greedy", "leave_one_out"]
METHODS: tuple[Method, ...] = ("greedy", "leave_one_out")
"""greedy: leaves out one word after the other, each time the one whose loss is least. leave_one_out: leaves
words out in the order of the loss of each alone, which takes a fifth of the judgments for a query of 15
words."""

Steps = Generator[list[str], Floats, "Condensed"]
"""Yields distinct queries; is sent (queries, titles, grades), each title's distribution over the grades."""

_LEAST = 1e-12  # a probability's floor, so that its logarithm is finite


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

    @property
    def bound(self) -> float | None:
        """Return the bound on the loss, None if there is none."""
        if self.max_loss is None and self.max_words is None:
            return MAX_LOSS
        return self.max_loss


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
    person should know about the result. judged: how many queries were judged with all titles.
    """

    query: str
    loss: float
    kept: tuple[bool, ...]
    importance: tuple[float, ...]
    path: tuple[Length, ...]
    note: str | None
    judged: int


def largest_cost(words: int, method: Method) -> int:
    """Return how many queries a method judges at most, each with all titles, for a query of so many words."""
    if method == "leave_one_out":
        return 1 + 2 * words
    later_steps = -(-(words**2 - 1) // 3) - 1  # the sum of _tried(k) for k from 2 to words - 1
    return 2 + words + max(0, later_steps)


def _tried(words: int) -> int:
    """Return how many deletions greedy judges at a later step: two thirds, rounded up."""
    return -(-2 * words // 3)


def search(task: Task) -> Steps:
    """Condense a query."""
    count = len(task.words)
    run = _Run(task)
    if count == 1:
        yield from run.begin([])
        return run.chosen(run.path([0]), [0], [1.0])
    yield from run.begin([run.without([index]) for index in range(count)])
    single = {index: run.losses[run.without([index])] for index in range(count)}
    importance = list(single.values())
    if task.method == "greedy":
        order = yield from _greedy(run, single)
        return run.chosen(run.path(order), order, importance)
    order = sorted(single, key=lambda index: (single[index], -index))
    path = run.path(order)
    while task.bound is not None and (at := run.choice(path)) is not None and not path[at].measured:
        yield from run.judge([path[at].query])
        path[at] = replace(path[at], loss=run.losses[path[at].query], measured=True)
    return run.chosen(path, order, importance)


def _greedy(run: _Run, known: dict[int, float]) -> Generator[list[str], Floats, list[int]]:
    """Return the words in the order in which they go; the last one stays. known: the loss without each word
    alone."""
    order: list[int] = []
    judged = list(known)
    while True:
        least = min(judged, key=lambda index: (known[index], -index))
        order.append(least)
        del known[least]
        if len(known) == 1:
            return [*order, *known]
        judged = sorted(known, key=lambda index: (known[index], -index))[: _tried(len(known))]
        yield from run.judge([run.without([*order, index]) for index in judged])
        known |= {index: run.losses[run.without([*order, index])] for index in judged}


class _Run:
    """One search. losses: of each judged query."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.losses: dict[str, float] = {}
        self._first: dict[str, Floats] = {}  # the judgments of the first step, for estimates

    def without(self, indices: Sequence[int]) -> str:
        """Return the query without these words."""
        gone = set(indices)
        return join(word for index, word in enumerate(self.task.words) if index not in gone)

    def begin(self, queries: Sequence[str]) -> Generator[list[str], Floats, None]:
        """Judge the query as it was typed, all its words, and these queries."""
        texts = list(dict.fromkeys([self.task.query, self.without([]), *queries]))
        answers = yield texts
        self._first = dict(zip(texts, answers, strict=True))
        self.losses = {text: self._loss(judged) for text, judged in self._first.items()}

    def judge(self, queries: Sequence[str]) -> Generator[list[str], Floats, None]:
        """Judge those of the queries that have not been judged."""
        texts = [text for text in dict.fromkeys(queries) if text not in self.losses]
        if texts:
            answers = yield texts
            self.losses |= {text: self._loss(judged) for text, judged in zip(texts, answers, strict=True)}

    def path(self, order: Sequence[int]) -> list[Length]:
        """Return the queries of all lengths if the words go in this order."""
        estimates = self._estimates(order) if self.task.method == "leave_one_out" else []
        lengths = []
        for gone in range(len(order)):
            query = self.without(order[:gone])
            measured = query in self.losses
            loss = self.losses[query] if measured else estimates[gone]
            lengths.append(
                Length(len(order) - gone, query, order[gone - 1] if gone else None, loss, measured)
            )
        return lengths

    def chosen(self, path: Sequence[Length], order: Sequence[int], importance: Sequence[float]) -> Condensed:
        """Return the result. order: in which the words go on the path."""
        at = self.choice(path)
        gone = order[:at] if at else []
        return Condensed(
            self.task.query if at is None else path[at].query,
            0.0 if at is None else path[at].loss,
            tuple(index not in gone for index in range(len(order))),
            tuple(map(float, importance)),
            tuple(path),
            self._note(at),
            len(self.losses),
        )

    def _note(self, at: int | None) -> str | None:
        if len(self.task.words) == 1:
            return "The query is one word: words stand between spaces, and it has none between its letters."
        if not at and self.task.bound is not None:
            return f"Every shorter query loses more than {self.task.bound:g}."
        return None

    def choice(self, path: Sequence[Length]) -> int | None:
        """Return which query of the path answers the task; None: the query as it was typed.

        It is the shortest one within the bound on the loss, but never has more than `max_words` words.
        """
        task = self.task
        at = 0 if task.max_words is None else max(0, len(path) - task.max_words)
        if task.bound is None:
            return at
        within = [index for index, length in enumerate(path) if length.loss <= task.bound]
        return max(at, within[-1]) if within else at or None

    def _estimates(self, order: Sequence[int]) -> list[float]:
        """Return the loss of each length if each word changed the log-probabilities by itself."""
        logs = {text: np.log(np.maximum(judged, _LEAST)) for text, judged in self._first.items()}
        whole = logs[self.task.query]
        changes = [logs[self.without([index])] - whole for index in order[:-1]]
        powers = (np.exp(total) for total in accumulate(changes, initial=whole))
        return [self._loss(power / power.sum(-1, keepdims=True)) for power in powers]

    def _loss(self, judged: Floats) -> float:
        return loss_against(self._first[self.task.query], judged)
