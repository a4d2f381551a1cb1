"""What do heads attend to: word order, parts of a word, equal terms, special tokens? And does it matter?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from models.study.base import Progress, Result, Study
from models.study.inputs import spread_over_queries
from models.study.roles import report as roles_report
from models.study.roles.effects import effects
from models.study.roles.scores import ROLES, RoleScores, role_scores
from models.study.search.importance import held_heads

HOLDS = 0.1
"""A head holds a role when a tenth of its attention more than chance goes where the role says,
significantly: with hundreds of pairs, far smaller habits differ from chance and mean nothing."""

TOP = 5
"""How many heads the causal check switches off, as the source study did."""


def run(study: Study) -> Result:
    """Scores every head for every role, then switches the leading heads of each role off."""
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
    found = effects(study, leading, scores["term_match"], heads)
    json: dict[str, Any] = {
        "roles": {role: roles_report.role_json(scores[role], heads, HOLDS) for role in ROLES},
        "causal": roles_report.causal_json(found),
        "role_pairs": len(encoded),
    }
    return Result(
        "roles",
        json,
        roles_report.conclusion(scores, heads, found, HOLDS),
        roles_report.sections(scores, heads, found, study, HOLDS),
        roles_report.findings(scores, found, HOLDS),
    )


def leaders(scores: RoleScores, heads: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The at most TOP heads with the largest significant excess; those that hold the role, if any do."""
    order = np.argsort(-scores.excess, kind="stable")
    significant = [int(i) for i in order if scores.p_adjusted[i] < 0.05 and scores.excess[i] > 0]
    holding = [i for i in significant if scores.excess[i] >= HOLDS]
    return tuple(heads[i] for i in (holding or significant)[:TOP])


def _steps(progress: Progress) -> Iterator[None]:
    while True:
        yield None
        progress.advance()
