"""Simulates users who ask queries of the sample and click titles of the lists that they are shown.

How users differ, how they read and what attracts them is assumed; which titles are good, the labels say.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.interleaved import PAGE, Floats, Ints, Lists
from benchmarks.workload import SAMPLE
from headroom import Classifier, HeadMask
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.quality.labelled import read_labelled
from headroom.service.experiments.interleaving import own_order

Bools = NDArray[np.bool_]

MIN_TITLES = PAGE
"""Queries of the sample with fewer titles are left out."""

NO_TITLE = -1

ATTRACTION = (2.0 ** np.arange(5) - 1) / 16
"""The chance that a user whose appetite is 1 clicks a title that he looks at, by grade: that of expected
reciprocal rank (Chapelle, Metzler, Zhang & Grinspan 2009)."""

LEAVES = np.linspace(0.1, 0.7, 5)
"""The chance that a user of the cascade model leaves after a click, by grade."""

GIVES_UP = 0.15
"""The chance that a user of the cascade model leaves after a title that he did not click."""

APPETITE = (-0.3, 1.0)
"""Mean and standard deviation of the logarithm of how readily a user clicks."""

MAX_LISTS = 5
HEAVY_LISTS = 20


@dataclass(frozen=True, slots=True)
class Rankings:
    """The orders of variants for the sample's queries.

    grades: (queries, titles) int8, NO_TITLE where a query has fewer titles. orders: by variant, (queries,
    titles) int16, the titles' indices, best first, then NO_TITLE.
    """

    grades: Ints
    orders: dict[str, Ints]

    @classmethod
    def of_model(cls, variants: dict[str, str], model: Path = DEFAULT) -> Self:
        """Score the test queries under each variant. variants: mask specs by name."""
        classifier = Classifier.load(model, "cpu", "float32")
        by_query: dict[str, list[tuple[str, int]]] = {}
        for pair in read_labelled(SAMPLE / "test.jsonl.gz", grades=5):
            by_query.setdefault(pair.query, []).append((pair.title, pair.grade))
        pages = {query: page for query, page in by_query.items() if len(page) >= MIN_TITLES}
        shape = (len(pages), max(map(len, pages.values())))
        grades = np.full(shape, NO_TITLE, np.int8)
        orders = {name: np.full(shape, NO_TITLE, np.int16) for name in variants}
        for row, page in enumerate(pages.values()):
            grades[row, : len(page)] = [grade for _, grade in page]
        pairs = [(query, title) for query, page in pages.items() for title, _ in page]
        for name, spec in variants.items():
            mask = HeadMask.parse(
                spec,
                layers=classifier.num_layers,
                heads=classifier.num_heads,
                stored=classifier.stored_masks,
            )
            raw_scores = iter(classifier.score(pairs, mask).raw_score.tolist())
            for row, page in enumerate(pages.values()):
                orders[name][row, : len(page)] = own_order([next(raw_scores) for _ in page])
        return cls(grades, orders)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            return cls(arrays["grades"], {name: arrays[name] for name in arrays.files if name != "grades"})

    def save(self, path: Path) -> None:
        """Write a file of numpy arrays."""
        np.savez_compressed(path, allow_pickle=False, grades=self.grades, **self.orders)

    def ranking(self, variant: str, query: int) -> list[int]:
        """Return a variant's order of one query's titles."""
        order: list[int] = self.orders[variant][query].tolist()
        return [title for title in order if title != NO_TITLE]


@dataclass(frozen=True, slots=True)
class Visits:
    """The lists that users ask for, in the order of their users. All arrays have one entry for each list.

    user: from 0. query: its row in the rankings. appetite: how readily the user clicks. luck: in [0, 1),
    picks one of the lists that may be shown; a user's repeated query has the same. is_bot: clicks everything.
    """

    user: Ints
    query: Ints
    appetite: Floats
    luck: Floats
    is_bot: Bools


@dataclass(frozen=True, slots=True)
class Crowd:
    """The kind of users.

    heavy: the share that repeats one query 20 times. bots: the share that clicks everything.
    drifts: the mix of queries changes from the first of `run` users to the last.
    """

    heavy: float = 0.0
    bots: float = 0.0
    drifts: bool = False


def visits(crowd: Crowd, users: int, run: int, queries: int, rng: np.random.Generator) -> Visits:
    """Return the lists of users. run: users of one experiment; several follow one another."""
    is_heavy = rng.random(users) < crowd.heavy
    lists = np.where(is_heavy, HEAVY_LISTS, rng.integers(1, MAX_LISTS + 1, users))
    user = np.repeat(np.arange(users), lists)
    first = np.repeat(np.cumsum(lists) - lists, lists)
    query = rng.integers(queries, size=len(user))
    if crowd.drifts:
        is_late = rng.random(len(user)) < user % run / run
        early_mix, late_mix = rng.dirichlet(np.full(queries, 0.1), 2)
        early = rng.choice(queries, len(user), p=early_mix)
        query = np.where(is_late, rng.choice(queries, len(user), p=late_mix), early)
    luck = rng.random(len(user))
    repeats = np.repeat(is_heavy, lists)
    return Visits(
        user=user,
        query=np.where(repeats, query[first], query),
        appetite=np.repeat(np.exp(rng.normal(*APPETITE, users)), lists),
        luck=np.where(repeats, luck[first], luck),
        is_bot=np.repeat(rng.random(users) < crowd.bots, lists),
    )


ClickModel = Callable[[Floats, Ints, np.random.Generator], Bools]
"""Returns which titles are clicked, from their attraction and grades, (lists, PAGE)."""


def position_based(attraction: Floats, grades: Ints, rng: np.random.Generator) -> Bools:
    """The title at rank r is looked at with chance 1/√r; what is looked at is clicked if it attracts."""
    return rng.random(grades.shape) < attraction / np.sqrt(np.arange(1, grades.shape[1] + 1))


def hasty(attraction: Floats, grades: Ints, rng: np.random.Generator) -> Bools:
    """As `position_based`, but the title at rank r is looked at with chance 1/r."""
    return rng.random(grades.shape) < attraction / np.arange(1, grades.shape[1] + 1)


def cascade(attraction: Floats, grades: Ints, rng: np.random.Generator) -> Bools:
    """The list is read from the top, until the user is satisfied by a title that he clicked, or gives up."""
    attracts = rng.random(grades.shape) < attraction
    leaves = rng.random(grades.shape) < np.where(attracts, LEAVES[grades], GIVES_UP)
    is_read: Bools = np.cumsum(leaves, axis=1) - leaves == 0
    return attracts & is_read


CLICK_MODELS: dict[str, ClickModel] = {"position-based": position_based, "cascade": cascade}


@dataclass(frozen=True, slots=True)
class Clicks:
    """The clicks of users. All arrays have one entry for each user.

    number: clicks. lists: lists asked for. gained, given: the sums of the credits of the clicked titles, and
    of the credits' absolute values.
    """

    number: Floats
    lists: Floats
    gained: Floats
    given: Floats

    @property
    def values(self) -> Floats:
        """The preference of each user, in [−1, 1]; NaN without a click on a title that has credit."""
        with np.errstate(invalid="ignore"):
            return self.gained / np.where(self.given > 0, self.given, np.nan)


def click(model: ClickModel, shown: Lists, grades: Ints, of: Visits, rng: np.random.Generator) -> Clicks:
    """Show users the lists that they ask for, and return what they click.

    grades: those of the titles, (queries, titles).
    """
    users = int(of.user[-1]) + 1
    variant = (of.luck[:, None] >= np.cumsum(shown.probability, axis=1)[of.query, :-1]).sum(1)
    titles = shown.titles[of.query, variant]  # (lists, PAGE)
    title_grades = grades[of.query[:, None], titles]
    readily = np.minimum(ATTRACTION[title_grades] * of.appetite[:, None], 1.0)
    clicked = model(readily, title_grades, rng) | of.is_bot[:, None]
    credit = clicked * shown.credit[of.query, variant]

    def by_user(of_lists: Floats | Ints) -> Floats:
        return np.bincount(of.user, of_lists, users).astype(np.float64)

    return Clicks(
        number=by_user(clicked.sum(1)),
        lists=np.bincount(of.user, minlength=users).astype(np.float64),
        gained=by_user(credit.sum(1)),
        given=by_user(np.abs(credit).sum(1)),
    )
