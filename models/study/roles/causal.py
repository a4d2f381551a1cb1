"""The causal check: the heads of a role are switched off, and so are random heads of the same layers."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.quality.bootstrap import Estimate
from models.study.base import Head, Heads, weights_without
from models.study.inputs import spread_over_queries
from models.study.roles.scores import RoleScores
from models.study.statistics import Resamples, effect, permutation_p
from models.study.study import Study

PAIRS = 600
"""How many pairs, spread over the queries, hundreds of masks are tried on: the queries are the sample."""

TRIES = 10
"""Draws for each random set that is wanted: where few different sets are possible, there are fewer."""

CAUSAL_METRICS = ("accuracy", "qwk", "ndcg10")
"""The metrics that are compared."""


@dataclass(frozen=True)
class Comparison:
    """The effect of switching some heads off, beside that of random sets with as many heads of each layer.

    relative: by metric, the relative change with its bootstrap.
    random: by metric, the relative change of each random set.
    """

    heads: Heads
    relative: dict[str, Estimate]
    random: dict[str, np.ndarray]

    @property
    def p(self) -> dict[str, float]:
        """Return by metric the share of sets that lose at least as much, this one included (one-sided); nan
        if the relative change is undefined."""
        return {m: permutation_p(-self.relative[m].value, -self.random[m]) for m in CAUSAL_METRICS}


@dataclass(frozen=True)
class CausalCheck:
    """The comparisons of the causal check, by role; and, by its name, that of the heads that the source study
    switched off. pairs, queries: the size of the sample."""

    comparisons: dict[str, Comparison]
    pairs: int
    queries: int


def causal_check(
    study: Study, leading: Mapping[str, Heads], term_match: RoleScores, held: Heads
) -> CausalCheck:
    """Switch off the leading heads of each role, and the heads that the source study switched off."""
    data = study.data.take(spread_over_queries(study.data.query_of, PAIRS, study.seed))
    rng = np.random.default_rng([study.seed, 6])
    name, published = _published(term_match, held)
    wanted = {role: heads for role, heads in (*leading.items(), (name, published)) if heads}
    random = {role: layer_matched(heads, held, rng, study.effort.role_sets) for role, heads in wanted.items()}
    masks = [np.ones(study.shape, np.float32)]
    for role, heads in wanted.items():
        masks += [weights_without(gone, study.shape) for gone in (heads, *random[role])]
    evaluations = iter(
        replace(study.runner, data=data).evaluate(masks, "heads of a role off, and random ones")
    )
    resamples = Resamples(data, study.effort.resamples, study.seed)
    whole = resamples.draws(next(evaluations))
    comparisons = {}
    for role, heads in wanted.items():
        off = effect(resamples, whole, next(evaluations))
        others = [next(evaluations).metrics() for _ in random[role]]
        relative = {m: off.relative[m] for m in CAUSAL_METRICS}
        changes = {
            m: relative_changes([x[m] for x in others], float(whole[m].values[0])) for m in CAUSAL_METRICS
        }
        comparisons[role] = Comparison(heads, relative, changes)
    return CausalCheck(comparisons, len(data), len(data.queries))


def relative_changes(values: Sequence[float], intact: float) -> np.ndarray:
    """Return value / intact − 1 of each value; nan if intact is 0, as QWK is if all pairs get one grade."""
    return np.array(values) / (intact or math.nan) - 1


def layer_matched(
    heads: Sequence[Head], held: Sequence[Head], rng: np.random.Generator, sets: int
) -> list[Heads]:
    """Return up to `sets` different sets with as many heads of each layer as `heads`, but none of `heads`.

    If a layer has too few other heads, each set takes all of them and fills up from those in `heads`.
    """
    pools, fixed = [], []
    for layer, count in sorted(Counter(layer for layer, _ in heads).items()):
        others = [head for head in held if head[0] == layer and head not in heads]
        if len(others) < count:
            fixed += others
            pools.append(([head for head in heads if head[0] == layer], count - len(others)))
        else:
            pools.append((others, count))
    drawn: dict[Heads, None] = {}
    for _ in range(TRIES * sets):
        if len(drawn) == sets:
            break
        parts = [pool[i] for pool, count in pools for i in rng.permutation(len(pool))[:count]]
        drawn[tuple(sorted([*fixed, *parts]))] = None
    return list(drawn)


def _published(term_match: RoleScores, held: Heads) -> tuple[str, Heads]:
    """Return the set that the source study switched off: five term-match heads of layers 2–4 of 12."""
    layers = 1 + max(layer for layer, _ in held)
    middle = range(round(layers / 6), round(layers / 3) + 1)
    inside = [i for i in np.argsort(-term_match.values, kind="stable") if held[i][0] in middle]
    name = f"five term-match heads of layers {middle.start}–{middle.stop - 1}"
    return name, tuple(held[i] for i in inside[:5])
