"""The report of `roles`: JSON, conclusion, findings and sections."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.quality.bootstrap import Interval
from models.study import claims
from models.study.heads import name as head_name
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.roles.causal import CAUSAL_METRICS, CausalCheck, Comparison
from models.study.roles.compute import HOLDS, Roles, holds
from models.study.roles.plots import TITLES, causal_plot, role_maps
from models.study.roles.scores import ROLES
from models.study.statistics import LEVEL
from models.study.study import Study
from models.study.wording import NAMES, listed, p_value, percent, signed, value_or_dash, with_interval

PUBLISHED_LOSS = -0.52
"""Relative accuracy with the five term-match heads off, in the source study."""

_METHOD = (
    "Attention is counted from word to word: attention to a word is the sum over its pieces, attention from "
    "a word is the mean. Each score is compared with chance. Previous and next word: the same attention with "
    "the text's words in random order. Segmentation: attention to the neighbouring piece of the same word, "
    "less attention to the neighbour across the word's border at the same offset; by chance, the borders are "
    "elsewhere. Special: attention to [CLS] and [SEP]; by chance, to three random tokens. Term match: "
    "attention between a query term and the equal title term, both ways, less the same after another word of "
    "as many pieces replaced the title term; by chance, the signs of whole queries are random. Each null "
    "hypothesis has 999 draws; p is adjusted over all heads by the largest standardised score (max-T), so "
    "the familywise error rate of a role is 5 %."
)


def result(study: Study, roles: Roles) -> Result:
    """Return the report of roles."""
    return Result(
        "roles",
        {
            "roles": {role: _role_json(roles, role) for role in ROLES},
            "causal": _causal_json(roles.causal),
            "role_pairs": roles.pairs,
        },
        _conclusion(roles),
        (_role_section(roles, study.shape), _causal_section(roles.causal)),
        (*_function_findings(roles), *_published_findings(roles.causal)),
    )


def _role_json(roles: Roles, role: str) -> list[dict[str, Any]]:
    """Return every head, the largest excess over chance first."""
    scores, heads = roles.scores[role], roles.heads
    held = holds(scores)
    return [
        {
            "layer": heads[i][0],
            "head": heads[i][1],
            "score": _number(scores.score[i]),
            "chance": _number(scores.chance[i]),
            "excess": _number(scores.excess[i]),
            "interval": [_number(scores.low[i]), _number(scores.high[i])],
            "p_adjusted": float(scores.p_adjusted[i]),
            "holds": bool(held[i]),
        }
        for i in np.argsort(-scores.excess, kind="stable")
    ]


def _causal_json(check: CausalCheck) -> dict[str, Any]:
    """Return the comparisons by name."""

    def one(comparison: Comparison) -> dict[str, Any]:
        """Return the values of one comparison."""
        intervals = {m: comparison.relative[m].interval() for m in CAUSAL_METRICS}
        return {
            "heads": [list(head) for head in comparison.heads],
            "value": {m: comparison.value[m] for m in CAUSAL_METRICS},
            "relative": {m: comparison.relative[m].value for m in CAUSAL_METRICS},
            "interval": {m: [_number(v.low), _number(v.high)] for m, v in intervals.items()},
            "random_sets": len(comparison.random["qwk"]),
            "random": {m: _quantiles(comparison.random[m]) for m in CAUSAL_METRICS},
            "p": comparison.p if len(comparison.random["qwk"]) else None,
        }

    return {
        "pairs": check.pairs,
        "queries": check.queries,
        "roles": {c.name: one(c) for c in check.comparisons},
        "published": {c.name.removeprefix("published: "): one(c) for c in check.published},
    }


def _conclusion(roles: Roles) -> str:
    """Return one paragraph: which heads hold which role, and what losing them costs."""
    scores, heads = roles.scores, roles.heads
    parts = []
    for role in ROLES:
        places = np.flatnonzero(holds(scores[role]))
        if len(places):
            layers = sorted({heads[int(i)][0] for i in places})
            best = int(np.nanargmax(scores[role].excess))
            count = f"{len(places)} heads hold" if len(places) > 1 else "one head holds"
            parts.append(
                f"{count} {TITLES[role]} ({'layers' if len(layers) > 1 else 'layer'} "
                f"{listed([str(x) for x in layers])}; the strongest, {head_name(heads[best])}, has "
                f"{scores[role].excess[best]:.2f} of its attention there beyond chance)"
            )
        elif scores[role].queries:
            top = np.nanmax(scores[role].excess)
            parts.append(f"no head holds {TITLES[role]} (the largest excess is {top:.3f})")
        else:
            parts.append(f"no pair has words that could show {TITLES[role]}")
    text = ["Of " + f"{len(heads)} heads, " + "; ".join(parts) + "."]
    for c in roles.causal.comparisons:
        if not len(c.random["qwk"]) or not np.isfinite(c.relative["qwk"].value):
            continue
        qwk = c.relative["qwk"].interval()
        random = _relative(np.median(c.random["qwk"]))
        text.append(
            f"Without the {_leading(len(c.heads), TITLES[c.name])} QWK changes by {percent(qwk)}, "
            f"without as many random heads of the same layers by {random} "
            f"(median of {len(c.random['qwk'])} sets; p = {p_value(c.p['qwk'])})."
        )
    return " ".join(text)


def _leading(number: int, role: str) -> str:
    return f"leading {role} head" if number == 1 else f"{number} leading {role} heads"


def _role_section(roles: Roles, shape: tuple[int, int]) -> Section:
    """Return the role map and the leading heads of each role."""
    counts = []
    for role, scores in roles.scores.items():
        significant, holding = int((scores.p_adjusted < LEVEL).sum()), int(holds(scores).sum())
        counts.append(f"{TITLES[role]} {significant} significant, {holding} holding")
    header = ("role", "head", "score", "chance", "excess (95 % interval)", "adjusted p", "holds")
    rows = [row for role in ROLES for row in _leading_rows(roles, role)]
    return Section(
        "Roles: which head does what",
        (
            _METHOD,
            f"A head holds a role if its excess over chance is significant and at least {HOLDS:g}: with so "
            f"many tokens far smaller habits are significant. Heads by role: {'; '.join(counts)}.",
        ),
        (Table(header, tuple(rows), "The five leading heads of each role."),),
        (
            Figure(
                "role_map",
                "Excess over chance of every head in every role; framed heads hold it.",
                lambda: role_maps(roles, shape),
                alt="Heat maps of layers by heads, one per role, and one that names each head's main role.",
            ),
        ),
    )


def _leading_rows(roles: Roles, role: str) -> list[tuple[str, ...]]:
    scores = roles.scores[role]
    if not scores.queries:
        return []
    return [
        (
            TITLES[role],
            head_name(roles.heads[i]),
            f"{scores.score[i]:.3f}",
            f"{scores.chance[i]:.3f}",
            with_interval(Interval(scores.excess[i], scores.low[i], scores.high[i])),
            p_value(float(scores.p_adjusted[i])),
            "yes" if holds(scores)[i] else "no",
        )
        for i in np.argsort(-scores.excess, kind="stable")[:5]
    ]


def _function_findings(roles: Roles) -> list[Finding]:
    """Return whether some heads have the published functions."""
    findings = []
    for claim, names in (
        ("some heads attend by word order", ("previous_word", "next_word")),
        ("some heads attend by word segmentation", ("segmentation",)),
        ("some heads match query terms with title terms", ("term_match",)),
    ):
        scores = [roles.scores[role] for role in names]
        count = sum(int(holds(one).sum()) for one in scores)
        top = max((float(np.nanmax(one.excess)) for one in scores if one.queries), default=float("nan"))
        tested = any(one.queries for one in scores)
        # No correction over the heads: that none holds the role is shown only if each is shown not to.
        ceiling = float(np.max([one.high for one in scores]))
        findings.append(
            Finding(
                claim,
                "yes",
                f"{count or 'no'} heads; largest excess {top:.2f}, intervals up to {value_or_dash(ceiling)}"
                if tested
                else "–",
                True if count else False if ceiling < HOLDS else None,
                f"A head must put at least {HOLDS:g} of its attention there beyond chance, adjusted p < "
                f"0.05; not replicated if the intervals of all heads end below {HOLDS:g}.",
                claims.MATCHING if "term_match" in names else "",
            )
        )
    return findings


def _published_findings(check: CausalCheck) -> list[Finding]:
    """Return the effect of switching off the heads that the source study switched off."""
    findings = []
    for comparison in check.published:
        if not len(comparison.random["accuracy"]):
            continue  # whole layers: the study of layers asks that of all the data
        change = comparison.relative["accuracy"].interval()
        random = np.median(comparison.random["accuracy"])
        sets, p = len(comparison.random["accuracy"]), comparison.p["accuracy"]
        least = 1 / (1 + sets)  # the smallest p that so many sets allow
        lost = change.high < 0 and p < LEVEL
        excluded = not lost and change.low > PUBLISHED_LOSS / 2
        smaller = excluded and change.high < 0
        if not np.isfinite(p):
            reason = "The relative change of accuracy is undefined."
        elif least >= LEVEL:
            reason = f"Too few random sets to show a loss: with {sets} no p is below {least:.2f}."
        else:
            reason = f"They lose more than {1 - p:.0%} of layer-matched random sets (p = {p_value(p)})."
        if smaller:
            reason += " Accuracy falls, but by less than half the published size."
        elif excluded:
            reason += " A loss of half the published size is excluded."
        findings.append(
            Finding(
                f"{comparison.name.removeprefix('published: ')} off cost accuracy",
                f"{signed(PUBLISHED_LOSS * 100, 0)} %, against 0 % for five random heads",
                f"accuracy {percent(change)}; random {_relative(random)} (median)",
                True if lost else False if excluded and not smaller else None,
                reason,
                claims.MATCHING_LOST,
            )
        )
    return findings


def _causal_section(check: CausalCheck) -> Section:
    comparisons = (*check.comparisons, *check.published)
    rows = [
        (
            TITLES.get(c.name, c.name),
            str(len(c.heads)),
            NAMES[metric],
            percent(c.relative[metric].interval()),
            *_random_cells(c, metric),
        )
        for c in comparisons
        for metric in CAUSAL_METRICS
    ]
    header = ("heads off", "how many", "metric", "relative change", "random: median", "random: worst", "p")
    figures: tuple[Figure, ...] = ()
    if any(len(c.random["qwk"]) for c in comparisons):
        figures = (
            Figure(
                "role_effects",
                "Relative change with the heads of a role off (diamond, 95 % interval) and with as many "
                "random heads of the same layers off (dots).",
                lambda: causal_plot(check),
                alt="For each role, a diamond for its heads and dots for random sets, in three metrics.",
            ),
        )
    return Section(
        "Roles: the causal check",
        (
            f"The leading heads of a role are switched off on {check.pairs} pairs of {check.queries} "
            "queries, and so are up to 100 different random sets with as many heads of each layer. p is the "
            "share of sets, the role's own counted, that lose at least as much; with few possible sets it "
            "cannot be small. The p-values of the roles are not corrected for each other.",
        ),
        (Table(header, tuple(rows), "What switching the heads of a role off costs."),),
        figures,
    )


def _random_cells(comparison: Comparison, metric: str) -> tuple[str, str, str]:
    """Return the median and the worst random set, and p; dashes if the comparison has no random sets."""
    random = comparison.random[metric]
    if not len(random):
        return "–", "–", "–"
    p = p_value(comparison.p[metric])
    return _relative(np.median(random)), _relative(random.min()), f"{p} of {len(random)} sets"


def _relative(change: float) -> str:
    """Return a relative change in per cent, or a dash if it is undefined."""
    return f"{signed(100 * change, 1)} %" if np.isfinite(change) else "–"


def _number(value: float) -> float | None:
    """Return the number for JSON, None for nan."""
    return float(value) if np.isfinite(value) else None


def _quantiles(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    return {name: float(np.quantile(values, q)) for name, q in (("min", 0), ("median", 0.5), ("max", 1))}
