"""Puts the titles of a request into one order, which is drawn from the rankings of two variants.

The results are those of both variants' columns: each title has what the arm that picked it says of it, or
what control says if both arms' next title was the same. If one arm is `original`, which says nothing of a
title, the other arm's results stand for both, so that nobody sees who picked it. Clients sort by score, so
the scores are lowered as far as needed to fall along the order.
"""

import copy
from collections.abc import Generator, Sequence

import numpy as np

from headroom.models.classifier import Classifier
from headroom.service.experiments.interleaving import TREATMENT, Draw, coins, draw, falling, own_order
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import ScoreResult
from headroom.service.scoring.cascade import lowest_score
from headroom.service.scoring.cutoff import is_kept

Results = Sequence[ScoreResult]
"""One result per title, in the request's order."""


def draw_order(
    control: Results, treatment: Results, request: ScoreRequest, salt: str, unit: str, query: str
) -> Generator[None, None, Draw]:
    """Draw the order from the arms' own orders, which are by raw score. The query may be long.

    Only titles that control keeps under the cut-off are drawn. If the arm that picks a title decided
    whether it is shown, the arm with higher scores would show more titles, and so get more clicks.
    """
    yield
    judged, _ = _both_scored(control, treatment)
    titles = [index for index, result in enumerate(judged) if is_kept(result, request)]
    control_order = own_order([float(control[index].raw_score) for index in titles])
    treatment_order = own_order([float(treatment[index].raw_score) for index in titles])
    drawn = draw(control_order, treatment_order, coins(salt, unit, query))
    return Draw(tuple(titles[position] for position in drawn.order), drawn.teams)


def merge(control: Results, treatment: Results, drawn: Draw, classifier: Classifier) -> list[ScoreResult]:
    """Return the results of the drawn titles in the request's order, with their ranks.

    classifier: of either arm that has a network; both give the same kind of score.
    """
    control, treatment = _both_scored(control, treatment)
    shown = [
        copy.copy(treatment[index] if team == TREATMENT else control[index])
        for index, team in zip(drawn.order, drawn.teams, strict=True)
    ]
    scores = falling(
        [np.float32(result.score) for result in shown], lowest_score(classifier.config.score_activation)
    )
    raw_scores = falling([float(result.raw_score) for result in shown])
    for rank, (result, score, raw_score) in enumerate(zip(shown, scores, raw_scores, strict=True), start=1):
        result.rank = rank
        result.score = np.float32(score)
        result.raw_score = float(raw_score)
    if classifier.config.is_graded and all(result.scored for result in shown):
        grades = falling([np.float32(result.expected_grade or 0.0) for result in shown], 0.0)
        for result, expected_grade in zip(shown, grades, strict=True):
            result.expected_grade = np.float32(expected_grade)
    return sorted(shown, key=lambda result: result.index)


def _both_scored(control: Results, treatment: Results) -> tuple[Results, Results]:
    """Return the arms' results, the other arm's in place of those of `original`, which are not scored."""
    if not control[0].scored:
        return treatment, treatment
    return control, treatment if treatment[0].scored else control
