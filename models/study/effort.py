"""The amount that a study computes: everything, or with `--quick` just enough for a rough answer."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Effort:
    """The numbers of things that a study computes.

    pairs: how many pairs of each file are used, spread over the queries; None: as many as --max-pairs allows.
    resamples: the most resamples of a bootstrap. permutations: the draws of a permutation test over queries.
    fractions, draws: for `random`, the number of shares of heads off above 0, and of masks per share.
    role_pairs, role_sets: for `roles`, the pairs whose attention is scored, and the random sets for each
    comparison. compared_pairs: the pairs that `similarity` compares. tokens: the tokens whose states `layers`
    compares. condensed_queries: the queries that `words` condenses. shares: the shares of heads kept at which
    `search` makes masks, in the order tested; orders: how many random orders it makes, and how many random
    masks of each kind it compares with the chosen one. rounds: how often `cost` and `search` time each thing.
    """

    pairs: int | None = None
    resamples: int = 20_000
    permutations: int = 19_999
    fractions: int = 20
    draws: int = 20
    role_pairs: int = 400
    role_sets: int = 100
    compared_pairs: int = 100
    tokens: int = 1200
    condensed_queries: int = 150
    shares: tuple[float, ...] = tuple(round(1 - 0.05 * step, 2) for step in range(1, 20))
    orders: int = 20
    rounds: int = 7


FULL = Effort()

QUICK = Effort(
    pairs=250,
    resamples=400,
    permutations=1_999,
    fractions=10,
    draws=4,
    role_pairs=60,
    role_sets=10,
    compared_pairs=25,
    tokens=500,
    condensed_queries=25,
    shares=(0.8, 0.6, 0.4, 0.3, 0.2),
    orders=5,
    rounds=3,
)

QUICK_ALL = replace(QUICK, pairs=120)
"""For `all`: every kind in the time of one or two."""

QUERY_TITLES = 4
"""Titles per query in a quick study: with fewer there is hardly an order to judge."""


def left_out(kind: str, quick: Effort = QUICK, full: Effort = FULL) -> str:
    """Say in one paragraph, with which the report begins, what a quick study of this kind leaves out."""
    each = {
        "single": f"{quick.permutations:,} permutations instead of {full.permutations:,}",
        "random": f"{quick.fractions} shares of heads with {quick.draws} draws each instead of "
        f"{full.fractions} with {full.draws}",
        "layers": f"{quick.tokens} tokens compared instead of {full.tokens:,}, {quick.permutations:,} "
        f"permutations instead of {full.permutations:,}",
        "roles": f"attention in {quick.role_pairs} pairs instead of {full.role_pairs}, {quick.role_sets} "
        f"random sets for each comparison instead of {full.role_sets}",
        "similarity": f"attention in {quick.compared_pairs} pairs instead of {full.compared_pairs}",
        "cost": f"{quick.rounds} rounds instead of {full.rounds}",
        "words": f"{quick.condensed_queries} queries condensed instead of {full.condensed_queries}",
        "search": f"masks of {len(quick.shares)} sizes instead of {len(full.shares)}, {quick.orders} random "
        f"orders instead of {full.orders}",
    }
    of_all = [f"{name}: {text}" for name, text in each.items() if name != "cost"]
    parts = of_all if kind == "all" else [each[kind]]
    return (
        f"This is a rough answer (--quick): at most {quick.pairs} pairs of each file, about {QUERY_TITLES} "
        "titles per query, so that NDCG@10 ranks fewer titles than in the full study; at most "
        f"{quick.resamples} bootstrap resamples; {'; '.join(parts)}. Intervals are wider and small effects "
        "are missed. Run the same command without --quick before you act on it."
    )
