"""Metrics of ranked lists, of all lists at once: a study ranks each query's titles anew under every mask.

Titles of equal relevance share their ranks: a metric is its mean over all orders of such titles
(McSherry and Najork 2008, "Computing information retrieval performance measures efficiently in the presence
of tied scores").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from headroom.models.arrays import Bools, Floats, Ints

CUTOFF = 10
"""How many titles of a query, the first ones, NDCG, MRR and recall look at."""

BY_QUERY = ("ndcg10", "mrr10", "map", "recall10", "pair_accuracy", "query_spearman")
"""The metrics of single lists, in the order of reports."""

Number = TypeVar("Number", np.int64, np.float64)

_OF_RELEVANT = ("mrr10", "map", "recall10")
"""Those that ask of a title only whether it is relevant."""


class Rankings:
    """Lists of graded titles, each ranked by relevance.

    list_of: (n,) the list of each title; they are numbered from 0, and none is empty. truth: (n,) grades from
    0. relevance: (n,), higher comes first. relevant: the lowest grade that counts as relevant.
    """

    def __init__(
        self, list_of: Ints, truth: Ints, relevance: NDArray[np.floating], relevant: int = 1
    ) -> None:
        self.lists = int(list_of.max()) + 1 if len(list_of) else 0
        self._ties = _Ties.of(list_of, -relevance)
        self._list_of: Ints = np.sort(list_of)
        self._truth: Ints = truth[self._ties.order]
        self._grades = _Ties.of(self._list_of, self._truth)
        self._relevant: Bools = self._truth >= relevant
        self._length = np.bincount(self._list_of, minlength=self.lists)
        self._index: Ints = np.arange(len(list_of)) - self._by_row(np.cumsum(self._length) - self._length)

    def metric(self, name: str) -> Floats:
        """Return a metric of BY_QUERY of each list, (lists,).

        nan if its titles are all of one grade, or for MRR, MAP and recall all relevant or none.
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # in lists that have no such metric
            values: Floats = getattr(self, f"_{name}")()
        if name in _OF_RELEVANT:
            relevant = self._by_list(self._relevant)
            has_metric = (relevant > 0) & (relevant < self._length)
        else:
            has_metric = np.bincount(self._grades.list_of, minlength=self.lists) > 1
        return np.where(has_metric, values, np.nan)

    def ordered_pairs(self) -> Ints:
        """Return how many pairs of titles of each list differ in grade, (lists,)."""
        of_one_grade = self._by_list(self._grades.sizes**2, self._grades.list_of).astype(np.int64)
        return np.asarray((self._length**2 - of_one_grade) // 2)

    def _ndcg10(self) -> Floats:
        """Return NDCG@10 with a gain of 2^grade − 1 (Järvelin and Kekäläinen 2002; Burges et al. 2005)."""
        gains = np.exp2(self._truth.astype(np.float64)) - 1
        discounts = np.where(self._index < CUTOFF, 1 / np.log2(self._index + 2.0), 0.0)
        best_first = np.lexsort((-self._truth, self._list_of))
        ideal = self._by_list(gains[best_first] * discounts)
        return self._by_list(self._ties.mean(gains) * discounts) / ideal

    def _mrr10(self) -> Floats:
        """Return 1 / rank of the first relevant title, 0 if it is not among the first ten."""
        ties = self._ties
        relevant = ties.sum(self._relevant)
        with_relevant = np.flatnonzero(relevant)
        lists, first = np.unique(ties.list_of[with_relevant], return_index=True)
        chosen = with_relevant[first]
        before = ties.before[chosen]
        size = ties.sizes[chosen]
        count = relevant[chosen]
        mean = np.zeros(len(lists))
        chance = count / size  # that the first relevant one has this rank within its tie
        for rank in range(1, CUTOFF + 1):
            mean += np.where(before + rank <= CUTOFF, chance / (before + rank), 0)
            chance = chance * np.maximum(size - rank - count + 1, 0) / np.maximum(size - rank, 1)
        values = np.zeros(self.lists)
        values[lists] = mean
        return values

    def _map(self) -> Floats:
        """Return average precision: the mean over the relevant titles of the precision at their ranks."""
        ties = self._ties
        relevant = ties.sum(self._relevant)
        of_list = self._by_list(relevant, ties.list_of)
        earlier_lists = np.cumsum(of_list) - of_list
        relevant_before = (np.cumsum(relevant) - relevant - earlier_lists[ties.list_of])[ties.of_row]
        size = ties.sizes[ties.of_row]
        count = relevant[ties.of_row]
        earlier_in_tie = self._index - ties.before[ties.of_row]
        others = earlier_in_tie * (count - 1) / np.maximum(size - 1, 1)  # relevant ones of its tie before it
        precision = (relevant_before + others + 1) / (self._index + 1)
        return self._by_list(count / size * precision) / of_list

    def _recall10(self) -> Floats:
        """Return the share of the relevant titles that are among the first ten."""
        ties = self._ties
        relevant = ties.sum(self._relevant)
        within = np.clip(CUTOFF - ties.before, 0, ties.sizes)
        found = self._by_list(relevant * within / ties.sizes, ties.list_of)
        return found / self._by_list(relevant, ties.list_of)

    def _pair_accuracy(self) -> Floats:
        """Return the share of two titles of different grades in the right order; equal ones count half."""
        grade_of = self._grades.of_titles(self._grades.number_in_list())
        ties = len(self._ties.sizes)
        key_of = self._list_of * ties + (ties - 1 - self._ties.of_row)  # by list, then by relevance
        right = np.zeros(self.lists)
        for grade in range(1, int(grade_of.max(initial=0)) + 1):
            lower = np.sort(key_of[grade_of < grade])
            lists = self._list_of[grade_of == grade]
            keys = key_of[grade_of == grade]
            below = (np.searchsorted(lower, keys, "left") + np.searchsorted(lower, keys, "right")) / 2
            right += self._by_list(below - np.searchsorted(lower, lists * ties), lists)
        return right / self.ordered_pairs()

    def _query_spearman(self) -> Floats:
        """Return the rank correlation of relevance and grades; 0 if all titles have one relevance."""
        middle = (self._by_row(self._length) + 1) / 2
        by_relevance = middle - self._ties.mean_rank()[self._ties.of_row]  # the first rank is the highest
        by_grade = self._grades.of_titles(self._grades.mean_rank()) - middle
        spread = self._by_list(by_relevance**2) * self._by_list(by_grade**2)
        return self._by_list(by_relevance * by_grade) / np.sqrt(np.where(spread > 0, spread, 1))

    def _by_list(self, values: NDArray[np.generic], list_of: Ints | None = None) -> Floats:
        """Return sums by list, (lists,). list_of: of the values; None for (n,) in rank order."""
        lists = self._list_of if list_of is None else list_of
        return np.bincount(lists, values, self.lists).astype(np.float64)

    def _by_row(self, of_list: NDArray[np.generic]) -> Ints:
        """Return a value of each list for each of its titles, (n,)."""
        return np.asarray(of_list[self._list_of])


def ndcg10(truth: Ints, relevance: NDArray[np.floating]) -> float:
    """Return the NDCG@10 of one list. truth: (n,) grades. relevance: (n,), what ranks the titles."""
    return float(Rankings(np.zeros(len(truth), np.int64), truth, relevance).metric("ndcg10")[0])


@dataclass(frozen=True, slots=True)
class _Ties:
    """Titles of equal value, in order of their lists, then of their values.

    order: (n,) the titles' indices in that order. of_row: (n,) the tie of each of `order`. Of each tie,
    list_of: its list; before: how many titles of its list stand before it; sizes: how many it has.
    """

    order: Ints
    of_row: Ints
    list_of: Ints
    before: Ints
    sizes: Ints

    @classmethod
    def of(cls, list_of: Ints, values: NDArray[np.generic]) -> _Ties:
        """Return the ties of n titles, smallest value first."""
        order = np.lexsort((values, list_of))
        lists = list_of[order]
        sorted_values = values[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (np.diff(lists) != 0) | (sorted_values[1:] != sorted_values[:-1])
        first = np.flatnonzero(begins)
        sizes = np.diff(np.append(first, len(order)))
        starts = np.searchsorted(lists, lists[first])
        return cls(order, np.cumsum(begins) - 1, lists[first], first - starts, sizes)

    def sum(self, values: NDArray[np.generic]) -> Ints:
        """Return the whole number that each tie's values, (n,) in order, add up to."""
        return np.bincount(self.of_row, values, len(self.sizes)).astype(np.int64)

    def mean(self, values: Floats) -> Floats:
        """Return for each title the mean value of its tie; both (n,) in order."""
        return np.asarray((np.bincount(self.of_row, values, len(self.sizes)) / self.sizes)[self.of_row])

    def of_titles(self, of_ties: NDArray[Number]) -> NDArray[Number]:
        """Return a value of each tie, (ties,), for each title, (n,), in the titles' own order."""
        values = np.empty(len(self.order), of_ties.dtype)
        values[self.order] = of_ties[self.of_row]
        return values

    def mean_rank(self) -> Floats:
        """Return the rank in its list, from 1, that the titles of each tie share."""
        return np.asarray(self.before + (self.sizes + 1) / 2)

    def number_in_list(self) -> Ints:
        """Return the number of each tie in its list, from 0."""
        return np.asarray(np.arange(len(self.sizes)) - np.searchsorted(self.list_of, self.list_of))
