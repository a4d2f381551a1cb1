"""Two sides are compared by as many queries as there are."""

import numpy as np
import pytest

from headroom.models.files import Json
from headroom.models.quality.comparison import Side, compare_sides
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair


def compared(pairs: list[LabelledPair], *grades: list[int]) -> Json:
    """Compare models that are almost sure of these grades."""
    sides = []
    for number, of_side in enumerate(grades):
        probabilities = 0.02 + 0.9 * np.eye(5)[of_side]
        evaluation = GradedEvaluation(pairs, probabilities, probabilities @ np.arange(5))
        sides.append(Side(f"side {number}", "model", "full", "none", evaluation))
    return compare_sides(sides, pairs, resamples=300)


def test_spellings_of_a_query_are_one_query() -> None:
    """The same judgments of 60 queries, again in title case, excluded what 60 queries cannot: intervals were
    narrower by the root of 2, and one-sided tests counted 120 queries."""
    rng = np.random.default_rng(0)
    truth = [row % 5 for row in range(300)]
    guess = np.where(rng.random(300) < 0.1, 4, truth).tolist()
    pairs = [LabelledPair(f"red shoes {row // 5}", f"title {row}", grade) for row, grade in enumerate(truth)]
    copies = [LabelledPair(f"{pair.query.title()} ", pair.title, pair.grade) for pair in pairs]
    once = compared(pairs, truth, guess)
    twice = compared(pairs + copies, 2 * truth, 2 * guess)
    assert twice["queries"] == 60
    assert not any(twice["differences"][0]["margin_excluded"].values())
    for document in (once, twice):
        assert document["differences"][0]["change"]["ndcg10"].high < 0
    for name, change in once["differences"][0]["change"].items():
        assert twice["differences"][0]["change"][name].ends == pytest.approx(change.ends, abs=1e-9), name
    assert twice["differences"][0]["queries_needed"] == once["differences"][0]["queries_needed"]
    assert len({query["query"] for query in twice["sides"][1]["worst_queries"]}) == 20
