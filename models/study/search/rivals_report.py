"""The report of the chosen mask beside its rivals."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.masks.head_mask import HeadMask
from models.study.result import Section, Table
from models.study.search.noninferiority import TESTED_METRICS
from models.study.search.rivals import ANYWHERE, LOWEST, MATCHED, Rivalry
from models.study.statistics import LEVEL
from models.study.wording import NAMES, listed, p_value, signed


def as_json(rivalry: Rivalry) -> dict[str, Any]:
    """Return the value of "rivals" in report.json."""
    return {
        "heads_on": rivalry.heads_on,
        "found": {metric: rivalry.chosen[metric] for metric in NAMES},
        "p": {
            kind: {metric: rivalry.p(kind, metric) for metric in TESTED_METRICS}
            for kind in (MATCHED, ANYWHERE)
        },
        "masks": [
            {
                "kind": rival.kind,
                "spec": HeadMask.from_matrix(rival.weights).spec,
                **{metric: rival.held_out.metrics()[metric] for metric in NAMES},
            }
            for rival in rivalry.rivals
        ],
    }


def sentence(rivalry: Rivalry) -> str:
    """Say in a few sentences whether the heads matter or only the layers."""
    sets, heads = len(rivalry.changes(MATCHED, "qwk")), rivalry.heads_on
    spreads = [f"{NAMES[metric]} by {_spread(rivalry, MATCHED, metric)}" for metric in rivalry.defined]
    changes = [
        f"{_chosen(rivalry, metric)} (p {p_value(rivalry.p(MATCHED, metric))})" for metric in rivalry.defined
    ]
    them = "them" if len(changes) > 1 else "it"
    text = (
        f"Was it the heads or the layers? On the held-out queries {sets} random masks with as many heads in "
        f"each layer change {listed(spreads)}; the chosen mask changes {them} "
        f"by {listed(changes)}. {heads} random heads of all layers change QWK by "
        f"{_spread(rivalry, ANYWHERE, 'qwk')}, the {heads} lowest heads by "
        f"{signed(float(rivalry.changes(LOWEST, 'qwk')[0]))}. "
    )
    if rivalry.least_p > LEVEL:
        return (
            text + f"With so few random masks no p is below {rivalry.least_p:.2f}, so it is open whether the "
            "choice within the layers matters."
        )
    if rivalry.only_layers is None:
        return text + "The two metrics differ, so it is open whether the choice within the layers matters."
    if rivalry.only_layers:
        return (
            text + "What matters is how many heads each layer keeps: within a layer these queries cannot "
            "tell the choice from chance."
        )
    return text + "So the choice within the layers matters too."


def section(rivalry: Rivalry) -> Section:
    """Return the table of the chosen mask beside its rivals."""
    rows = [("chosen by the search", *(_chosen(rivalry, metric) for metric in TESTED_METRICS), "")]
    for kind in (MATCHED, ANYWHERE, LOWEST):
        p = (
            ""
            if kind == LOWEST
            else " / ".join(p_value(rivalry.p(kind, metric)) for metric in TESTED_METRICS)
        )
        rows.append((kind, *(_spread(rivalry, kind, metric) for metric in TESTED_METRICS), p))
    return Section(
        "Search: the heads or the layers?",
        (
            f"All masks keep {rivalry.heads_on} heads and are judged on the held-out queries. For random "
            "masks the table gives the median change and, in brackets, the worst and the best. p is the "
            "share of masks that do at least as well as the chosen one, which counts too.",
        ),
        (Table(("mask", *(f"Δ {NAMES[metric]}" for metric in TESTED_METRICS), "p"), tuple(rows)),),
    )


def _chosen(rivalry: Rivalry, metric: str) -> str:
    change = rivalry.chosen[metric] - rivalry.intact[metric]
    return signed(change)


def _spread(rivalry: Rivalry, kind: str, metric: str) -> str:
    changes = rivalry.changes(kind, metric)
    if not np.isfinite(changes).all():
        return "–"
    if len(changes) == 1:
        return signed(float(changes[0]))
    low, middle, high = (signed(float(value)) for value in np.quantile(changes, (0, 0.5, 1)))
    return f"{middle} ({low} to {high})"
