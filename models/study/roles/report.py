"""The report of `roles`: verdict, pictures, tables, findings and JSON."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from models.study import plots
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.roles.causal import CAUSAL_METRICS, CausalCheck
from models.study.roles.compute import HOLDS, ROLES, Roles, holds, measure
from models.study.study import Study
from models.study.wording import NAMES, head_name, listed, p_value, percent, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAMED = {
    "term_match": "term match",
    "previous_word": "previous word",
    "next_word": "next word",
    "segmentation": "segmentation",
    "segmentation_zh": "segmentation, Chinese",
    "segmentation_ko": "segmentation, Korean",
    "special": "special tokens",
}
CLAIMS = (
    ("some heads attend by word order", ("previous_word", "next_word")),
    ("some heads attend by word segmentation in Chinese", ("segmentation_zh",)),
    ("some heads attend by word segmentation in English or Korean", ("segmentation", "segmentation_ko")),
    ("some heads match query terms with title terms", ("term_match",)),
)
"""The published functions, and the roles that show them."""

_METHOD = (
    "Attention is counted from word to word: attention to a word is the sum over its pieces, "
    "attention from a word is the mean. Each score is compared with chance. Previous and next word: "
    "the same attention with the text's words in random order. Segmentation: attention to the "
    "neighbouring piece of the same word, less attention to the neighbour across the word's border "
    "at the same offset; by chance, the borders are elsewhere. In Chinese, jieba says where words "
    "end. Special: attention to the special tokens; by chance, to as many random tokens. Term match: "
    "attention between a query term and the equal title term, both ways, less the same after another "
    "word of as many pieces replaced the title term; by chance, the signs of whole queries are "
    "random. Each null hypothesis has 999 draws; p is adjusted over all heads by the largest "
    "standardised score (max-T), so the familywise error rate of a role is 5 %."
)


def run(study: Study) -> Result:
    """Score every head in every role, and report it."""
    return result(study, measure(study))


def result(study: Study, roles: Roles) -> Result:
    """Return the report of roles."""
    counts = {role: int(holds(roles.scores[role]).sum()) for role in ROLES}
    held = [f"{NAMED[role]} {count}" for role, count in counts.items() if count]
    verdict = f"Of {len(roles.heads)} heads, these hold a role: {listed(held)}."
    caption = "Excess over chance of every head in every role; framed heads hold it."
    picture = Figure("role_map", caption, partial(_draw_roles, roles, study.shape))
    check = roles.causal
    causal = {
        name: {
            "heads": one.heads,
            "relative": {metric: one.relative[metric].interval() for metric in CAUSAL_METRICS},
            "random": one.random,
            "p": one.p,
        }
        for name, one in check.comparisons.items()
    }
    json = {
        "roles": {role: _role_json(roles, role) for role in ROLES},
        "causal": {"pairs": check.pairs, "queries": check.queries, "roles": causal},
        "role_pairs": roles.pairs,
    }
    sections = (_role_section(roles), _causal_section(check))
    return Result("roles", json, verdict, sections, picture, _findings(roles))


def _role_json(roles: Roles, role: str) -> list[dict[str, Any]]:
    """Return every head, the largest excess over chance first."""
    scores, held = roles.scores[role], holds(roles.scores[role])
    return [
        {
            "layer": roles.heads[i][0],
            "head": roles.heads[i][1],
            "score": float(scores.score[i]),
            "chance": float(scores.score[i] - scores.excess[i].value),
            "excess": scores.excess[i].value,
            "interval": [scores.excess[i].low, scores.excess[i].high],
            "p_adjusted": float(scores.p_adjusted[i]),
            "holds": bool(held[i]),
        }
        for i in np.argsort(-scores.values, kind="stable")
    ]


def _role_section(roles: Roles) -> Section:
    rows = [
        (
            NAMED[role],
            head_name(roles.heads[i]),
            f"{scores.score[i]:.3f}",
            scores.excess[i].text(sign=True),
            p_value(float(scores.p_adjusted[i])),
            "yes" if holds(scores)[i] else "no",
        )
        for role, scores in ((role, roles.scores[role]) for role in ROLES)
        if scores.queries
        for i in np.argsort(-scores.values, kind="stable")[:5]
    ]
    header = ("role", "head", "score", "excess over chance (95 % interval)", "adjusted p", "holds")
    return Section(
        "Roles: which head does what",
        (
            _METHOD,
            f"A head holds a role if its excess over chance is significant and at least {HOLDS:g}: "
            "with so many tokens far smaller habits are significant.",
        ),
        (Table(header, tuple(rows), "The five leading heads of each role."),),
    )


def _findings(roles: Roles) -> tuple[Finding, ...]:
    """Return the published functions, and the effect of the heads that the source study switched off."""
    findings = []
    for claim, names in CLAIMS:
        scores = [roles.scores[role] for role in names if roles.scores[role].queries]
        count = sum(int(holds(one).sum()) for one in scores)
        top = max(
            (excess for one in scores for excess in one.excess), key=lambda one: one.value, default=None
        )
        ours = "no pair has words that could show it"
        if top is not None:
            ours = f"{count or 'no'} heads; largest excess {top.text()}"
        findings.append(Finding(claim, "yes", ours))
    for name, one in roles.causal.comparisons.items():
        if name in ROLES:
            continue
        change, random = percent(one.relative["accuracy"].interval()), _median(one.random["accuracy"])
        ours = f"accuracy {change}; random {random} (median; p {p_value(one.p['accuracy'])})"
        claim, published = f"{name} off cost accuracy", "−52 %, against 0 % for five random heads"
        findings.append(Finding(claim, published, ours))
    return tuple(findings)


def _causal_section(check: CausalCheck) -> Section:
    rows = tuple(
        (
            NAMED.get(name, name),
            str(len(one.heads)),
            NAMES[metric],
            percent(one.relative[metric].interval()),
            _median(one.random[metric]),
            f"{p_value(one.p[metric])} of {len(one.random[metric])} sets",
        )
        for name, one in check.comparisons.items()
        for metric in CAUSAL_METRICS
    )
    header = ("heads off", "how many", "metric", "relative change", "random: median", "p")
    return Section(
        "Roles: the causal check",
        (
            f"The leading heads of a role are switched off on {check.pairs} pairs of {check.queries} "
            "queries, and so are up to 100 different random sets with as many heads of each layer. p "
            "is the share of sets, the role's own counted, that lose at least as much; with few "
            "possible sets it cannot be small. The p-values of the roles are not corrected for each other.",
        ),
        (Table(header, rows, "What switching the heads of a role off costs."),),
    )


def _median(changes: np.ndarray) -> str:
    """Return the median of relative changes in per cent, or a dash if there is none."""
    median = np.median(changes) if len(changes) else np.nan
    return f"{signed(100 * median, 1)} %" if np.isfinite(median) else "–"


def _draw_roles(roles: Roles, shape: tuple[int, int]) -> Drawing:
    """Draw a heat map of each role."""
    drawing, panels = plots.figure(22, 9.5, rows=2, columns=4)
    for axes, role in zip(panels.flat, ROLES, strict=False):
        values, held = np.full(shape, np.nan), np.zeros(shape, np.bool_)
        scores = roles.scores[role]
        for head, excess, holding in zip(roles.heads, scores.values, holds(scores), strict=True):
            values[head], held[head] = excess, holding
        label = "attention beyond chance" if scores.queries else "nothing to measure it on"
        plots.heat_map(axes, values, title=NAMED[role], label=label, marked=held, digits=2)
    panels.flat[-1].set_axis_off()
    return drawing
