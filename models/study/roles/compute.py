"""The score of every head in every role, and the effect of switching off the leading heads of each role."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.condense.words import split_chinese
from models.study.base import Heads, held_heads
from models.study.inputs import spread_over_queries
from models.study.roles.causal import CausalCheck, causal_check
from models.study.roles.scores import RoleScores, role_scores, segmentation_scores
from models.study.statistics import LEVEL
from models.study.study import Study

ROLES = (
    "term_match",
    "previous_word",
    "next_word",
    "segmentation",
    "segmentation_zh",
    "segmentation_ko",
    "special",
)
"""Word segmentation is asked on the study's data, and on Chinese and Korean titles. In Chinese no space
says where a word ends; jieba does."""

TITLES = Path(__file__).parent / "titles.tsv"
"""Language, product and title in each row."""

HOLDS = 0.1
"""A head holds a role if its excess over chance is significant and at least a tenth of its attention: with
hundreds of pairs, far smaller habits are significant and mean nothing."""

TOP = 5
"""How many heads the causal check switches off, as the source study did."""


@dataclass(frozen=True)
class Roles:
    """The roles of the heads.

    scores: by role, in the order of `heads`. pairs: how many pairs of the study's data were scored.
    """

    scores: Mapping[str, RoleScores]
    heads: Heads
    causal: CausalCheck
    pairs: int


def measure(study: Study) -> Roles:
    """Score every head in every role, then switch the leading heads of each role off."""
    clf, heads, limit = study.classifier, held_heads(study.classifier), study.effort.role_pairs
    rows = spread_over_queries(study.data.query_of, limit, study.seed)
    encoded = clf.tokenizer.encode([study.data.pairs[i] for i in rows])
    samples = {language: clf.tokenizer.encode(pairs[:limit]) for language, pairs in _sample().items()}
    study.progress.start("attention of every head", len(encoded) + sum(map(len, samples.values())))
    scores = role_scores(study, encoded, study.data.query_of[rows].tolist(), heads)
    for language, pairs in samples.items():
        readable = [pair for pair in pairs if 2 * pair.unknown_tokens < len(pair)]
        split = split_chinese if language == "zh" else None
        scores[f"segmentation_{language}"] = segmentation_scores(study, readable, heads, split)
    leading = {role: leaders(scores[role], heads) for role in ROLES}
    return Roles(scores, heads, causal_check(study, leading, scores["term_match"], heads), len(encoded))


def holds(scores: RoleScores) -> NDArray[np.bool_]:
    """Return which heads hold the role: (heads,) bool."""
    with np.errstate(invalid="ignore"):
        return np.asarray((scores.p_adjusted < LEVEL) & (scores.values >= HOLDS))


def leaders(scores: RoleScores, heads: Heads) -> Heads:
    """Return the TOP heads, or fewer, with the largest significant excess. If any head holds the role,
    return only heads that do."""
    excess = scores.values
    order = np.argsort(-excess, kind="stable")
    significant = [int(i) for i in order if scores.p_adjusted[i] < LEVEL and excess[i] > 0]
    holding = [i for i in significant if excess[i] >= HOLDS]
    return tuple(heads[i] for i in (holding or significant)[:TOP])


def _sample() -> dict[str, list[tuple[str, str]]]:
    """Return (product, title) pairs by language."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in TITLES.read_text(encoding="utf-8").splitlines():
        language, query, title = line.split("\t")
        found.setdefault(language, []).append((query, title))
    return found
