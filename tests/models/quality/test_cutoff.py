"""A cut claims no more than its queries show."""

import numpy as np
import pytest
from scipy.stats import binomtest

from headroom import ModelError
from headroom.models.quality.cutoff import Cut, cut_at, cut_for
from headroom.models.quality.labelled import LabelledPair


def kept_from(queries: int) -> Cut:
    """Cut 20 relevant pairs of some queries from 40 others that are not relevant."""
    names = [f"kept {number % queries}" for number in range(20)] + [f"other {n}" for n in range(40)]
    relevant = np.arange(60) < 20
    pairs = [LabelledPair(name, "title", int(grade)) for name, grade in zip(names, relevant, strict=True)]
    scores = np.where(relevant, 0.9, 0.1).astype(np.float32)
    return cut_at(0.5, scores, relevant, pairs, resamples=200)


def test_a_cut_whose_kept_pairs_are_all_relevant_may_have_others_on_more_queries() -> None:
    """It said 1.000 (1.000 to 1.000). 12 successes of 12 have the interval of Clopper and Pearson."""
    cut = kept_from(queries=12)
    lowest = binomtest(12, 12).proportion_ci(method="exact").low
    assert lowest == pytest.approx(0.735, abs=1e-3)
    for share in (cut.precision, cut.recall):
        assert (share.value, share.high) == (1, 1)
        assert share.low == pytest.approx(lowest, abs=1e-3)
    assert cut.kept.low < cut.kept.value < cut.kept.high


def test_spellings_of_a_query_make_no_interval_narrower() -> None:
    rng = np.random.default_rng(0)
    relevant = rng.random(300) < 0.5
    scores = (rng.random(300) + 0.5 * relevant).astype(np.float32)
    pairs = [LabelledPair(f"red shoes {row // 5}", "title", int(relevant[row])) for row in range(300)]
    copies = [LabelledPair(pair.query.upper(), pair.title, pair.grade) for pair in pairs]
    once = cut_at(0.8, scores, relevant, pairs, resamples=300)
    twice = cut_at(0.8, np.tile(scores, 2), np.tile(relevant, 2), pairs + copies, resamples=300)
    for name in ("precision", "recall", "kept"):
        assert getattr(twice, name).ends == pytest.approx(getattr(once, name).ends), name


def test_few_pairs_have_a_threshold_though_four_fifths_of_them_are_too_few() -> None:
    pairs = [LabelledPair(f"query {number}", "title", int(number < 20)) for number in range(22)]
    relevant = np.array([pair.grade == 1 for pair in pairs])
    scores = np.where(relevant, 0.75, 0.1).astype(np.float32)
    cut = cut_for(0.95, scores, relevant, pairs, resamples=200)
    assert cut.threshold == 0.75
    assert cut.fifths_missed == 5
    assert cut.kept.value == 1  # as many as the others keep at their most precise threshold: all
    with pytest.raises(ModelError, match="10 pairs are too few for a threshold; at least 20 are needed"):
        cut_for(0.95, scores[:10], relevant[:10], pairs[:10], resamples=200)
