"""Lessons of a student: batches of whole lists of titles with the scores that it should give them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.arrays import Floats
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from headroom.models.learner import Learner
from headroom.models.quality.labelled import query_key
from headroom.models.training.distil.losses import calibrated, listwise, margin_mse, raw_scores
from headroom.models.training.distil.pairs import Pair
from headroom.models.training.distil.teacher import Teacher

LIST_TITLES = 8
"""At most this many of a query's own titles are in a list."""

SWAPPED_SHARE = 0.25
"""How many titles of other queries a list gets for each of its own, but at least one. With as many as its
own, less was learnt in the same time: most of them say nothing but "irrelevant"."""

BATCH_PAIRS = 64
BATCH_TOKENS = 4096
"""A batch ends after this many pairs or tokens, and holds at least one list."""

EDGE = 0.005
"""Given scores of 0 and 1 count as this much less extreme: their log-odds would be infinite."""


NEW_SPREAD = 2.0
"""Standard deviation of log-odds that a student with a new classifier is taught."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The values that n pairs should get. scores: (n,) float64, log-odds on the student's scale.

    probabilities: (n, labels) float64, of teachers whose grades are the student's. states: (n, D), of
    teachers that the student was cut from.
    """

    scores: Floats
    probabilities: Floats | None = None
    states: np.ndarray | None = None

    def take(self, rows: Sequence[int]) -> "Targets":
        """Return those of some pairs."""
        return Targets(
            self.scores[rows],
            None if self.probabilities is None else self.probabilities[rows],
            None if self.states is None else self.states[rows],
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps scores to the student's scale: (score − middle) · factor + target. spread: of the mapped ones."""

    middle: float = 0.0
    factor: float = 1.0
    target: float = 0.0
    spread: float = 1.0

    @classmethod
    def between(cls, wanted: Floats, own: Floats) -> "Scale":
        """Return the scale on which scores (n,) have mean and spread of the student's own (n,).

        The scores of a new classifier hardly differ: it gets mean 0 and NEW_SPREAD.
        """
        spread = float(own.std())
        target = float(own.mean())
        if spread < 0.1 * NEW_SPREAD:
            spread = NEW_SPREAD
            target = 0.0
        return cls(float(wanted.mean()), spread / (float(wanted.std()) or 1.0), target, spread)

    def of(self, scores: Floats) -> Floats:
        """Return mapped scores, (n,)."""
        return np.asarray((scores - self.middle) * self.factor + self.target)


def teacher_scores(logits: np.ndarray, config: ModelConfig) -> tuple[Floats, Floats]:
    """Return the log-odds (n,) and the log-probabilities (n, labels) of a teacher's logits, least relevant
    first."""
    scaled = torch.from_numpy(logits.astype(np.float64)) / config.temperature + torch.tensor(config.bias)
    return raw_scores(scaled).numpy(), F.log_softmax(scaled, 1).numpy()


def given_scores(pairs: Sequence[Pair], *, are_shares: bool) -> Floats:
    """Return the scores that a file gives, (n,). are_shares: they are in [0, 1], and become log-odds."""
    scores = np.array([pair.score for pair in pairs])
    if not are_shares:
        return scores
    inside = np.clip(scores, EDGE, 1 - EDGE)
    return np.asarray(np.log(inside / (1 - inside)))


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch. pairs: B. lists: (lists, longest) int64, the rows of each list, filled up with −1; empty if
    every list has one title."""

    pairs: Sequence[EncodedPair]
    lists: Tensor
    scores: Tensor
    log_probabilities: Tensor | None
    states: Tensor | None


@dataclass(eq=False)
class Objective:
    """The loss of a student. spread: of the wanted scores, by which margins are divided."""

    config: ModelConfig
    spread: float

    def loss(self, model: Learner, lesson: Lesson) -> Tensor:
        """Return the sum of the losses of a batch."""
        return self.of_outputs(*model.with_states(lesson.pairs), lesson)

    def of_outputs(self, logits: Tensor, states: Tensor, lesson: Lesson) -> Tensor:
        """Return the sum of the losses of a batch. logits, states: what `Learner.with_states` returns."""
        ours = calibrated(logits, self.config)
        scores = raw_scores(ours)
        device = scores.device
        wanted = lesson.scores.to(device)
        if lesson.log_probabilities is None:
            loss = F.binary_cross_entropy_with_logits(scores, wanted.sigmoid())
        else:
            theirs = lesson.log_probabilities.to(device)
            loss = F.kl_div(F.log_softmax(ours, 1), theirs, reduction="batchmean", log_target=True)
        if len(lesson.lists):
            lists = lesson.lists.to(device)
            loss = loss + listwise(scores, wanted, lists)
            loss = loss + margin_mse(scores / self.spread, wanted / self.spread, lists)
        if lesson.states is not None:
            loss = loss + F.mse_loss(states.float(), lesson.states.to(device))
        return loss


def lists_of(pairs: Sequence[Pair], keys: Sequence[str], rng: np.random.Generator) -> list[list[int]]:
    """Return the rows of each query in lists of at most LIST_TITLES, in random order. keys: of the
    queries."""
    rows_of: dict[str, list[int]] = {}
    for row in rng.permutation(len(pairs)).tolist():
        rows_of.setdefault(keys[row], []).append(row)
    lists = [
        rows[start : start + LIST_TITLES]
        for rows in rows_of.values()
        for start in range(0, len(rows), LIST_TITLES)
    ]
    return [lists[index] for index in rng.permutation(len(lists)).tolist()]


def made_pairs(
    pairs: Sequence[Pair], keys: Sequence[str], lists: Sequence[Sequence[int]], rng: np.random.Generator
) -> tuple[list[Pair], list[list[int]]]:
    """Return pairs of queries with titles of others, and the lists with those added.

    Each list gets SWAPPED_SHARE of its length; a title that happens to be the query's own is left out. The
    new rows count on from those of `pairs`.
    """
    made = list[Pair]()
    longer = list[list[int]]()
    for rows in lists:
        drawn = rng.integers(0, len(pairs), swapped(len(rows))).tolist()
        others = [row for row in dict.fromkeys(drawn) if keys[row] != keys[rows[0]]]
        first = len(pairs) + len(made)
        made += [Pair(pairs[rows[0]].query, pairs[row].title) for row in others]
        longer.append([*rows, *range(first, first + len(others))])
    return made, longer


def swapped(length: int) -> int:
    """Return how many titles of other queries a list of this length gets."""
    return max(1, round(SWAPPED_SHARE * length))


def lessons_of(
    pairs: Sequence[Pair], lists: Sequence[Sequence[int]], targets: Targets, tokenizer: PairTokenizer
) -> list[Lesson]:
    """Return the lists in batches, in their order. targets: of all pairs."""
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in pairs])
    lessons = list[Lesson]()
    batch = list[Sequence[int]]()
    count = 0
    tokens = 0
    for rows in lists:
        more = sum(len(encoded[row]) for row in rows)
        if batch and (count + len(rows) > BATCH_PAIRS or tokens + more > BATCH_TOKENS):
            lessons.append(_lesson(batch, encoded, targets))
            batch = []
            count = 0
            tokens = 0
        batch.append(rows)
        count += len(rows)
        tokens += more
    if batch:
        lessons.append(_lesson(batch, encoded, targets))
    return lessons


def _lesson(lists: Sequence[Sequence[int]], encoded: Sequence[EncodedPair], targets: Targets) -> Lesson:
    rows = [row for of_list in lists for row in of_list]
    of_rows = targets.take(rows)
    longest = max(map(len, lists))
    first = 0
    filled = list[list[int]]()
    for of_list in lists:
        if len(of_list) > 1:
            filled.append([*range(first, first + len(of_list)), *[-1] * (longest - len(of_list))])
        first += len(of_list)
    probabilities = of_rows.probabilities
    states = of_rows.states
    return Lesson(
        [encoded[row] for row in rows],
        torch.tensor(filled, dtype=torch.int64),
        torch.from_numpy(of_rows.scores).float(),
        None if probabilities is None else torch.from_numpy(probabilities).float(),
        None if states is None else torch.from_numpy(states).float(),
    )


@dataclass(eq=False)
class TeacherTargets:
    """Targets that a model's answers give. same_grades: the student has the teacher's labels."""

    teacher: Teacher
    scale: Scale
    same_grades: bool

    def of(self, answers: np.ndarray) -> Targets:
        """Return the targets of answers, of `Teacher.answer_type`."""
        scores, log_probabilities = teacher_scores(answers["logits"], self.teacher.clf.config)
        return Targets(
            self.scale.of(scores),
            log_probabilities if self.same_grades else None,
            answers["state"] if self.teacher.states else None,
        )


Answer = Callable[[Sequence[Pair], str], np.ndarray]
"""Returns a teacher's answers to pairs; the name says which they are, so that they may be kept."""


@dataclass(eq=False)
class Rounds:
    """The batches of a training, one portion of the pairs a round.

    portions: how many there are. read: returns a portion. answer: None if the pairs have scores; then none
    are made by swapping titles. targets_of: the targets of pairs and their answers.
    """

    portions: int
    read: Callable[[int], Sequence[Pair]]
    tokenizer: PairTokenizer
    answer: Answer | None
    targets_of: Callable[[Sequence[Pair], np.ndarray | None], Targets]
    seed: int

    def make(self, index: int) -> list[Lesson]:
        """Return the batches of a round; they depend on its index alone."""
        portion = index % self.portions
        pairs = list(self.read(portion))
        keys = [query_key(pair.query) for pair in pairs]
        rng = np.random.default_rng([self.seed, index])
        lists = lists_of(pairs, keys, rng)
        answers = None
        if self.answer is not None:
            answers = self.answer(pairs, f"portion-{portion:06d}")
            made, lists = made_pairs(pairs, keys, lists, rng)
            answers = np.concatenate([answers, self.answer(made, f"round-{index:06d}")])
            pairs += made
        return lessons_of(pairs, lists, self.targets_of(pairs, answers), self.tokenizer)
