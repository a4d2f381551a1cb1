"""Computes how many lists drawn from two arms' rankings differ, and what users would click.

A user sees the title at rank k with the probability 1/k (the position-based model with η = 1; Joachims,
Swaminathan & Schnabel 2017, https://arxiv.org/abs/1608.04468).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headroom.service.experiments.estimates import Floats
from headroom.service.experiments.interleaving import SHARED, TREATMENT, coins, draw, own_order

DRAWS = 16
"""Lists drawn of each query, because the coins move titles up and down."""

USERS = 50
"""Simulated users of each list."""

Scores = tuple[Floats, Floats]
"""Control's and the treatment's scores of a query's titles, (titles,) each."""


@dataclass(frozen=True, slots=True)
class Lists:
    """How much of what users do says something about the arms.

    differing: share of the lists in which some title belongs to one arm.
    deciding: share of the clicks, over all lists, that fall on such a title.
    """

    differing: float
    deciding: float


ASSUMED = Lists(differing=0.87, deciding=0.36)
"""What is assumed if nothing was measured: the shipped model's `pruned20` on data/sample/test.jsonl.gz, with
earlier weights. With the present ones the shares are 0.87 and 0.40."""

DECIDING_IN_DIFFERING = 0.4
"""Share of the clicks on lists that differ which fall on a title of one arm, if it was not measured."""


def measure_lists(scores: Sequence[Scores], shown: int | None = None) -> Lists:
    """Return how much the lists drawn from two arms' scores differ.

    scores: of each query. shown: how many titles a list shows; None: all. Raises ValueError without a query.
    """
    differing = []
    deciding = []
    for _, _, teams in _draw_lists(scores, shown):
        seen = 1 / np.arange(1, len(teams) + 1)
        differing.append(bool((teams != SHARED).any()))
        deciding.append(seen[teams != SHARED].sum() / seen.sum())
    if not differing:
        raise ValueError("no query to measure lists of")
    return Lists(float(np.mean(differing)), float(np.mean(deciding)))


@dataclass(frozen=True, slots=True)
class ClicksByQuery:
    """The clicks of simulated users on the lists of each query, (queries,) each.

    differing: share of the lists in which a title belongs to one arm. clicking: users who click some
    title. deciding: those who click a title of one arm. value: the sum of their values
    (`headroom.service.experiments.preference`).
    """

    differing: Floats
    clicking: Floats
    deciding: Floats
    value: Floats

    @property
    def lists(self) -> Lists:
        """How much of what these users do says something about the arms.

        Raises ValueError without a click.
        """
        if not self.clicking.sum():
            raise ValueError("no title has a grade above 0, so nobody would click one")
        return Lists(float(self.differing.mean()), float(self.deciding.sum() / self.clicking.sum()))


def simulate_clicks(
    scores: Sequence[Scores], grades: Sequence[Floats], shown: int | None = None
) -> ClicksByQuery:
    """Return what users do who click as people judged.

    A user clicks what it sees with (2^grade − 1) / 2^highest, the probability that such a title satisfies
    (Chapelle et al. 2009, "Expected reciprocal rank for graded relevance",
    https://doi.org/10.1145/1645953.1646033).

    scores: of each query. grades: of each query's titles, (titles,) each, from 0.
    shown: how many titles users see; None: all.
    """
    highest = max(float(of_query.max()) for of_query in grades)
    rng = np.random.default_rng(7)
    sums = np.zeros((4, len(scores)))
    for query, order, teams in _draw_lists(scores, shown):
        satisfying = (2.0 ** grades[query][order] - 1) / 2.0**highest
        clicks = rng.random((USERS, len(order))) < satisfying / np.arange(1, len(order) + 1)
        of_treatment = clicks[:, teams == TREATMENT].sum(1)
        of_both = clicks[:, teams != SHARED].sum(1)
        decides = of_both > 0
        value = 2 * of_treatment[decides] / of_both[decides] - 1
        sums[:, query] += (
            (teams != SHARED).any() / DRAWS,
            clicks.any(1).sum(),
            decides.sum(),
            value.sum(),
        )
    return ClicksByQuery(*sums)


def _draw_lists(
    scores: Sequence[Scores], shown: int | None
) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.str_]]]:
    """Yield what DRAWS units see of each query: its number, the titles shown in order, and their teams."""
    for query, (control, treatment) in enumerate(scores):
        rankings = (own_order(control.tolist()), own_order(treatment.tolist()))
        for unit in range(DRAWS):
            drawn = draw(*rankings, coins("plan", str(unit), str(query)))
            yield query, np.array(drawn.order[:shown]), np.array(list(drawn.teams[:shown]))
