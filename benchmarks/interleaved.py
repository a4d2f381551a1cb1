"""Ways to draw one list from two rankings and to credit its clicks, as the lists that each may show.

A list's page is its first PAGE titles. A credit above 0 is for the treatment.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from headroom.service.experiments.interleaving import CONTROL, TREATMENT, draw

Floats = NDArray[np.float64]
Ints = NDArray[Any]

PAGE = 20
"""Titles that are shown: those of a request as users of a reranker send it."""

COINS = 16
"""Sequences of coins that are taken of a team-draft's; their opposites are taken too."""

MERGERS = 500
"""Merged lists that are drawn for optimized interleaving to choose from."""

Page = tuple[Sequence[int], Sequence[float], float]
"""The titles of a list's page, their credits, and the chance that the list is shown."""

Way = Callable[[Sequence[int], Sequence[int]], list[Page]]
"""Returns all lists that may be shown, from the orders of control and of the treatment."""


@dataclass(frozen=True, slots=True)
class Lists:
    """All lists that may be shown for each query.

    titles, credit: (queries, lists, PAGE). probability: (queries, lists), 0 for lists that only fill up.
    """

    titles: Ints
    credit: Floats
    probability: Floats

    @classmethod
    def of(cls, pages: Sequence[Sequence[Page]]) -> "Lists":
        """Return the lists of each query as arrays."""
        most = max(map(len, pages))
        titles = np.zeros((len(pages), most, PAGE), np.int16)
        credit = np.zeros((len(pages), most, PAGE))
        probability = np.zeros((len(pages), most))
        for query, of_query in enumerate(pages):
            for number, (page, page_credit, chance) in enumerate(of_query):
                titles[query, number] = page
                credit[query, number] = page_credit
                probability[query, number] = chance
        return cls(titles, credit, probability)


def alone(control: Sequence[int], treatment: Sequence[int]) -> list[Page]:
    """Each arm's own list, as an A/B test shows it: control's with luck below one half."""
    no_credit = [0.0] * PAGE
    return [(control[:PAGE], no_credit, 0.5), (treatment[:PAGE], no_credit, 0.5)]


CREDIT = {TREATMENT: 1.0, CONTROL: -1.0}


def team_draft(control: Sequence[int], treatment: Sequence[int]) -> list[Page]:
    """The draw that is served: team-draft, where equal next titles are shared."""
    pages: list[Page] = []
    for coins in coin_sequences():
        drawn = draw(control, treatment, coins.__getitem__)
        credit = [CREDIT.get(team, 0.0) for team in drawn.teams[:PAGE]]
        pages.append((drawn.order[:PAGE], credit, 0.5 / COINS))
    return pages


def classic_team_draft(control: Sequence[int], treatment: Sequence[int]) -> list[Page]:
    """Team-draft as it was published: each title belongs to the arm that picked it, equal ones too."""
    pages: list[Page] = []
    for coins in coin_sequences():
        order: list[int] = []
        page_credit: list[float] = []
        for coin in coins[: PAGE // 2]:
            picks = [(control, -1.0), (treatment, 1.0)]
            if coin:
                picks.reverse()
            for ranking, credit in picks:
                order.append(next(title for title in ranking if title not in order))
                page_credit.append(credit)
        pages.append((order, page_credit, 0.5 / COINS))
    return pages


def coin_sequences() -> list[list[int]]:
    """Return sequences of coins for up to 100 rounds, each with its opposite."""
    coins = np.random.default_rng(0).integers(0, 2, (COINS, 100))
    return [*coins.tolist(), *(1 - coins).tolist()]


def balanced(control: Sequence[int], treatment: Sequence[int]) -> list[Page]:
    """Balanced interleaving (Joachims 2003): the arms take turns; clicks are for who ranks higher."""
    pages: list[Page] = []
    for rankings in ((control, treatment), (treatment, control)):
        order: list[int] = []
        taken = [0, 0]
        while len(order) < PAGE:
            turn = 0 if taken[0] <= taken[1] else 1
            title = rankings[turn][taken[turn]]
            taken[turn] += 1
            if title not in order:
                order.append(title)
        credit = [float(np.sign(control.index(title) - treatment.index(title))) for title in order]
        pages.append((order, credit, 0.5))
    return pages


def counterfactual(control: Sequence[int], treatment: Sequence[int]) -> list[Page]:
    """Balanced lists, debiased by inverse propensity (after Bi et al., CIKM 2022).

    A title's credit is how much likelier it is looked at in the treatment's own list than in control's, over
    how likely it is looked at in the lists shown. Rank r is taken to be looked at with chance 1/r.
    """
    pages = balanced(control, treatment)
    looked: dict[int, float] = {}
    for order, _, chance in pages:
        for rank, title in enumerate(order, start=1):
            looked[title] = looked.get(title, 0.0) + chance / rank

    def chance_in(ranking: Sequence[int], title: int) -> float:
        rank = ranking.index(title) + 1
        return 1 / rank if rank <= PAGE else 0.0

    return [
        (
            order,
            [(chance_in(treatment, title) - chance_in(control, title)) / looked[title] for title in order],
            chance,
        )
        for order, _, chance in pages
    ]


def optimized(control: Sequence[int], treatment: Sequence[int]) -> list[Page]:
    """Optimized interleaving (Radlinski & Craswell 2013), with the credit 1/rank.

    Of lists that merge both rankings, it shows those in which users who click without looking favour no arm,
    and of these the most sensitive ones. A query without any shows control's list without credit.
    """
    orders = sorted(mergers(control, treatment))
    gain = {title: 1 / (treatment.index(title) + 1) - 1 / (control.index(title) + 1) for title in control}
    credit = np.array([[gain[title] for title in order] for order in orders])  # (lists, PAGE)
    looked = 1 / np.arange(1, PAGE + 1)
    shares = np.stack([(looked * side).sum(1) for side in (credit > 0, credit < 0, credit == 0)])
    shares /= looked.sum()
    logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    sensitivity = -(shares * logarithms).sum(0)
    no_bias = np.cumsum(credit, axis=1).T  # (PAGE, lists)
    found = linprog(
        -sensitivity,
        A_eq=np.vstack([no_bias, np.ones(len(orders))]),
        b_eq=[0.0] * PAGE + [1.0],
        bounds=(0, 1),
    )
    if found.status != 0:
        return [(control[:PAGE], [0.0] * PAGE, 1.0)]
    chances = np.maximum(found.x, 0) / np.maximum(found.x, 0).sum()
    shown = np.flatnonzero(chances > 1e-9)
    return [(orders[row], credit[row].tolist(), float(chances[row])) for row in shown]


def mergers(control: Sequence[int], treatment: Sequence[int]) -> set[tuple[int, ...]]:
    """Return random pages whose every title is the next of either ranking that is not on the page yet."""
    pages: set[tuple[int, ...]] = set()
    for coins in np.random.default_rng(0).integers(0, 2, (MERGERS, PAGE)).tolist():
        order: list[int] = []
        for coin in coins:
            ranking = treatment if coin else control
            order.append(next(title for title in ranking if title not in order))
        pages.add(tuple(order))
    return pages


def lists_of(way: Way, rankings: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Lists:
    """Return the lists that a way may show, from both orders of each query."""
    return Lists.of([way(control, treatment) for control, treatment in rankings])
