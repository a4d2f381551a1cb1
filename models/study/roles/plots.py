"""The plots of `roles`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.study.plots import BLUE, GREY, ORANGE, figure, heat_map
from models.study.roles.causal import CAUSAL_METRICS, CausalCheck, Comparison
from models.study.roles.compute import ROLES, Roles, holds
from models.study.wording import NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = {
    "term_match": "term match",
    "previous_word": "previous word",
    "next_word": "next word",
    "segmentation": "segmentation",
    "segmentation_zh": "segmentation, Chinese",
    "segmentation_ko": "segmentation, Korean",
    "special": "special tokens",
}


def role_maps(roles: Roles, shape: tuple[int, int]) -> Figure:
    """Draw a heat map of each role."""
    drawing, panels = figure(22, 9.5, rows=2, columns=4)
    for axes, role in zip(panels.flat, ROLES, strict=False):
        values, held = np.full(shape, np.nan), np.zeros(shape, np.bool_)
        scores = roles.scores[role]
        for head, excess, holding in zip(roles.heads, scores.values, holds(scores), strict=True):
            values[head], held[head] = excess, holding
        label = "attention beyond chance" if scores.queries else "nothing to measure it on"
        heat_map(axes, values, title=NAMED[role], label=label, marked=held, digits=2)
    panels.flat[-1].set_axis_off()
    return drawing


def labelled(check: CausalCheck) -> dict[str, Comparison]:
    """Return the comparisons by what their heads are called."""
    return {NAMED.get(name, name): one for name, one in check.comparisons.items()}


def causal_plot(check: CausalCheck) -> Figure:
    """Draw each comparison: dots for the random sets, a diamond with its interval for its own heads."""
    shown = labelled(check)
    drawing, panels = figure(15, 1.6 + 0.75 * len(shown), columns=len(CAUSAL_METRICS), sharey=True)
    rng = np.random.default_rng(0)
    for axes, metric in zip(panels, CAUSAL_METRICS, strict=True):
        for row, comparison in enumerate(shown.values()):
            random = 100 * comparison.random[metric]
            spread = rng.uniform(-0.22, 0.22, len(random))
            dots = {"label": "random heads"} if not row else {}
            axes.plot(random, row + spread, ".", color=GREY, alpha=0.45, markersize=4, **dots)
            change = comparison.relative[metric].interval()
            own = {"label": "heads of the role"} if not row else {}
            axes.plot([100 * change.low, 100 * change.high], [row, row], color=ORANGE, lw=2)
            axes.plot(100 * change.value, row, "D", color=ORANGE, markeredgecolor="black", **own)
        axes.axvline(0, color=BLUE, lw=1)
        axes.set(xlabel=f"relative change in {NAMES[metric]}, %", title=NAMES[metric])
    names = [f"{name.replace(' heads', chr(10) + 'heads')} ({len(one.heads)})" for name, one in shown.items()]
    panels[0].set_yticks(range(len(shown)), names)
    panels[0].set_ylim(len(shown) - 0.5, -0.5)
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=10)
    return drawing
