"""The head that a study of single heads names."""

import numpy as np

from headroom.models.quality.bootstrap import Estimate
from headroom.models.study.single import costliest
from headroom.models.study.statistics import Effect


def effect(change: float, error: float, p_change: float) -> Effect:
    """A head without which NDCG@10 changes. p_change: of "no metric changes", adjusted."""
    t = np.sort(np.random.default_rng(0).normal(size=999))
    delta = {"ndcg10": Estimate(change, error, t)}
    return Effect({}, delta, {}, p_change, falls=True, p_non_inferior=1.0, queries_needed=None)


def test_a_head_is_named_only_if_the_metric_is_shown_to_fall_without_it() -> None:
    """One that falls most by chance, or that matters by another metric, is no "falls most without"."""
    by_chance = effect(-0.09, 0.08, 0.4)
    by_another_metric = effect(-0.05, 0.04, 0.001)
    shown = effect(-0.02, 0.004, 0.001)
    larger = effect(-0.03, 0.004, 0.04)
    assert costliest([by_chance, by_another_metric], "ndcg10") is None
    assert costliest([by_chance, shown, by_another_metric, larger], "ndcg10") == 3
    assert costliest([], "ndcg10") is None
