"""What `roles` found, as JSON, tables, maps and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from models.study import claims
from models.study.base import Figure, Finding, Section, Study, Table
from models.study.plots import BLUE, GREY, ORANGE, figure, heat_map
from models.study.roles.effects import METRICS, Comparison, Effects
from models.study.roles.scores import ROLES, RoleScores
from models.study.wording import NAMES, listed, p_value, percent, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Heads = Sequence[tuple[int, int]]
Scores = Mapping[str, RoleScores]

TITLES = {
    "term_match": "term match",
    "previous_word": "previous word",
    "next_word": "next word",
    "segmentation": "segmentation",
    "special": "special tokens",
}
_LETTERS = {"term_match": "T", "previous_word": "P", "next_word": "N", "segmentation": "W", "special": "S"}

_METHOD = (
    "Attention is counted from word to word: to a word is the sum over its pieces, from a word the mean. "
    "Previous and next word: against the same attention with the text's words in random order. Segmentation: "
    "attention to the neighbouring piece of the same word, less that to the neighbour across the word's "
    "border at the same offset; against borders put elsewhere. Special: attention to [CLS] and [SEP], "
    "against three random tokens. Term match: attention between a query term and the equal title term, both "
    "ways, less the same after the title term was replaced by another word of as many pieces; against random "
    "signs of whole queries. Each null has 999 draws; p is adjusted over all heads by the largest "
    "standardised score (max-T), so the familywise error rate of a role is 5 %."
)


def holds(scores: RoleScores, least: float) -> np.ndarray:
    """(heads,) bool: significantly and by at least `least` above chance."""
    with np.errstate(invalid="ignore"):
        return np.asarray((scores.p_adjusted < 0.05) & (scores.excess >= least))


def role_json(scores: RoleScores, heads: Heads, least: float) -> list[dict[str, Any]]:
    """Every head, the largest excess over chance first."""
    held = holds(scores, least)
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


def causal_json(found: Effects) -> dict[str, Any]:
    """The comparisons by name."""

    def one(comparison: Comparison) -> dict[str, Any]:
        intervals = {m: comparison.relative[m].interval() for m in METRICS}
        return {
            "heads": [list(head) for head in comparison.heads],
            "value": {m: comparison.value[m] for m in METRICS},
            "relative": {m: comparison.relative[m].value for m in METRICS},
            "interval": {m: [_number(v.low), _number(v.high)] for m, v in intervals.items()},
            "random_sets": len(comparison.random["qwk"]),
            "random": {m: _quantiles(comparison.random[m]) for m in METRICS},
            "p": comparison.p if len(comparison.random["qwk"]) else None,
        }

    return {
        "pairs": found.pairs,
        "queries": found.queries,
        "roles": {c.name: one(c) for c in found.comparisons},
        "published": {c.name.removeprefix("published: "): one(c) for c in found.anchors},
    }


def conclusion(scores: Scores, heads: Heads, found: Effects, least: float) -> str:
    """One paragraph: who holds what, and what losing it costs."""
    parts = []
    for role in ROLES:
        places = np.flatnonzero(holds(scores[role], least))
        if len(places):
            layers = sorted({heads[int(i)][0] for i in places})
            best = int(np.nanargmax(scores[role].excess))
            count = f"{len(places)} heads hold" if len(places) > 1 else "one head holds"
            parts.append(
                f"{count} {TITLES[role]} (layers {listed([str(x) for x in layers])}; the "
                f"strongest, {_head(heads[best])}, has {scores[role].excess[best]:.2f} of its attention "
                "there beyond chance)"
            )
        else:
            top = np.nanmax(scores[role].excess) if scores[role].queries else float("nan")
            parts.append(f"no head holds {TITLES[role]} (the largest excess is {top:.3f})")
    text = ["Of " + f"{len(heads)} heads, " + "; ".join(parts) + "."]
    for c in found.comparisons:
        if not len(c.random["qwk"]):
            continue
        qwk = c.relative["qwk"].interval()
        random = signed(100 * float(np.median(c.random["qwk"])), 1)
        text.append(
            f"Without the {len(c.heads)} leading {TITLES[c.name]} heads QWK changes by {percent(qwk)}, "
            f"without as many random heads of the same layers by {random} % "
            f"(median of {len(c.random['qwk'])} sets; p = {p_value(c.p['qwk'])})."
        )
    return " ".join(text)


def sections(scores: Scores, heads: Heads, found: Effects, study: Study, least: float) -> tuple[Section, ...]:
    """The role map, the leading heads, the causal check."""
    rows = [
        (
            TITLES[role],
            _head(heads[i]),
            f"{scores[role].score[i]:.3f}",
            f"{scores[role].chance[i]:.3f}",
            f"{signed(scores[role].excess[i])} ({signed(scores[role].low[i])} to "
            f"{signed(scores[role].high[i])})",
            p_value(float(scores[role].p_adjusted[i])),
            "yes" if holds(scores[role], least)[i] else "no",
        )
        for role in ROLES
        if scores[role].queries
        for i in np.argsort(-scores[role].excess, kind="stable")[:5]
    ]
    counts = [
        f"{TITLES[role]} {int((scores[role].p_adjusted < 0.05).sum())} significant, "
        f"{int(holds(scores[role], least).sum())} holding"
        for role in ROLES
    ]
    header = ("role", "head", "score", "chance", "excess (95 % interval)", "adjusted p", "holds")
    who = Section(
        "Roles: which head does what",
        (
            _METHOD,
            f"A head holds a role when its excess over chance is significant and at least {least:g}: with so "
            f"many tokens far smaller habits are significant. Heads by role: {'; '.join(counts)}.",
        ),
        (Table(header, tuple(rows), "The five leading heads of each role."),),
        (
            Figure(
                "role_map",
                "Excess over chance of every head in every role; framed heads hold it.",
                lambda: role_maps(scores, heads, study.shape, least),
                alt="Heat maps of layers by heads, one per role, and one that names each head's main role.",
            ),
        ),
    )
    return (who, _causal_section(found))


def findings(scores: Scores, found: Effects, least: float) -> tuple[Finding, ...]:
    """Fixed functions, and the published effect of switching term-match heads off."""
    rows = []
    for claim, roles in (
        ("some heads attend by word order", ("previous_word", "next_word")),
        ("some heads attend by word segmentation", ("segmentation",)),
        ("some heads match query terms with title terms", ("term_match",)),
    ):
        count = sum(int(holds(scores[role], least).sum()) for role in roles)
        top = max(
            (float(np.nanmax(scores[r].excess)) for r in roles if scores[r].queries), default=float("nan")
        )
        tested = any(scores[role].queries for role in roles)
        rows.append(
            Finding(
                claim,
                "yes",
                f"{count or 'no'} heads; largest excess {top:.2f}" if tested else "–",
                count > 0 if tested else None,
                f"A head must put at least {least:g} of its attention there beyond chance, adjusted p < "
                "0.05.",
                claims.MATCHING if "term_match" in roles else "",
            )
        )
    for anchor in found.anchors:
        if not len(anchor.random["accuracy"]):
            continue  # whole layers: the study of layers asks that of all the data
        change = anchor.relative["accuracy"].interval()
        random = np.median(anchor.random["accuracy"])
        rows.append(
            Finding(
                f"{anchor.name.removeprefix('published: ')} off cost accuracy",
                "−52 %, against 0 % for five random heads",
                f"accuracy {percent(change)}; random {signed(100 * random, 1)} % (median)",
                bool(change.high < 0 and anchor.p["accuracy"] < 0.05),
                f"They lose more than {1 - anchor.p['accuracy']:.0%} of layer-matched random sets"
                f" (p = {p_value(anchor.p['accuracy'])}).",
                claims.MATCHING_LOST,
            )
        )
    return tuple(rows)


def role_maps(scores: Scores, heads: Heads, shape: tuple[int, int], least: float) -> Drawing:
    """A heat map of each role, and the map of main roles."""
    drawing, panels = figure(17, 9.5, rows=2, columns=3)
    main = np.full(shape, "", dtype=object)
    best = np.zeros(shape)
    for axes, role in zip(panels.flat, ROLES, strict=False):
        values, held = np.full(shape, np.nan), np.zeros(shape, np.bool_)
        for i, head in enumerate(heads):
            values[head], held[head] = scores[role].excess[i], holds(scores[role], least)[i]
            if held[head] and values[head] > best[head]:
                best[head], main[head] = values[head], _LETTERS[role]
        heat_map(axes, values, title=TITLES[role], label="attention beyond chance", marked=held, digits=2)
    axes = panels.flat[5]
    axes.imshow(np.where(main == "", 0.0, best), cmap="Blues", vmin=0, vmax=1, origin="lower", aspect="auto")
    for (layer, head), letter in np.ndenumerate(main):
        axes.text(head, layer, letter, ha="center", va="center", fontweight="bold")
    axes.set(title="main role of each head", xlabel="head", ylabel="layer")
    axes.set_xticks(range(shape[1]))
    axes.set_yticks(range(shape[0]))
    axes.grid(False)
    key = ", ".join(f"{letter} {TITLES[role]}" for role, letter in _LETTERS.items())
    axes.annotate(key, (0.5, -0.16), xycoords="axes fraction", ha="center", fontsize=9)
    return drawing


def causal_plot(found: Effects) -> Drawing:
    """Each comparison's random sets as a strip, its own heads as a diamond with its interval."""
    shown = [c for c in (*found.comparisons, *found.anchors) if len(c.random["qwk"])]
    drawing, panels = figure(15, 1.6 + 0.75 * len(shown), columns=len(METRICS), sharey=True)
    rng = np.random.default_rng(0)
    for axes, metric in zip(panels, METRICS, strict=True):
        for row, c in enumerate(shown):
            random = 100 * c.random[metric]
            spread = rng.uniform(-0.22, 0.22, len(random))
            axes.plot(random, row + spread, ".", color=GREY, alpha=0.45, markersize=4, label="random heads")
            change = c.relative[metric].interval()
            axes.plot([100 * change.low, 100 * change.high], [row, row], color=ORANGE, lw=2)
            axes.plot(
                100 * change.value, row, "D", color=ORANGE, markeredgecolor="black", label="heads of the role"
            )
        axes.axvline(0, color=BLUE, lw=1)
        axes.set(xlabel=f"relative change in {NAMES[metric]}, %", title=NAMES[metric])
    names = [
        TITLES.get(c.name, c.name.removeprefix("published: ").replace(" heads", "\nheads")) for c in shown
    ]
    panels[0].set_yticks(
        range(len(shown)), [f"{n} ({len(c.heads)})" for n, c in zip(names, shown, strict=True)]
    )
    panels[0].set_ylim(len(shown) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    drawing.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=2, fontsize=10)
    return drawing


def _causal_section(found: Effects) -> Section:
    rows = [
        (
            TITLES.get(c.name, c.name),
            str(len(c.heads)),
            NAMES[metric],
            percent(c.relative[metric].interval()),
            *_random_cells(c, metric),
        )
        for c in (*found.comparisons, *found.anchors)
        for metric in METRICS
    ]
    header = ("heads off", "how many", "metric", "relative change", "random: median", "random: worst", "p")
    figures: tuple[Figure, ...] = ()
    if any(len(c.random["qwk"]) for c in (*found.comparisons, *found.anchors)):
        figures = (
            Figure(
                "role_effects",
                "Relative change with the heads of a role off (diamond, 95 % interval) and with as many "
                "random heads of the same layers off (dots).",
                lambda: causal_plot(found),
                alt="For each role, a diamond for its heads and dots for random sets, in three metrics.",
            ),
        )
    return Section(
        "Roles: the causal check",
        (
            f"The leading heads of a role are switched off on {found.pairs} pairs of {found.queries} "
            "queries, and so are up to 100 different random sets with as many heads of each layer. p is the "
            "share of sets, the role's own counted, that lose at least as much; with few possible sets it "
            "cannot be small. The p-values of the roles are not corrected for each other.",
        ),
        (Table(header, tuple(rows), "What switching the heads of a role off costs."),),
        figures,
    )


def _random_cells(comparison: Comparison, metric: str) -> tuple[str, str, str]:
    """Median and worst random set, and p; dashes where the comparison has no random sets."""
    random = 100 * comparison.random[metric]
    if not len(random):
        return "–", "–", "–"
    p = p_value(comparison.p[metric])
    return f"{signed(np.median(random), 1)} %", f"{signed(random.min(), 1)} %", f"{p} of {len(random)} sets"


def _head(head: tuple[int, int]) -> str:
    return f"{head[0]}.{head[1]}"


def _number(value: float) -> float | None:
    """The number for JSON, None for nan."""
    return float(value) if np.isfinite(value) else None


def _quantiles(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    return {name: float(np.quantile(values, q)) for name, q in (("min", 0), ("median", 0.5), ("max", 1))}
