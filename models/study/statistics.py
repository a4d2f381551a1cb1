"""Effects of masks with intervals and tests, on the bootstrap of headroom.models.quality.bootstrap."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import false_discovery_control

from headroom.models.arrays import Floats
from headroom.models.quality.bootstrap import (
    MIN_QUERIES,
    Draws,
    Estimate,
    Interval,
    MetricDraws,
    estimate,
    estimate_of,
    queries_needed,
    resample,
    standard_errors,
)
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.metrics import Measures
from headroom.models.quality.noninferiority import NO_SKILL_ALONE, largest, on_queries, skill_of, too_few
from headroom.models.study.runner import Matrix
from headroom.models.study.study import Study
from headroom.models.study.wording import power

LEVEL = 0.05
"""The error rate of the tests."""

PERMUTATIONS = 19_999
"""Draws of a permutation test over queries, at least."""

_CHUNK = 4096  # permutations at a time


class Resamples:
    """The resamples of a study's queries. All masks share them, so differences are paired.

    counts: (1 + resamples, clusters); row 0 is the data as they are. queries: how many there are; ranked: how
    many of them have titles of different grades. intact: the draws of `whole`, the model with all heads on.
    """

    def __init__(self, whole: Evaluation, resamples: int, seed: int) -> None:
        self.queries = whole.queries
        self.counts = resample(whole.clusters, resamples, seed)
        self.ranked = whole.ranked_queries
        self.intact = self.draws(whole)

    def draws(self, evaluation: Evaluation) -> MetricDraws:
        """Return each metric of a study on the data and on every resample."""
        return evaluation.draws(self.counts, evaluation.of_sums)

    def changes(self, draws: MetricDraws) -> dict[str, Estimate]:
        """Return the paired change of each metric from the intact model."""
        return {name: self.estimate(draws[name] - intact) for name, intact in self.intact.items()}

    def relative_changes(self, draws: MetricDraws) -> dict[str, Estimate]:
        """Return the paired change of each metric, relative to the intact model's value."""
        return {name: self.estimate(draws[name].relative_to(intact)) for name, intact in self.intact.items()}

    def estimate(self, draws: Draws) -> Estimate:
        """Return the estimate of a metric or of a change."""
        return estimate_of(draws, self.counts)

    def queries_needed(
        self, changes: Mapping[str, Estimate], metrics: Sequence[str], margin: float, level: float
    ) -> int | None:
        """Return how many queries give a mask that changes nothing on average the chance POWER to pass.

        level: of the one-sided test of each metric. None if too few queries have one of them for a spread.
        """
        return largest(
            [
                queries_needed(changes[name], queries=self.queries, margin=margin, level=level)
                for name in metrics
            ]
        )


def metrics_of(evaluation: Evaluation) -> dict[str, float]:
    """Return a study's metrics on the data, which takes less than all of them."""
    values = evaluation.of_sums(np.ones((1, evaluation.clusters)))
    return {name: float(value[0]) for name, value in values.items()}


def values_of(draws: MetricDraws) -> dict[str, float]:
    """Return each metric on the data as they are."""
    return {name: float(of_metric.values[0]) for name, of_metric in draws.items()}


@dataclass(frozen=True)
class Effect:
    """The paired effect of a mask, by metric: its value, its change, and its change relative to the whole
    model.

    p_change: the p-value of "the mask changes no metric", by `adjusted_p` over the masks of its family.
    falls: whether the metric whose own p is lowest falls. p_non_inferior: the p-value of "a tested metric
    falls by the margin or more", by `holm` over the same masks; 1 if that cannot be tested. queries_needed:
    how many would show that the mask costs less than the margin, if it costs nothing; None: not known.
    """

    value: dict[str, float]
    delta: dict[str, Estimate]
    relative: dict[str, Estimate]
    p_change: float
    falls: bool
    p_non_inferior: float
    queries_needed: int | None

    @property
    def matters(self) -> bool:
        """Return whether the mask is shown to lose quality."""
        return self.p_change <= LEVEL and self.falls

    def cells(self) -> tuple[str, ...]:
        """Return the change of each metric with its interval, for a table."""
        return tuple(change.text() for change in self.delta.values())

    def as_json(self) -> dict[str, object]:
        """Return the changes by metric, both p-values and the queries needed, for report.json."""
        intervals = {metric: change.interval() for metric, change in self.delta.items()}
        return {
            "delta": {metric: interval.value for metric, interval in intervals.items()},
            "interval": {metric: interval.ends for metric, interval in intervals.items()},
            "relative": {metric: change.value for metric, change in self.relative.items()},
            "p_adjusted": self.p_change,
            "p_non_inferior": self.p_non_inferior,
            "queries_needed": self.queries_needed,
        }


@dataclass(frozen=True)
class Family:
    """The effects of masks that one correction covers, and what they can show.

    has_skill: whether the intact model is shown to be better than chance; else nothing is harmless.
    queries_that_count: of the tested metric that fewest have. queries: all. level: of Holm's first step.
    """

    effects: list[Effect]
    has_skill: bool
    queries_that_count: int
    queries: int
    margin: float
    level: float

    @property
    def harmless(self) -> int:
        """Return how many masks are shown to cost less than the margin."""
        return sum(one.p_non_inferior <= LEVEL for one in self.effects) if self.has_skill else 0

    def claim(self, parts: str) -> str:
        """Say how many masks are shown to cost less than the margin, and what more would show.

        parts: their name.
        """
        if self.queries_that_count >= MIN_QUERIES and not self.has_skill:
            return f"none is shown to cost less than {self.margin:g}: {NO_SKILL_ALONE}"
        claim = f"{self.harmless} are shown to cost less than {self.margin:g} each"
        limit = too_few(self.queries_that_count, self.margin, self.level)
        more = power([one.queries_needed for one in self.effects], self.queries, parts)
        return f"{claim} {on_queries(self.queries_that_count, self.queries)}{limit}{more}"


def effects(study: Study, masks: Sequence[Matrix], what: str) -> Family:
    """Return the effects of masks, whose p-values are adjusted for their number.

    what: the name of the masks on the progress bar. There are enough resamples for one mask to pass a test at
    LEVEL after the correction.
    """
    whole = study.whole
    masked = study.runner.evaluate(study.data, masks, what)
    resamples = Resamples(whole, max(study.effort.resamples, math.ceil(len(masks) / LEVEL)), study.seed)
    level = LEVEL / len(masks)
    tested = whole.measures.tested
    skill = skill_of(whole, resamples.intact, resamples.counts, tested)
    return Family(
        _effects(study, resamples, masked, what, level),
        has_skill=all(interval.is_above(0) for interval in skill.values()),
        queries_that_count=min(resamples.intact[name].queries for name in tested),
        queries=whole.queries,
        margin=study.margin,
        level=level,
    )


def _effects(
    study: Study, resamples: Resamples, masked: Sequence[Evaluation], what: str, level: float
) -> list[Effect]:
    """Return the effect of each mask. masked: the evaluation under each. level: of each mask's test."""
    values = []
    deltas = []
    relatives = []
    for evaluation in study.stage(f"intervals of {what}", masked):
        draws = resamples.draws(evaluation)
        values.append(values_of(draws))
        deltas.append(resamples.changes(draws))
        relatives.append(resamples.relative_changes(draws))
    measures = study.measures
    harm = [max(delta[name].p_above(-study.margin) for name in measures.tested) for delta in deltas]
    permutations = permutations_for(len(masked), len(measures.names))
    study.progress.start(f"p-values of {what}", permutations * len(masked))
    swapped = swap_p(study.whole, masked, draws=permutations, seed=study.seed, done=study.progress.advance)
    falls = [_falls(measures, *of_mask) for of_mask in zip(deltas, swapped, strict=True)]
    needed = [resamples.queries_needed(delta, measures.tested, study.margin, level) for delta in deltas]
    p_change = adjusted_p(swapped).tolist()
    return list(map(Effect, values, deltas, relatives, p_change, falls, holm(harm).tolist(), needed))


def permutations_for(masks: int, metrics: int) -> int:
    """Return how many permutations `swap_p` needs for one mask alone to be found among so many.

    Its p-values are 1 / (1 + permutations) at least, and `adjusted_p` multiplies them by metrics and masks.
    """
    return max(PERMUTATIONS, math.ceil(1.5 * metrics * masks / LEVEL))


def _falls(measures: Measures, changes: Mapping[str, Estimate], p: Floats) -> bool:
    """Return whether the metric that changes most surely falls; of several the main one. p: (metrics,)."""
    of_metrics = dict(zip(measures.names, p.tolist(), strict=True))
    surest = min(measures.names, key=lambda name: (of_metrics[name], name != measures.main))
    return changes[surest].value < 0


def swap_p(
    whole: Evaluation,
    masked: Sequence[Evaluation],
    *,
    draws: int = PERMUTATIONS,
    seed: int,
    done: Callable[[int], None] = lambda _: None,
) -> Floats:
    """Return the two-sided p of no effect, by a paired permutation test over queries: (masks, metrics).

    Under the null hypothesis, the predictions of a query with the mask and without it can be swapped. Each
    draw swaps those of a random half of the queries. All masks and metrics share the draws. An undefined
    metric has p = 1: there is no change to find. done: called with the number of finished draws of a mask.
    """
    rng = np.random.default_rng([seed, 1])
    before = whole.sums

    def change(after: Floats, swapped: Floats) -> Floats:
        """Return the metrics' changes, (…, metrics). swapped: (…, clusters), 1 for a swapped query."""
        moved = swapped @ (after - before)
        with_mask = whole.values(after.sum(0) - moved)
        return with_mask - whole.values(before.sum(0) + moved)

    observed = np.array([change(one.sums, np.zeros(len(before))) for one in masked])
    beyond = np.zeros_like(observed)
    for start in range(0, draws, _CHUNK):
        swapped = rng.integers(0, 2, (min(_CHUNK, draws - start), len(before))).astype(np.float64)
        for index, one in enumerate(masked):
            null = change(one.sums, swapped)
            # Equal up to rounding counts as equal: with few queries many swaps give the very same change.
            beyond[index] += (np.abs(null) >= np.abs(observed[index]) - 1e-12).sum(0)
            done(len(swapped))
    beyond[~np.isfinite(observed)] = draws
    return np.asarray((1 + beyond) / (1 + draws))


def adjusted_p(p: Floats) -> Floats:
    """Return p-values of "the mask changes no metric", (masks,), adjusted over the masks, from p of (masks,
    metrics).

    A mask's metrics are combined first (Bonferroni), then the masks by Benjamini and Hochberg (1995), so that
    a discovery is a head, or a layer. Over all masks and metrics together, the share of false masks among
    those found could exceed that of false tests.
    """
    combined = np.minimum(np.min(p, axis=1) * np.shape(p)[1], 1)
    return np.asarray(false_discovery_control(combined, method="bh"))


def holm(p: Sequence[float] | Floats) -> Floats:
    """Return p-values adjusted by Holm (1979): at 5 %, any true hypothesis is rejected with a chance of 5 %.

    A p of nan, because nothing could be tested, becomes 1.
    """
    testable = np.nan_to_num(p, nan=1.0)
    order = np.argsort(testable)
    adjusted = np.empty_like(testable)
    adjusted[order] = np.maximum.accumulate(testable[order] * np.arange(len(order), 0, -1))
    return np.minimum(adjusted, 1)


def permutation_p(observed: float, null: Floats) -> float:
    """Return the share of draws, the observed value among them, that are at least as large as it (Phipson and
    Smyth 2010); nan if it is no finite number. null: (draws,), the other draws."""
    if not math.isfinite(observed):
        return math.nan
    return float((1 + np.count_nonzero(null >= observed)) / (1 + len(null)))


def means_under_random_signs(values: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Return the means over queries if each query's sign is random: (queries, k) → (draws, k)."""
    signs = rng.choice((-1.0, 1.0), (draws, len(values)))
    return np.asarray(signs @ values / len(values))


def mean_intervals(values: Floats, resamples: int, seed: int) -> list[Interval]:
    """Return the means over queries of k values with their 95 % symmetric bootstrap-t intervals.

    values: (queries, k). The ends are nan if there are fewer than MIN_QUERIES queries.
    """
    queries = len(values)
    counts = resample(queries, resamples, seed)
    intervals = []
    for column, means in zip(values.T, (counts @ values / queries).T, strict=True):
        influences = column - means[0] if queries >= MIN_QUERIES else np.full(queries, np.nan)
        intervals.append(estimate(means, standard_errors(influences, counts)).interval())
    return intervals
