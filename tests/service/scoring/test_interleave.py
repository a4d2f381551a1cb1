"""The cut-off of interleaved lists prefers neither arm."""

from typing import Any

import numpy as np
import pytest

from headroom.service.schemas.requests import ScoreRequest
from headroom.service.schemas.responses import ScoreResult
from headroom.service.scoring.interleave import draw_order
from headroom.service.scoring.tokens import read_to_the_end

TITLES = 20
USERS = 3000


def result_of(index: int, score: float) -> ScoreResult:
    return ScoreResult(
        index=index,
        grade=int(score * 4),
        label=None,
        expected_grade=np.float32(score * 4),
        score=np.float32(score),
        probabilities=None,
        tokens=1,
        unknown_tokens=0,
        truncated=False,
        raw_score=score,
    )


@pytest.mark.parametrize("shift", [-0.1, 0.1])
@pytest.mark.parametrize("limit", [{}, {"min_score": 0.5}, {"min_score": 0.7}, {"min_grade": 2}])
def test_users_who_click_by_position_alone_prefer_neither_arm(shift: float, limit: dict[str, Any]) -> None:
    """Truth: no preference. The treatment's scores are shifted, which says nothing about its order.

    With a cut by the score of the arm that picked a title, z was 5 to 13 either way.
    """
    rng = np.random.default_rng(3)
    request = ScoreRequest(query="q", titles=[str(index) for index in range(TITLES)], unit="u", **limit)
    values = []
    for user in range(USERS):
        base = rng.uniform(0.1, 0.9, TITLES)
        arms = [np.clip(base + rng.normal(0, 0.05, TITLES) + bias, 0, 1) for bias in (0.0, shift)]
        control, treatment = ([result_of(i, float(score)) for i, score in enumerate(arm)] for arm in arms)
        drawn = read_to_the_end(draw_order(control, treatment, request, "salt", f"u{user}", f"q{user}"))
        ranks = np.arange(1, len(drawn.order) + 1)
        clicked = rng.random(len(ranks)) < 0.5 / np.sqrt(ranks)
        teams = [team for team, is_clicked in zip(drawn.teams, clicked, strict=True) if is_clicked]
        wins = teams.count("t")
        losses = teams.count("c")
        if wins + losses:
            values.append((wins - losses) / (wins + losses))
    z = np.mean(values) / (np.std(values) / np.sqrt(len(values)))
    assert len(values) > 1000
    assert abs(z) < 3
