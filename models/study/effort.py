"""How much a study computes: everything, or with `--quick` as little as still gives a rough answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Counts of what a study computes.

    pairs: of each file, spread over the queries; None: all that --max-pairs lets in.
    resamples: of a bootstrap, at most. permutations: of a test over queries.
    fractions, draws: of `random`, shares of heads off above 0 and masks for each.
    role_pairs, role_sets: of `roles`, pairs whose attention is scored and random sets for each comparison.
    compared_pairs: of `similarity`. tokens: whose states `layers` compares.
    shares: of heads kept, at which `search` makes masks, in the order tested; orders: its random orders, and
    the random masks of each kind beside the chosen one.
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
    shares: tuple[float, ...] = tuple(round(1 - 0.05 * step, 2) for step in range(1, 20))
    orders: int = 20


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
    shares=(0.8, 0.6, 0.4, 0.3, 0.2),
    orders=5,
)

QUERY_TITLES = 4
"""Titles of each query in a quick study: with fewer there is hardly an order to judge."""


def left_out(kind: str, quick: Effort = QUICK, full: Effort = FULL) -> str:
    """What a quick study of this kind leaves out, in one paragraph that its report begins with."""
    each = {
        "single": f"{quick.permutations:,} permutations instead of {full.permutations:,}",
        "random": f"{quick.fractions} shares of heads with {quick.draws} draws each instead of "
        f"{full.fractions} "
        f"with {full.draws}",
        "layers": f"{quick.tokens} tokens compared instead of {full.tokens:,}, {quick.permutations:,} "
        f"permutations instead of {full.permutations:,}",
        "roles": f"attention in {quick.role_pairs} pairs instead of {full.role_pairs}, {quick.role_sets} "
        "random "
        f"sets for each comparison instead of {full.role_sets}",
        "similarity": f"attention in {quick.compared_pairs} pairs instead of {full.compared_pairs}",
        "search": f"masks of {len(quick.shares)} sizes instead of {len(full.shares)}, {quick.orders} random "
        f"orders instead of {full.orders}",
    }
    parts = [f"{name}: {text}" for name, text in each.items()] if kind == "all" else [each[kind]]
    return (
        f"This is a rough answer (--quick): at most {quick.pairs} pairs of each file, about "
        f"{QUERY_TITLES} titles "
        f"of a query, so that NDCG@10 ranks fewer titles than in the full study; at most {quick.resamples} "
        f"bootstrap resamples; {'; '.join(parts)}. Intervals are wider and small effects are missed. Run "
        f"the same "
        "command without --quick before you act on it."
    )
