"""The plots of `roles`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.study.plots import BLUE, GREY, ORANGE, figure, heat_map
from models.study.roles.causal import CAUSAL_METRICS, CausalCheck, Comparison
from models.study.roles.compute import Roles, holds
from models.study.roles.scores import ROLES
from models.study.wording import NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "term_match": "term match",
    "previous_word": "previous word",
    "next_word": "next word",
    "segmentation": "segmentation",
    "special": "special tokens",
}
_LETTERS = {"term_match": "T", "previous_word": "P", "next_word": "N", "segmentation": "W", "special": "S"}


def role_maps(roles: Roles, shape: tuple[int, int]) -> Figure:
    """Draw a heat map of each role, and the map of main roles."""
    drawing, panels = figure(17, 9.5, rows=2, columns=3)
    main = np.full(shape, "", dtype=object)
    best = np.zeros(shape)
    for axes, role in zip(panels.flat, ROLES, strict=False):
        values, held = np.full(shape, np.nan), np.zeros(shape, np.bool_)
        scores = roles.scores[role]
        for head, excess, holding in zip(roles.heads, scores.excess, holds(scores), strict=True):
            values[head], held[head] = excess, holding
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


def causal_plot(check: CausalCheck) -> Figure:
    """Draw each comparison: dots for the random sets, a diamond with its interval for its own heads."""
    shown = [c for c in (*check.comparisons, *check.published) if len(c.random["qwk"])]
    drawing, panels = figure(15, 1.6 + 0.75 * len(shown), columns=len(CAUSAL_METRICS), sharey=True)
    rng = np.random.default_rng(0)
    for axes, metric in zip(panels, CAUSAL_METRICS, strict=True):
        for row, comparison in enumerate(shown):
            random = 100 * comparison.random[metric]
            spread = rng.uniform(-0.22, 0.22, len(random))
            axes.plot(random, row + spread, ".", color=GREY, alpha=0.45, markersize=4, label="random heads")
            change = comparison.relative[metric].interval()
            axes.plot([100 * change.low, 100 * change.high], [row, row], color=ORANGE, lw=2)
            axes.plot(
                100 * change.value, row, "D", color=ORANGE, markeredgecolor="black", label="heads of the role"
            )
        axes.axvline(0, color=BLUE, lw=1)
        axes.set(xlabel=f"relative change in {NAMES[metric]}, %", title=NAMES[metric])
    panels[0].set_yticks(range(len(shown)), [_label(comparison) for comparison in shown])
    panels[0].set_ylim(len(shown) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    drawing.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=2, fontsize=10)
    return drawing


def _label(comparison: Comparison) -> str:
    short = comparison.name.removeprefix("published: ").replace(" heads", "\nheads")
    return f"{TITLES.get(comparison.name, short)} ({len(comparison.heads)})"
