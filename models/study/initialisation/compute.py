"""How much of the variance between heads is the layer's, the position's and the seed's.

The Jensen–Shannon divergence is the squared distance of a Hilbert space (Fuglede and Topsøe 2004, "Jensen–
Shannon divergence and Hilbert space embedding"), so sums of squares follow from distances alone: those of n
points around their mean are Σ d² / n over all pairs (Gower and Krzanowski 1999; Anderson 2001,
https://doi.org/10.1111/j.1442-9993.2001.01070.pp.x). The model of a head's pattern is

    x = mean + seed_s + layer_l + (seed · layer)_sl + position_h(l) + rest_slh

with random effects, and their variances come from the expected mean squares (Searle, Casella and McCulloch
1992, "Variance Components", ch. 4). They are unbiased, so what has no effect is about 0, and may be slightly
below. The seed's share is that of every term in which it stands: seed, seed · layer, and the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import t as student

from headroom.models.arrays import Floats, Floats32, Ints
from headroom.models.quality.bootstrap import MIN_QUERIES, Interval, resample
from headroom.models.study.initialisation.networks import Recorded
from headroom.models.study.layers import cka

BLOCK = 128
"""Rows of distances that are computed at once."""

SHARES = ("layer", "position", "seed")
"""What the variance between heads is shared among, in the order of `shares`."""


@dataclass(frozen=True)
class Divergences:
    """Jensen–Shannon divergences of every two heads of S seeds with H heads each, base 2.

    by_query: (queries, S, H, S, H). layer_of: (H,) the layer of each head.
    """

    by_query: Floats32
    layer_of: Ints

    @classmethod
    def of(cls, recorded: Sequence[Recorded], query_of: Sequence[int], layer_of: Ints) -> Divergences:
        """Return the means over words, then over a query's pairs. query_of: the query of each pair."""
        seeds = len(recorded)
        heads = len(layer_of)
        of_pairs = []
        for pair in range(len(query_of)):
            maps = torch.from_numpy(np.concatenate([one.maps[pair] for one in recorded]))
            of_pairs.append(divergences(maps).reshape(seeds, heads, seeds, heads).numpy())
        _, number_of = np.unique(query_of, return_inverse=True)
        return cls(_means(of_pairs, number_of), layer_of)

    def queries(self, chosen: range) -> Divergences:
        """Return the divergences on some queries."""
        return Divergences(self.by_query[chosen], self.layer_of)

    def seeds(self, chosen: Sequence[int]) -> Divergences:
        """Return the divergences of some seeds."""
        index = list(chosen)
        return Divergences(self.by_query[:, index][:, :, :, index], self.layer_of)


def divergences(maps: torch.Tensor) -> torch.Tensor:
    """Return the mean divergence over words of every two heads: (n, words, words) → (n, n)."""
    count, words = maps.shape[:2]
    total = torch.zeros(count, count)
    for word in range(words):
        rows = maps[:, word]
        for start in range(0, count, BLOCK):
            block = rows[start : start + BLOCK, None]
            entropy_of_mean = torch.special.entr((block + rows) / 2).sum(-1)
            mean_entropy = (torch.special.entr(block).sum(-1) + torch.special.entr(rows).sum(-1)) / 2
            total[start : start + BLOCK] += ((entropy_of_mean - mean_entropy) / log(2)).clamp(0, 1)
    return total / words


def _means(values: Sequence[Floats32], number_of: Ints) -> Floats32:
    """Return the mean of each number's values. number_of: the number of each value, from 0 without gaps."""
    sums = np.zeros((number_of.max() + 1, *values[0].shape), np.float32)
    np.add.at(sums, number_of, np.stack(values))
    counts = np.bincount(number_of).astype(np.float32)
    return np.asarray(sums / counts.reshape(-1, *[1] * values[0].ndim), np.float32)


@dataclass(frozen=True)
class Likeness:
    """How alike the heads of several seeds are.

    variance: the shares SHARES of the variance between heads' patterns. cka: of two seeds' head outputs, with
    its interval over the seeds.
    """

    variance: dict[str, Interval]
    cka: Interval


@dataclass(frozen=True)
class Compared:
    """The likeness of heads of the same position, and of heads that are matched."""

    as_numbered: Likeness
    matched: Likeness


def compare(between: Divergences, recorded: Sequence[Recorded], resamples: int, seed: int) -> Compared:
    """Compare the heads of S ≥ 3 seeds: heads are matched on half of the queries and compared on the others.

    An interval's spread is that over the queries (bootstrap) and that over the seeds (jackknife: Efron and
    Stein 1981); its width is by Student's t with S − 1 degrees of freedom.
    """
    queries = len(between.by_query)
    layer_of = between.layer_of
    matching = between.queries(range(0, queries, 2))
    compared = between.queries(range(1, queries, 2))
    every_seed = range(len(recorded))
    outputs = [one.outputs for one in recorded]

    def likeness(order_of: Callable[[Divergences], Ints]) -> Likeness:
        """Compare heads. order_of: returns the head of each seed that is compared with each of the first."""

        def by_query(chosen: Sequence[int]) -> Floats:
            order = order_of(matching.seeds(chosen))
            return sums_of_squares(aligned(compared.seeds(chosen), order), layer_of)

        sums = by_query(every_seed)
        whole = shares(sums.mean(0), len(every_seed), layer_of)
        of_seeds = []
        for left_out in every_seed:
            others = [one for one in every_seed if one != left_out]
            of_seeds.append(shares(by_query(others).mean(0), len(others), layer_of))
        of_queries = np.full((1, len(SHARES)), np.nan)
        if len(sums) >= MIN_QUERIES:
            counts = resample(len(sums), resamples, seed)[1:]
            of_queries = shares(counts @ sums / len(sums), len(every_seed), layer_of)
        variance = intervals(whole, np.stack(of_seeds), of_queries.std(0))
        return Likeness(dict(zip(SHARES, variance, strict=True)), _cka(outputs, order_of(matching)))

    return Compared(likeness(as_numbered), likeness(matched))


def intervals(values: Floats, of_seeds: Floats, query_error: Floats) -> list[Interval]:
    """Return values, (k,), with their intervals. of_seeds: (S, k) without each seed. query_error: (k,)."""
    seeds = len(of_seeds)
    seed_error = np.sqrt((seeds - 1) * of_seeds.var(0))
    reach = student.ppf(0.975, seeds - 1) * np.hypot(seed_error, query_error)
    ends = zip(values.tolist(), reach.tolist(), strict=True)
    return [Interval(value, value - width, value + width) for value, width in ends]


def as_numbered(between: Divergences) -> Ints:
    """Return the head of the same position in each seed, (S, H)."""
    return np.tile(np.arange(len(between.layer_of)), (between.by_query.shape[1], 1))


def matched(between: Divergences) -> Ints:
    """Return the head of each seed that is matched with each head of the first seed, (S, H): the assignment
    of the heads of a layer with the least mean distance (Kuhn 1955)."""
    distances = np.sqrt(between.by_query).mean(0)
    order = as_numbered(between)
    for layer in np.unique(between.layer_of):
        heads = np.flatnonzero(between.layer_of == layer)
        for seed in range(1, len(distances)):
            rows, columns = linear_sum_assignment(distances[0, heads][:, seed, heads])
            order[seed, heads[rows]] = heads[columns]
    return order


def aligned(between: Divergences, order: Ints) -> Floats32:
    """Return the divergences, (queries, S, H, S, H), with the heads of each seed in an order, (S, H)."""
    seeds = np.arange(len(order))[:, None]
    return between.by_query[:, seeds, order][:, :, :, seeds, order]


def sums_of_squares(square: Floats32, layer_of: Ints) -> Floats:
    """Return the sums of squares of seed, layer, seed · layer, position and rest, (queries, 5).

    square: squared distances, (queries, S, H, S, H).
    """
    seeds, heads = square.shape[1:3]
    member = (layer_of[:, None] == np.unique(layer_of)).astype(np.float64)  # (H, layers)
    size = member.sum(0)
    blocks = np.einsum("qshti,hl,il->qstl", square, member, member, optimize=True)
    of_seeds = np.einsum("qshsi->qs", square)
    total = square.sum((1, 2, 3, 4), dtype=np.float64) / (2 * seeds * heads)
    in_layers = (blocks.sum((1, 2)) / (2 * seeds * size)).sum(-1)
    in_positions = np.einsum("qshth->q", square) / (2 * seeds)
    in_seeds = of_seeds.sum(1) / (2 * heads)
    in_both = (np.einsum("qssl->ql", blocks) / (2 * size)).sum(-1)
    seed = total - in_seeds
    layer = total - in_layers
    both = total - in_both - seed - layer
    position = in_layers - in_positions
    return np.stack([seed, layer, both, position, total - seed - layer - both - position], 1)


def shares(sums: Floats, seeds: int, layer_of: Ints) -> Floats:
    """Return the shares of the variance that are the layer's, the position's and the seed's, (…, 3).

    sums: of squares, (…, 5). Of layers with different numbers of heads, the mean number is taken.
    """
    layers = len(np.unique(layer_of))
    positions = len(layer_of) - layers
    heads = len(layer_of) / layers
    freedom = np.array(
        [seeds - 1, layers - 1, (seeds - 1) * (layers - 1), positions, (seeds - 1) * positions]
    )
    seed, layer, both, position, rest = np.moveaxis(sums / np.maximum(freedom, 1), -1, 0)
    if not positions:
        rest = both
        position = rest
    if layers == 1:
        both = rest
        layer = position
    of_seed = (seed - both) / (layers * heads) + (both - rest) / heads + rest
    of_layer = (layer - both - position + rest) / (seeds * heads)
    of_position = (position - rest) / seeds
    parts = np.stack([of_layer, of_position, of_seed], -1)
    return np.asarray(parts / parts.sum(-1, keepdims=True))


def _cka(outputs: Sequence[Floats32], order: Ints) -> Interval:
    """Return the mean CKA of matched heads over every two seeds, with its interval over the seeds.

    Heads that write nothing have no CKA and are left out.
    """
    seeds, heads = order.shape
    of_pairs = {}
    for first, second in combinations(range(seeds), 2):
        values = [
            cka(outputs[first][:, order[first, head]], outputs[second][:, order[second, head]])
            for head in range(heads)
        ]
        of_pairs[first, second] = _mean([value for value in values if np.isfinite(value)])
    without = [_mean([one for pair, one in of_pairs.items() if seed not in pair]) for seed in range(seeds)]
    whole = np.array([_mean([*of_pairs.values()])])
    return intervals(whole, np.array(without)[:, None], np.zeros(1))[0]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else np.nan
