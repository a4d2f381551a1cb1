"""Sizes a test of a model against the order that you have: `headroom experiment plan --against original`.

A first evaluation, on judged pairs in that order, says how much the model's lists differ from it, and which
of the two users would prefer who click as people judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from headroom.models.arrays import Floats, Ints
from headroom.models.commands.options import Network
from headroom.models.files import Json
from headroom.models.quality.bootstrap import Interval
from headroom.models.quality.labelled import Columns, LabelledPair
from headroom.service.cli.lists import Measured

if TYPE_CHECKING:
    from headroom.service.experiments.drawn_lists import ClicksByQuery
    from headroom.service.experiments.plan import PreferenceQuestion, SampleSize


@dataclass(frozen=True, slots=True)
class FirstEvaluation:
    """A model compared with the order that judged pairs stand in.

    sentence: how the model ranks, with the change of NDCG@10. verdict, ndcg10: of it. preference: for the
    model, of users who click as people judged. queries: how many have two titles.
    """

    measured: Measured
    sentence: str
    verdict: str
    ndcg10: Interval
    preference: Interval
    queries: int

    def cautious_units(
        self, question: PreferenceQuestion, power: float, units_per_day: float | None
    ) -> SampleSize | None:
        """Return what the experiment needs, looked at any time, at that end of the preference's interval
        which is harder to show; None if no number of units shows it."""
        from headroom.service.experiments.plan import make_plan

        low, high = self.preference.ends
        end = high if question.margin is None and question.effect < 0 else low
        shown_above = 0.0 if question.margin is None else -question.margin
        is_shown = end < 0 if end == high else end > shown_above
        if not is_shown:
            return None
        asked = replace(question, effect=end)
        return make_plan(asked, power=power, units_per_day=units_per_day).any_time

    def lines(self, cautious: SampleSize | None) -> list[str]:
        """Return what the evaluation says, as lines for people. cautious: of `cautious_units`."""
        caution = "The interval leaves open whether any number of units shows it: judge more queries."
        if cautious is not None:
            days = "" if cautious.days is None else f", {cautious.days:,} days"
            caution = "If it is as close to 0 as the interval allows, the test "
            caution += f"needs {cautious.units:,} units{days}."
        preference = self.preference.text(2, sign=True)
        return [self.sentence, f"Users who click as people judged prefer the model by {preference}.", caution]

    def as_json(self) -> Json:
        """Return the figures."""
        return {
            "variant": "original",
            "verdict": self.verdict,
            "ndcg10": self.ndcg10,
            "preference": self.preference,
            "queries": self.queries,
        }


def evaluate_first(network: Network, data: Path, columns: Columns, shown: int | None) -> FirstEvaluation:
    """Evaluate the variant and mask that the options name against the order of judged pairs.

    shown: how many titles of a list users see; None: all. Raises BadParameter or ModelError for data from
    which nothing can be planned.
    """
    from headroom.models.api.order_report import SENTENCES
    from headroom.models.commands.options import read_truth
    from headroom.models.quality.bootstrap import resample
    from headroom.models.quality.noninferiority import RESAMPLES, SEED
    from headroom.models.quality.order import GivenOrder, against_order
    from headroom.models.terminal import counted
    from headroom.service.cli.choice import resolve
    from headroom.service.scoring.offline import score

    variant = resolve(network)
    truth, _ = read_truth(data, [variant.classifier.config], columns, None)
    with counted("pairs", len(truth.pairs)) as advance:
        scored = score(variant, [(pair.query, pair.title) for pair in truth.pairs], advance=advance)
    model = truth.evaluation(scored.scores, variant.name)
    counts = resample(model.clusters, RESAMPLES, SEED)
    given = GivenOrder.of(columns, None)
    found = against_order(truth.pairs, model, model.draws(counts), counts, given)
    if found["sorted_by_grade"]:
        raise typer.BadParameter(
            f"the rows of each query of {data} stand in the order of their grades, which is no order of "
            "results; name the column of the order that you have",
            param_hint="--position",
        )
    pages = [rows for rows in model.rows_by_list if len(rows) > 1]
    if not pages:
        raise typer.BadParameter(f"{data} has no query with two titles", param_hint="--data")
    clicks = _clicks(truth.pairs, scored.scores.raw_score.astype(np.float64), pages, shown)
    change: Interval = found["model_minus"]["ndcg10"]
    name = " ".join(filter(None, [variant.name, network.mask]))
    sentence = SENTENCES[found["verdict"]].format(model=name, order=given.name)
    return FirstEvaluation(
        measured=Measured(clicks.lists, f"{name} on {len(pages):,} queries of {data}"),
        sentence=f"{sentence}: NDCG@10 {change.text(sign=True)}",
        verdict=found["verdict"],
        ndcg10=change,
        preference=_preference(clicks.value, clicks.deciding),
        queries=len(pages),
    )


def _clicks(
    pairs: Sequence[LabelledPair], raw_scores: Floats, pages: Sequence[Ints], shown: int | None
) -> ClicksByQuery:
    """Return what users would click in lists drawn from the pairs' order and a model's.

    raw_scores: (pairs,). pages: the pairs of each query. shown: how many titles users see; None: all.
    """
    from headroom.models.quality.order import ranking_of
    from headroom.service.experiments.drawn_lists import simulate_clicks

    order = ranking_of(pairs)
    grades = np.array([pair.grade for pair in pairs], np.float64)
    scores = [(order[rows], raw_scores[rows]) for rows in pages]
    return simulate_clicks(scores, [grades[rows] for rows in pages], shown)


def _preference(value: Floats, deciding: Floats) -> Interval:
    """Return the users' mean value with its 95 % interval by bootstrap over queries, (queries,) each."""
    from headroom.models.quality.bootstrap import draws, estimate, resample, standard_errors
    from headroom.models.quality.noninferiority import RESAMPLES, SEED

    def mean_value(counts: Floats) -> dict[str, Floats]:
        return {"preference": (counts @ value) / np.maximum(counts @ deciding, 1.0)}

    counts = resample(len(value), RESAMPLES, SEED)
    drawn = draws(mean_value, counts, lambda _: len(value))["preference"]
    return estimate(drawn.values, standard_errors(drawn.influences, counts)).interval().within(-1.0, 1.0)
