"""Chooses the words that a shorter query keeps, without knowing who scores.

`search` is a generator: it yields the queries that it wants judged, all of a step at once, is sent their
judgments, and returns the result. So a command drives it with a classifier, and the service with its
scheduler.

greedy             leaves out one word after the other, each time the one whose loss is least. All deletions
                   of a step are judged at once, except for the third of the words whose last measured loss
                   was largest.
leave_one_out      judges each word's deletion from the whole query once, and leaves words out in that order.
attention, idf     leave words out in the order of an importance that was computed without judging.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from models.condense.loss import MAX_LOSS, Floats, Loss, Measure, loss_against
from models.condense.methods import Method, tried
from models.condense.words import Word, join

Steps = Generator[list[str], Floats, "Condensed"]
"""Yields distinct queries; is sent (queries, titles, grades), each title's distribution over the grades."""

_LEAST = 1e-12  # a probability's floor, so that its logarithm is finite


@dataclass(frozen=True, slots=True)
class Task:
    """A query to condense.

    words: of the query, at least one. grades: of the titles; None if they are not known. max_words: how many
    words the result has at most. max_loss: its largest loss; None: with `max_words` no bound, else MAX_LOSS.
    """

    query: str
    words: tuple[Word, ...]
    method: Method = "greedy"
    grades: tuple[int, ...] | None = None
    max_words: int | None = None
    max_loss: float | None = None

    @property
    def measure(self) -> Measure:
        """Return the name of the loss."""
        return "jensen_shannon" if self.grades is None else "ndcg10"

    @property
    def bound(self) -> float | None:
        """Return the bound on the loss, None if there is none."""
        if self.max_loss is None and self.max_words is None:
            return MAX_LOSS[self.measure]
        return self.max_loss


@dataclass(frozen=True, slots=True)
class Length:
    """The query of one length.

    left_out: the place of the word that the query before this one has and this one has not; None for the
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

    query: its text. loss: what it loses. kept, importance: of each word of the task, in order. path: the
    queries of all lengths, from all words to one. note: what a person should know about the result, such as
    why the query is not shorter; None if there is nothing. judged: how many queries were judged with all
    titles.
    """

    query: str
    loss: float
    kept: tuple[bool, ...]
    importance: tuple[float, ...]
    path: tuple[Length, ...]
    note: str | None
    judged: int


def search(task: Task, importance: Sequence[float] | None = None) -> Steps:
    """Condense a query. importance: of each word, for the methods that judge no deletions."""
    run = _Run(task)
    if len(task.words) == 1:
        yield from run.begin([])
        return run.chosen([0], [1.0])
    if importance is not None:
        order = _ascending(importance)
        yield from run.begin([run.without(order[:gone]) for gone in range(1, len(order))])
        run.follow(order)
        return run.chosen(order, importance)
    yield from run.begin([run.without([place]) for place in range(len(task.words))])
    single = [run.losses[run.without([place])] for place in range(len(task.words))]
    if task.method == "leave_one_out":
        order = _ascending(single)
        run.follow(order)
        if task.bound is not None:
            yield from run.measure_chosen()
    else:
        order = yield from _greedy(run, single)
        run.follow(order)
    return run.chosen(order, [loss[0] for loss in single])


def _greedy(run: _Run, single: Sequence[tuple[float, float]]) -> Generator[list[str], Floats, list[int]]:
    """Return the places of the words in the order in which they are left out; the last one stays."""
    known = dict(enumerate(single))
    order: list[int] = []
    while len(known) > 1:
        if order:  # the first deletions are measured already
            judged = sorted(known, key=lambda place: (known[place], -place))[: tried(len(known))]
            yield from run.judge([run.without([*order, place]) for place in judged])
            known |= {place: run.losses[run.without([*order, place])] for place in judged}
        else:
            judged = list(known)
        least = min(judged, key=lambda place: (known[place], -place))
        order.append(least)
        del known[least]
    return [*order, *known]


def _ascending(values: Sequence[float] | Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the values, the least first; of equal ones the last first."""
    return sorted(range(len(values)), key=lambda place: (values[place], -place))


class _Run:
    """One search: the judged queries and the path.

    losses: of each judged query, with the second number that tells equal ones apart.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.losses: dict[str, tuple[float, float]] = {}
        self.path: list[Length] = []
        self._judged: dict[str, Floats] = {}  # of the first step, for estimates
        self._loss: Loss

    def without(self, places: Sequence[int]) -> str:
        """Return the query without the words at these places."""
        gone = set(places)
        return join(word for place, word in enumerate(self.task.words) if place not in gone)

    def begin(self, queries: Sequence[str]) -> Generator[list[str], Floats, None]:
        """Judge the query as it was typed, all its words, and these queries."""
        texts = list(dict.fromkeys([self.task.query, self.without([]), *queries]))
        answers = yield texts
        self._loss = loss_against(answers[0], self.task.grades)
        for text, judged in zip(texts, answers, strict=True):
            self._judged[text] = judged
            self.losses[text] = self._loss.of(judged)

    def judge(self, queries: Sequence[str]) -> Generator[list[str], Floats, None]:
        """Judge those of the queries that have not been judged."""
        texts = [text for text in dict.fromkeys(queries) if text not in self.losses]
        if texts:
            answers = yield texts
            for text, judged in zip(texts, answers, strict=True):
                self.losses[text] = self._loss.of(judged)

    def follow(self, order: Sequence[int]) -> None:
        """Write the path on which the words go in this order."""
        self.path = []
        # The other methods measure every length.
        estimates = self._estimates(order) if self.task.method == "leave_one_out" else []
        for gone in range(len(order)):
            text = self.without(order[:gone])
            measured = text in self.losses
            loss = self.losses[text][0] if measured else estimates[gone]
            self.path.append(
                Length(len(order) - gone, text, order[gone - 1] if gone else None, loss, measured)
            )

    def measure_chosen(self) -> Generator[list[str], Floats, None]:
        """Measure the chosen length, and, while its loss is over the bound, the next longer one."""
        while (at := self._choice()) is not None and not self.path[at].measured:
            length = self.path[at]
            yield from self.judge([length.query])
            loss = self.losses[length.query][0]
            self.path[at] = Length(length.words, length.query, length.left_out, loss, True)

    def chosen(self, order: Sequence[int], importance: Sequence[float]) -> Condensed:
        """Return the result. order: of the words on the path. importance: of each word."""
        if not self.path:
            self.follow(order)
        at = self._choice()
        gone = set() if at is None else set(order[:at])
        return Condensed(
            self.task.query if at is None else self.path[at].query,
            0.0 if at is None else self.path[at].loss,
            tuple(place not in gone for place in range(len(self.task.words))),
            tuple(float(value) for value in importance),
            tuple(self.path),
            self._note(at),
            len(self.losses),
        )

    def _note(self, at: int | None) -> str | None:
        if len(self.task.words) == 1:
            return "The query is one word: words stand between spaces, and it has none between its letters."
        if not at and self.task.bound is not None:
            return f"Every shorter query loses more than {self.task.bound:g}."
        return None

    def _choice(self) -> int | None:
        """Return which query of the path answers the task; None: the query as it was typed.

        It is the shortest one within the bound on the loss, but never has more than `max_words` words.
        """
        task, last = self.task, len(self.path) - 1
        at = 0 if task.max_words is None else max(0, last + 1 - task.max_words)
        if task.bound is None:
            return at
        within = [place for place, length in enumerate(self.path) if length.loss <= task.bound]
        if within:
            return max(at, within[-1])
        return at if at else None

    def _estimates(self, order: Sequence[int]) -> list[float]:
        """Return the loss of each length if each word changed the log-probabilities by itself."""
        whole = self._log_judged(self.task.query)
        changes = [self._log_judged(self.without([place])) - whole for place in order[:-1]]
        losses = []
        for logs in accumulate(changes, initial=whole):
            judged = np.exp(logs)
            losses.append(self._loss.of(judged / judged.sum(-1, keepdims=True))[0])
        return losses

    def _log_judged(self, query: str) -> Floats:
        """Return the log-probabilities of a query of the first step, (titles, grades)."""
        logs: Floats = np.log(np.maximum(self._judged[query], _LEAST))
        return logs
