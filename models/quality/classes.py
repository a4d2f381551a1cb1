"""Puts queries into classes, and says in which of them one ranking is better than another."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from headroom.models.arrays import Floats, Ints
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.quality import bootstrap
from headroom.models.quality.bootstrap import Interval, estimate_of, resample
from headroom.models.quality.evaluation import CLUSTERS, Evaluation, positive
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.lexical import stems_of

BUILT_IN = ("words", "all-words-in-a-title", "script")
"""The classes that need no column: how many words a query has, whether some title has them all, and its
script."""

MANY_WORDS = 4

_ERROR_RATE = 0.05
"""The chance that any class's interval misses its value, all classes together."""


def classes_of(pairs: Sequence[LabelledPair], by: str) -> list[str]:
    """Return the class of each list, in the order of `numbers_of_lists`. by: one of BUILT_IN, or a column,
    whose values the pairs have.

    Raises ModelError if the rows of a query have different values.
    """
    titles: dict[str, list[str]] = {}
    values: dict[str, str | None] = {}
    for pair in pairs:
        titles.setdefault(pair.query, []).append(pair.title)
        if values.setdefault(pair.query, pair.by) != pair.by:
            raise ModelError(
                f"{by}: the query {pair.query[:40]!r} has {values[pair.query]!r} in one row and {pair.by!r} "
                "in another; a query is in one class"
            )
    built_in: dict[str, Callable[[str], str]] = {
        "words": _words,
        "all-words-in-a-title": lambda query: _all_words(query, titles[query]),
        "script": _script,
    }
    if by in built_in:
        return [built_in[by](query) for query in titles]
    return [str(values[query]) for query in titles]


def _words(query: str) -> str:
    count = len(query.split())
    if count >= MANY_WORDS:
        return f"{MANY_WORDS} words or more"
    return "1 word" if count == 1 else f"{count} words"


def _all_words(query: str, titles: Sequence[str]) -> str:
    words = set(stems_of(query)) or set(query.casefold().split())
    is_held = any(words <= {*stems_of(title), *title.casefold().split()} for title in titles)
    return "some title has all words" if is_held else "no title has all words"


def _script(query: str) -> str:
    """Return the script of a query's letters, as Unicode names them."""
    names = {unicodedata.name(letter, "OTHER").split()[0] for letter in query if letter.isalpha()}
    if names & {"HIRAGANA", "KATAKANA"} and names <= {"HIRAGANA", "KATAKANA", "CJK", "KATAKANA-HIRAGANA"}:
        return "Japanese"
    if len(names) > 1:
        return "several scripts"
    return next(("Han" if name == "CJK" else name.capitalize() for name in names), "no letters")


def by_class(model: Evaluation, order: Evaluation, names: Sequence[str], *, resamples: int) -> list[Json]:
    """Return the change of NDCG@10 from an order to a model in each class of queries, largest class first.

    names: the class of each list. Both evaluations are of the same pairs. `value` is the mean change over the
    lists of a class whose titles differ in grade; `low` and `high` hold for all classes together (Bonferroni:
    a class's interval misses with a chance of 5 % divided by the number of classes that have one), nan for
    fewer than MIN_QUERIES queries; `pooled` is `shrunk`. Classes without such a list are left out.
    """
    changes = model.of_list("ndcg10") - order.of_list("ndcg10")
    first = np.unique(model.list_of, return_index=True)[1]
    query_of_list = model.query_of[first]
    of_class: dict[str, Ints] = {}
    known = np.isfinite(changes)
    for name in dict.fromkeys(names):
        rows = np.flatnonzero(known & np.array([one == name for one in names]))
        if len(rows):
            of_class[name] = rows
    queries = {name: len(np.unique(query_of_list[rows])) for name, rows in of_class.items()}
    tested = sum(count >= bootstrap.MIN_QUERIES for count in queries.values())
    pooled = shrunk([changes[rows] for rows in of_class.values()])
    total = sum(queries.values())
    found = []
    for (name, rows), towards_all in zip(of_class.items(), pooled, strict=True):
        interval = _mean_change(changes[rows], query_of_list[rows], _ERROR_RATE / max(tested, 1), resamples)
        found.append(
            {
                "name": name,
                "queries": queries[name],
                "share": queries[name] / total,
                "value": interval.value,
                "low": interval.low,
                "high": interval.high,
                "pooled": towards_all,
            }
        )
    return sorted(found, key=lambda each: -each["queries"])


def _mean_change(changes: Floats, query_of: Ints, error_rate: float, resamples: int) -> Interval:
    """Return the mean of changes, (n,), with an interval by symmetric bootstrap-t over their queries."""
    clusters = np.unique(query_of, return_inverse=True)[1] % CLUSTERS
    queries = len(np.unique(query_of))
    sums = np.bincount(clusters, changes).astype(np.float64)
    sizes = np.bincount(clusters).astype(np.float64)

    def means(counts: Floats) -> dict[str, Floats]:
        return {"change": (counts @ sums) / positive(counts @ sizes)}

    counts = resample(len(sums), resamples, 0)
    drawn = bootstrap.draws(means, counts, lambda _: queries)["change"]
    return estimate_of(drawn, counts).interval(error_rate).within(-1.0, 1.0)


def shrunk(groups: Sequence[Floats]) -> list[float]:
    """Return the means of groups of values, moved towards each other: partial pooling.

    Empirical Bayes in the normal model (Efron and Morris 1975; Morris 1983, "Parametric empirical Bayes
    inference", JASA 78, 47–55). The mean y_k of group k, of n_k values, has the variance s_k² = σ² / n_k,
    with σ² the variance within groups. The true means spread around μ with the variance τ², by the moments of
    DerSimonian and Laird (1986):

        w_k = 1 / s_k²,  Q = Σ w_k (y_k − Σ w_k y_k / Σ w_k)²
        τ² = max(0, (Q − (K − 1)) / (Σ w_k − Σ w_k² / Σ w_k))
        μ = Σ y_k / (τ² + s_k²) / Σ 1 / (τ² + s_k²)
        pooled_k = μ + τ² / (τ² + s_k²) · (y_k − μ)

    So a group of few values is near μ. One group, and groups without spread, stay as they are.
    """
    means = np.array([values.mean() for values in groups])
    sizes = np.array([len(values) for values in groups], np.float64)
    within = sum(float(((values - values.mean()) ** 2).sum()) for values in groups)
    freedom = sizes.sum() - len(groups)
    if len(groups) < 2 or freedom < 1 or within == 0:
        return [float(mean) for mean in means]
    variances = within / freedom / sizes
    weights = 1 / variances
    spread = float(weights @ (means - weights @ means / weights.sum()) ** 2)
    between = (spread - (len(groups) - 1)) / (weights.sum() - (weights**2).sum() / weights.sum())
    between = max(0.0, between)
    precisions = 1 / (between + variances)
    centre = precisions @ means / precisions.sum()
    return [float(value) for value in centre + between / (between + variances) * (means - centre)]
