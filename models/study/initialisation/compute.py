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

from collections.abc import Sequence
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
DISTANCES = ("same_layer", "same_position", "matched", "other_layer", "own_start", "other_start")
"""Distances of two heads of one layer and seed; of the same layer and position in two seeds; the same after
matching; matched with heads of another layer; of a trained head and its own start; and another seed's."""

FIGURES = (*SHARES, *(f"matched_{share}" for share in SHARES), *DISTANCES)


@dataclass(frozen=True)
class Divergences:
    """Jensen–Shannon divergences by query, of S seeds with H heads each, base 2.

    trained: (queries, S, H, S, H). started: (queries, S, S, H), of a seed's trained heads and the same
    positions before training, of each seed. layer_of: (H,) the layer of each head.
    """

    trained: Floats32
    started: Floats32
    layer_of: Ints

    @classmethod
    def of(cls, recorded: Sequence[Recorded], query_of: Sequence[int], layer_of: Ints) -> Divergences:
        """Return the means over words, then over a query's pairs. query_of: the query of each pair."""
        seeds = len(recorded)
        heads = len(layer_of)
        trained = []
        started = []
        for pair in range(len(query_of)):
            maps = torch.from_numpy(np.stack([one.maps[pair] for one in recorded]))  # (S, H, words, words)
            before = torch.from_numpy(np.stack([one.before[pair] for one in recorded]))
            square = divergences(maps.flatten(0, 1)).reshape(seeds, heads, seeds, heads)
            trained.append(square.numpy())
            started.append(_divergence(maps[:, None], before[None]).mean(-1).numpy())
        _, number_of = np.unique(query_of, return_inverse=True)
        return cls(_means(trained, number_of), _means(started, number_of), layer_of)

    def rows(self, chosen: Sequence[int]) -> Divergences:
        """Return those of some queries."""
        return Divergences(self.trained[chosen], self.started[chosen], self.layer_of)

    def seeds(self, chosen: Sequence[int]) -> Divergences:
        """Return those of some seeds."""
        index = list(chosen)
        trained = self.trained[:, index][:, :, :, index]
        return Divergences(trained, self.started[:, index][:, :, index], self.layer_of)


def divergences(maps: torch.Tensor) -> torch.Tensor:
    """Return the mean divergence over words of every two heads: (n, words, words) → (n, n)."""
    count, words = maps.shape[:2]
    total = torch.zeros(count, count)
    for word in range(words):
        rows = maps[:, word]
        for start in range(0, count, BLOCK):
            total[start : start + BLOCK] += _divergence(rows[start : start + BLOCK, None], rows[None])
    return total / words


def _divergence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the divergence of distributions, which the last dimension holds."""
    entropy = torch.special.entr((first + second) / 2).sum(-1)
    own = (torch.special.entr(first).sum(-1) + torch.special.entr(second).sum(-1)) / 2
    divergence: torch.Tensor = (entropy - own) / log(2)
    return divergence.clamp_(0, 1)


def _means(values: Sequence[Floats32], number_of: Ints) -> Floats32:
    sums = np.zeros((number_of.max() + 1, *values[0].shape), np.float32)
    np.add.at(sums, number_of, np.stack(values))
    counts = np.bincount(number_of).astype(np.float32)
    return np.asarray(sums / counts.reshape(-1, *[1] * values[0].ndim), np.float32)


@dataclass(frozen=True)
class Compared:
    """The figures FIGURES with their intervals, and the CKA of two seeds' head outputs, of heads of the same
    position (cka) and of matched heads (matched_cka), with intervals over the seeds.

    order: (S, H) the head of each seed that is matched with each head of the first one.
    """

    figures: dict[str, Interval]
    cka: Interval
    matched_cka: Interval
    order: Ints


def compare(between: Divergences, recorded: Sequence[Recorded], resamples: int, seed: int) -> Compared:
    """Compare the heads of S ≥ 3 seeds: heads are matched on half of the queries and compared on the others.

    An interval's spread is that over the queries (bootstrap) and that over the seeds (jackknife: Efron and
    Stein 1981); its width is by Student's t with S − 1 degrees of freedom.
    """
    queries = len(between.trained)
    seeds = len(recorded)
    matching = between.rows(range(0, queries, 2))
    compared = between.rows(range(1, queries, 2))

    def by_query(chosen: Sequence[int]) -> tuple[Floats, Ints]:
        of_seeds = matching.seeds(chosen)
        order = matched(of_seeds)
        others = matched(of_seeds, shift=1)
        return _columns(compared.seeds(chosen), order, others), order

    values, order = by_query(range(seeds))
    without = [[other for other in range(seeds) if other != one] for one in range(seeds)]
    sizes = (seeds, between.layer_of)
    whole = figures(values.mean(0), *sizes)
    of_seeds = np.stack(
        [figures(by_query(chosen)[0].mean(0), seeds - 1, between.layer_of) for chosen in without]
    )
    of_queries = np.full((1, len(FIGURES)), np.nan)
    if len(values) >= MIN_QUERIES:
        counts = resample(len(values), resamples, seed)[1:]
        of_queries = figures(counts @ values / len(values), *sizes)
    outputs = [one.outputs for one in recorded]
    same = np.tile(np.arange(len(between.layer_of)), (seeds, 1))
    return Compared(
        dict(zip(FIGURES, intervals(whole, of_seeds, of_queries.std(0)), strict=True)),
        _cka(outputs, same),
        _cka(outputs, order),
        order,
    )


def intervals(values: Floats, of_seeds: Floats, query_error: Floats) -> list[Interval]:
    """Return values, (k,), with their intervals. of_seeds: (S, k) without each seed. query_error: (k,)."""
    seeds = len(of_seeds)
    seed_error = np.sqrt((seeds - 1) * of_seeds.var(0))
    reach = student.ppf(0.975, seeds - 1) * np.hypot(seed_error, query_error)
    ends = zip(values.tolist(), reach.tolist(), strict=True)
    return [Interval(value, value - width, value + width) for value, width in ends]


def matched(between: Divergences, shift: int = 0) -> Ints:
    """Return the head of each seed that is matched with each head of the first seed, (S, H): the assignment
    of the heads of a layer with the least mean distance (Kuhn 1955).

    shift: match with the heads of a layer so much further up, from which those that are left over are −1.
    """
    distances = np.sqrt(between.trained).mean(0)
    layers = np.unique(between.layer_of)
    order = np.full((len(distances), len(between.layer_of)), -1)
    for index, layer in enumerate(layers):
        own = np.flatnonzero(between.layer_of == layer)
        candidates = np.flatnonzero(between.layer_of == layers[(index + shift) % len(layers)])
        for seed in range(len(distances)):
            if seed == 0 and not shift:
                order[0, own] = own
                continue
            rows, columns = linear_sum_assignment(distances[0, own][:, seed, candidates])
            order[seed, own[rows]] = candidates[columns]
    return order


def _columns(between: Divergences, order: Ints, others: Ints) -> Floats:
    """Return of each query the sums of squares, as the seeds number their heads and as they are matched, and
    the mean distances DISTANCES: (queries, 16).

    order, others: (S, H) the heads that are matched with those of the first seed, of the same layer and of
    another one.
    """
    trained = between.trained
    rows = np.arange(len(order))[:, None]
    aligned = trained[:, rows, order][:, :, :, rows, order]
    layer_of = between.layer_of
    distance = np.sqrt(trained)
    started = np.sqrt(between.started).mean(-1)  # (queries, S, S)
    own = np.eye(len(order), dtype=np.bool_)
    means = [
        *_unmatched(distance, layer_of),
        _to_first(distance, order),
        _to_first(distance, others),
        started[:, own].mean(1),
        started[:, ~own].mean(1),
    ]
    squares = (sums_of_squares(trained, layer_of), sums_of_squares(aligned, layer_of))
    return np.concatenate([*squares, np.stack(means, 1)], 1)


def _unmatched(distance: Floats32, layer_of: Ints) -> tuple[Floats, Floats]:
    """Return the mean distance of two heads of one layer and seed, and of the same position in two seeds,
    (queries,) each. distance: (queries, S, H, S, H)."""
    seeds = distance.shape[1]
    heads = np.arange(len(layer_of))
    pairs = np.triu(layer_of[:, None] == layer_of, 1)
    same_layer = np.full(len(distance), np.nan)
    if pairs.any():
        same_layer = np.mean([distance[:, seed, :, seed][:, pairs].mean(1) for seed in range(seeds)], 0)
    first, second = np.array([*combinations(range(seeds), 2)]).T
    same_position = distance[:, first, :, second][..., heads, heads]  # (pairs, queries, H)
    return same_layer, same_position.mean((0, 2))


def _to_first(distance: Floats32, order: Ints) -> Floats:
    """Return the mean distance of the first seed's heads from those that are matched with them, (queries,).

    order: (seeds, H), the head of each seed that is matched with each head of the first; −1 for none.
    """
    of_seeds = []
    for seed in range(1, len(order)):
        heads = np.flatnonzero(order[seed] >= 0)
        of_seeds.append(distance[:, 0, heads, seed, order[seed, heads]].mean(1))
    return np.asarray(np.mean(of_seeds, 0))


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


def figures(means: Floats, seeds: int, layer_of: Ints) -> Floats:
    """Return FIGURES from the means over queries of `_columns`: (…, 16) → (…, 12)."""
    plain = shares(means[..., :5], seeds, layer_of)
    aligned = shares(means[..., 5:10], seeds, layer_of)
    return np.concatenate([plain, aligned, means[..., 10:]], -1)


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
