"""The report of `roles`: JSON, verdict, findings and sections."""

from typing import Any

import numpy as np

from models.study.result import Figure, Finding, Result, Section, Table, in_words
from models.study.roles.causal import CAUSAL_METRICS, CausalCheck, Comparison
from models.study.roles.compute import HOLDS, ROLES, Roles, holds
from models.study.roles.plots import NAMED, causal_plot, labelled, role_maps
from models.study.study import Study
from models.study.wording import NAMES, head_name, listed, p_value, percent, signed

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


def result(study: Study, roles: Roles) -> Result:
    """Return the report of roles."""
    counts = {role: int(holds(roles.scores[role]).sum()) for role in ROLES}
    held = [f"{NAMED[role]} {count}" for role, count in counts.items() if count]
    verdict = f"Of {len(roles.heads)} heads, these hold a role: {listed(held)}."
    picture = Figure(
        "role_map",
        "Excess over chance of every head in every role; framed heads hold it.",
        lambda: role_maps(roles, study.shape),
        alt="Heat maps of layers by heads, one per role.",
    )
    findings = _findings(roles)
    json = {
        "roles": {role: _role_json(roles, role) for role in ROLES},
        "causal": _causal_json(roles.causal),
        "role_pairs": roles.pairs,
    }
    sections = (_role_section(roles), _causal_section(roles.causal))
    return Result("roles", json, verdict, in_words(findings), sections, findings, picture)


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


def _causal_json(check: CausalCheck) -> dict[str, Any]:
    def one(comparison: Comparison) -> dict[str, Any]:
        """Return one comparison as report.json holds it. random: the relative change of each random set."""
        return {
            "heads": comparison.heads,
            "relative": {m: comparison.relative[m].interval() for m in CAUSAL_METRICS},
            "random": comparison.random,
            "p": comparison.p,
        }

    return {
        "pairs": check.pairs,
        "queries": check.queries,
        "roles": {name: one(comparison) for name, comparison in check.comparisons.items()},
    }


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
        random = one.random["accuracy"]
        median = _relative(np.median(random)) if len(random) else "–"
        change = percent(one.relative["accuracy"].interval())
        findings.append(
            Finding(
                f"{name} off cost accuracy",
                "−52 %, against 0 % for five random heads",
                f"accuracy {change}; random {median} (median; p {p_value(one.p['accuracy'])})",
            )
        )
    return tuple(findings)


def _causal_section(check: CausalCheck) -> Section:
    comparisons = labelled(check)
    rows = tuple(
        (
            name,
            str(len(one.heads)),
            NAMES[metric],
            percent(one.relative[metric].interval()),
            _relative(np.median(one.random[metric])) if len(one.random[metric]) else "–",
            f"{p_value(one.p[metric])} of {len(one.random[metric])} sets",
        )
        for name, one in comparisons.items()
        for metric in CAUSAL_METRICS
    )
    header = ("heads off", "how many", "metric", "relative change", "random: median", "p")
    effects = Figure(
        "role_effects",
        "Relative change with the heads of a role off (diamond, 95 % interval) and with as many "
        "random heads of the same layers off (dots).",
        lambda: causal_plot(check),
        alt="For each role, a diamond for its heads and dots for random sets, in three metrics.",
    )
    return Section(
        "Roles: the causal check",
        (
            f"The leading heads of a role are switched off on {check.pairs} pairs of {check.queries} "
            "queries, and so are up to 100 different random sets with as many heads of each layer. p "
            "is the share of sets, the role's own counted, that lose at least as much; with few "
            "possible sets it cannot be small. The p-values of the roles are not corrected for each other.",
        ),
        (Table(header, rows, "What switching the heads of a role off costs."),),
        (effects,) if comparisons else (),
    )


def _relative(change: float) -> str:
    """Return a relative change in per cent, or a dash if it is undefined."""
    return f"{signed(100 * change, 1)} %" if np.isfinite(change) else "–"
