"""The score of every head in every role, and the effect of switching off the leading heads of each role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.study.base import Progress
from models.study.heads import Heads, held_heads
from models.study.inputs import spread_over_queries
from models.study.roles.causal import CausalCheck, causal_check
from models.study.roles.scores import ROLES, RoleScores, role_scores
from models.study.statistics import LEVEL
from models.study.study import Study

HOLDS = 0.1
"""A head holds a role if its excess over chance is significant and at least a tenth of its attention: with
hundreds of pairs, far smaller habits are significant and mean nothing."""

TOP = 5
"""How many heads the causal check switches off, as the source study did."""


@dataclass(frozen=True)
class Roles:
    """The roles of the heads.

    scores: by role, in the order of `heads`. pairs: how many pairs the attention was scored on.
    """

    scores: Mapping[str, RoleScores]
    heads: Heads
    causal: CausalCheck
    pairs: int


def measure(study: Study) -> Roles:
    """Score every head in every role, then switch the leading heads of each role off."""
    heads = held_heads(study.classifier)
    rows = spread_over_queries(study.data.query_of, study.effort.role_pairs, study.seed)
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in rows])
    study.progress.start("attention of every head", len(encoded))
    scores = role_scores(
        study.classifier,
        encoded,
        [int(study.data.query_of[i]) for i in rows],
        heads,
        seed=study.seed,
        resamples=study.resamples,
        steps=_steps(study.progress),
    )
    leading = {role: leaders(scores[role], heads) for role in ROLES}
    return Roles(scores, heads, causal_check(study, leading, scores["term_match"], heads), len(encoded))


def holds(scores: RoleScores) -> NDArray[np.bool_]:
    """Return which heads hold the role: (heads,) bool."""
    with np.errstate(invalid="ignore"):
        return np.asarray((scores.p_adjusted < LEVEL) & (scores.excess >= HOLDS))


def leaders(scores: RoleScores, heads: Heads) -> Heads:
    """Return the TOP heads, or fewer, with the largest significant excess. If any head holds the role, return
    only heads that do."""
    order = np.argsort(-scores.excess, kind="stable")
    significant = [int(i) for i in order if scores.p_adjusted[i] < LEVEL and scores.excess[i] > 0]
    holding = [i for i in significant if scores.excess[i] >= HOLDS]
    return tuple(heads[i] for i in (holding or significant)[:TOP])


def _steps(progress: Progress) -> Iterator[None]:
    while True:
        yield None
        progress.advance()
