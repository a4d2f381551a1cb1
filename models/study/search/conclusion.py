"""The conclusion of `search` in sentences."""

from __future__ import annotations

import math

import numpy as np

from models.quality.bootstrap import MIN_TESTED
from models.study.search import rivals_report
from models.study.search.compute import Search
from models.study.search.noninferiority import POWER, TESTED_METRICS, Loss
from models.study.study import Study
from models.study.wording import NAMES, bound, signed


def conclusion(search: Search, study: Study) -> str:
    """Return one paragraph that follows from the numbers."""
    total = search.heads
    text = [_baseline_sentence(search)]
    if study.holdout is None:
        text.append(
            "Without --holdout nothing is chosen: the data that ordered the heads cannot also judge them."
        )
        return " ".join(text)
    place = search.chosen
    if place is None:
        text.append(nothing_passed(search, study))
    else:
        on = search.plain[place].heads_on
        text.append(
            f"On {len(study.holdout.queries)} held-out queries the smallest mask that is non-inferior to the "
            f"intact model at a margin of {study.margin:g} keeps {on} of {total} heads ({on / total:.0%}): "
            f"{within(study.margin)}."
        )
        text.append(_why_stopped(search, study, place))
    if search.chosen_tuned is not None:
        tuned = search.tuned[search.chosen_tuned].heads_on
        text.append(
            f"With scales tuned by least squares and folded into W^O, {tuned} heads pass the same test."
        )
    elif search.tuned_verdicts:
        text.append("With tuned scales no set of heads passed the same test.")
    if search.rivalry is not None:
        text.append(rivals_report.sentence(search.rivalry))
    if search.speed is not None:
        text.append(_speed_sentence(search))
    return " ".join(text)


def _baseline_sentence(search: Search) -> str:
    """Compare the order with its baselines, all with about 40 % of the heads kept."""
    sizes = {c.heads_on for c in search.baselines if c.method == "random"}
    if not sizes:
        return ""
    size = sorted(sizes)[1] if len(sizes) > 1 else min(sizes)
    ours = next((c for c in search.plain if c.heads_on == size), None)
    if ours is None:
        return ""
    qwk = ours.quality.metrics()["qwk"]
    others = {
        c.method: c.quality.metrics()["qwk"]
        for c in search.baselines
        if c.heads_on == size and c.method != "random"
    }
    random = np.array(
        [c.quality.metrics()["qwk"] for c in search.baselines if c.heads_on == size and c.method == "random"]
    )
    beaten = int((random < qwk).sum())
    return (
        f"With {size} of {search.heads} heads kept, the full-Fisher order has QWK {qwk:.3f} on the search "
        f"data (intact {search.intact.metrics()['qwk']:.3f}); "
        + ", ".join(f"{name} {value:.3f}" for name, value in others.items())
        + f"; random orders {np.median(random):.3f} (median), of which it beats {beaten} of {len(random)}."
    )


def nothing_passed(search: Search, study: Study) -> str:
    """Say that no mask passed, and how many queries it would take."""
    assert study.holdout is not None
    first, losses = search.plain[0], search.plain_verdicts[0].losses
    weakest = min(losses.values(), key=lambda loss: loss.power)
    if weakest.queries_needed is None:
        return too_few(study)
    reason = (
        f". The test would have found a harmless mask with a power of {weakest.power:.0%}; "
        f"{weakest.queries_needed:,} queries are needed for {POWER:.0%}."
    )
    return (
        f"No mask could be shown to be non-inferior at a margin of {study.margin:g} on the "
        f"{len(study.holdout.queries)} held-out queries: already at {first.heads_on} heads "
        + " and ".join(loss_text(name, loss, study.margin) for name, loss in losses.items())
        + reason
    )


def too_few(study: Study) -> str:
    """Say that the held-out queries are too few for any claim."""
    assert study.holdout is not None
    return (
        f"Too few queries: {study.holdout.ranked_queries} of the {len(study.holdout.queries)} held-out "
        f"queries have titles of different grades, and no mask is called non-inferior on fewer than "
        f"{MIN_TESTED}."
    )


def _why_stopped(search: Search, study: Study, place: int) -> str:
    if place + 1 >= len(search.plain):
        return "No smaller mask was tried."
    failed, verdict = search.plain[place + 1], search.plain_verdicts[place + 1]
    name, loss = min(verdict.losses.items(), key=lambda item: item[1].bound)
    text = f"At {failed.heads_on} heads the test stopped ({loss_text(name, loss, study.margin)})"
    if loss.delta > -study.margin:
        return (
            f"{text}: the estimate is within the margin but its bound is not, so these queries cannot tell. "
            f"A mask that changes nothing would have passed with a power of {loss.power:.0%}, so "
            + (
                "the queries are not too few for a harmless mask: this one may cost something."
                if loss.power >= POWER
                else f"they are too few: about {loss.queries_needed:,} are needed for {POWER:.0%}."
            )
        )
    return f"{text}: the estimate itself is beyond the margin."


def _speed_sentence(search: Search) -> str:
    assert search.speed is not None
    parts = [f"{way.name} {way.speedup:.2f} ×" for way in search.speed.ways[1:]]
    return f"Measured against the intact model in turns: {', '.join(parts)} its pairs per second."


def within(margin: float) -> str:
    """Say what is shown of a mask that passed. Its own figures are too good, because they chose it."""
    return f"{' and '.join(NAMES[name] for name in TESTED_METRICS)} each change by more than −{margin:g}"


def loss_text(name: str, loss: Loss, margin: float) -> str:
    """Return one metric's change with its lower bound; "undefined" and "no lower bound" if it has none."""
    change = "undefined" if math.isnan(loss.delta) else signed(loss.delta)
    low = f"lower bound {bound(loss.bound, margin)}" if math.isfinite(loss.bound) else "no lower bound"
    return f"{NAMES[name]} {change} ({low})"
