"""The probabilities that are reported are of queries that had no part in the fit."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headroom.models.arrays import Floats
from headroom.models.quality.calibration import FOLDS, Calibration, cross_fitted
from headroom.models.quality.labelled import LabelledPair


@given(more=st.lists(st.sampled_from("abcdefghijkl"), min_size=30, max_size=70))
def test_a_pair_is_calibrated_by_a_fit_that_saw_all_other_parts_and_none_of_its_query(
    more: list[str],
) -> None:
    queries = [*"abcdefghij", *more]
    pairs = [LabelledPair(query, f"title {row}", row % 2) for row, query in enumerate(queries)]
    logits = np.arange(len(pairs), dtype=np.float64)[:, None]
    fitted = list[set[str]]()

    class Remembered(Calibration):
        def of(self, logits: Floats) -> Floats:
            judged = {queries[int(row)] for row in logits[:, 0]}
            assert judged.isdisjoint(fitted[-1])
            assert judged | fitted[-1] == set(queries)
            return logits + 0.5

    def fit(logits: Floats, others: Sequence[LabelledPair]) -> Calibration:
        rows = logits[:, 0].astype(int)
        assert others == [pairs[row] for row in rows]
        fitted.append({queries[row] for row in rows})
        return Remembered(1.0, np.zeros(2))

    np.testing.assert_array_equal(cross_fitted(fit, logits, pairs), logits + 0.5)
    assert len(fitted) == FOLDS
