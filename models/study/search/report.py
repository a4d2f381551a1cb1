"""What `search` found, as JSON, tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from models.head_mask import HeadMask
from models.study import claims
from models.study.base import Figure, Finding, Section, Study, Table
from models.study.search import plots as search_plots
from models.study.search import rivals
from models.study.search.noninferiority import METRICS, POWER, Loss, Verdict
from models.study.statistics import Resamples
from models.study.wording import NAMES, signed

if TYPE_CHECKING:
    from models.study.search.compute import Candidate, Search


def as_json(search: Search, study: Study) -> dict[str, Any]:
    """The keys of report.json that are the search's own."""
    return {
        "path": _path_json(search.plain, search.plain_verdicts, study),
        "tuned_path": _path_json(search.tuned, search.tuned_verdicts, study),
        "other_orders": [_point_json(candidate) for candidate in search.baselines],
        "chosen": _chosen_json(search.plain, search.plain_verdicts, search.chosen, "mask.json"),
        "chosen_tuned": _chosen_json(search.tuned, search.tuned_verdicts, search.chosen_tuned, "scales.json"),
        "rivals": None if search.rivalry is None else rivals.as_json(search.rivalry),
        "non_inferiority": {
            "margin": study.margin,
            "metrics": list(METRICS),
            "alpha": 0.025,
            "test": "one-sided cluster bootstrap over held-out queries, both metrics, fixed sequence",
            "queries": 0 if study.holdout is None else len(study.holdout.queries),
        },
        "speed": [
            {
                "name": way.name,
                "pairs_per_second": way.pairs_per_second,
                "speedup": way.speedup,
                "parameters": way.parameters,
                "held_out": None if way.quality is None else _metrics(way.quality.metrics()),
            }
            for way in (search.speed.ways if search.speed else ())
        ],
    }


def conclusion(search: Search, study: Study) -> str:
    """One paragraph that follows from the numbers."""
    total = search.heads
    text = [_baseline_sentence(search)]
    if study.holdout is None:
        text.append(
            "Without --holdout nothing is chosen: the data that ordered the heads cannot also judge them."
        )
        return " ".join(text)
    place = search.chosen
    if place is None:
        text.append(_nothing_passed(search, study))
    else:
        on, losses = search.plain[place].heads_on, search.plain_verdicts[place].losses
        text.append(
            f"On {len(study.holdout.queries)} held-out queries the smallest mask that is non-inferior to the "
            f"intact model at a margin of {study.margin:g} keeps {on} of {total} heads ({on / total:.0%}): "
            + ", ".join(_loss_text(name, loss) for name, loss in losses.items())
            + "."
        )
        text.append(_why_stopped(search, study, place))
    if search.chosen_tuned is not None:
        tuned = search.tuned[search.chosen_tuned].heads_on
        text.append(f"With scales tuned by least squares and folded into W^O, {tuned} heads suffice.")
    elif search.tuned_verdicts:
        text.append("With tuned scales no set of heads passed the same test.")
    if search.rivalry is not None:
        text.append(rivals.sentence(search.rivalry))
    if search.speed is not None:
        text.append(_speed_sentence(search))
    return " ".join(text)


def sections(search: Search, study: Study) -> tuple[Section, ...]:
    """Path, held-out test, speed."""
    path = Section(
        "Search: the path",
        (
            "Heads go in the order of a greedy backward elimination under the full Fisher information of the "
            "head gates (Kwon et al. 2022), estimated on the search data. The same data shows the path "
            "below, so its left end is flattering; the next section is not. Bands are 95 % intervals by "
            f"bootstrap over queries; random is the middle 90 % of {_seeds(search)} orders.",
        ),
        (_path_table(search),),
        (
            Figure(
                "search_path",
                "Quality on the search data by heads kept: the full-Fisher order, plain and with tuned "
                "scales, beside its baselines.",
                lambda: search_plots.path(search, study.data),
                alt="Curves of QWK and NDCG@10 against the number of heads kept, one per method.",
            ),
        ),
    )
    if study.holdout is None:
        return (path,)
    test = Section(
        "Search: the test on held-out queries",
        (
            f"A mask passes when the one-sided 97.5 % lower bounds of its change in {_and(METRICS)} both lie "
            f"above −{study.margin:g}. Masks are tested from many heads to few and testing stops at the "
            "first failure (fixed-sequence testing), plain and tuned each with half of a 5 % error rate, so "
            "that the chance of choosing any mask worse than the margin is at most 5 %. Power is that of a "
            "mask which changes nothing.",
        ),
        (
            _test_table(search.plain, search.plain_verdicts, "Plain masks, in the order tested."),
            _test_table(search.tuned, search.tuned_verdicts, "The same heads with tuned scales."),
        ),
        (
            Figure(
                "search_holdout",
                "Change on held-out queries with its lower bound; what lies wholly above the line of the "
                "margin passes.",
                lambda: search_plots.held_out(search, study.margin),
                alt="Points with bounds against the number of heads kept, and the margin as a line.",
            ),
            *_mask_figures(search),
        ),
    )
    assert search.rivalry is not None
    return (path, test, rivals.section(search.rivalry), *_speed_sections(search))


def findings(search: Search, study: Study) -> tuple[Finding, ...]:
    """About 20 % of heads removable at no loss?"""
    claim, published = "a fifth of the heads can go at no loss", "about 20 %"
    total = search.heads
    place = search.chosen
    if study.holdout is None:
        return (
            Finding(
                claim, published, "–", None, "There were no held-out queries to test a mask on.", claims.DEPTH
            ),
        )
    if place is None:
        reason = _nothing_passed(search, study)
        return (Finding(claim, published, "not shown", None, reason, claims.DEPTH),)
    gone = 1 - search.plain[place].heads_on / total
    loss = search.plain_verdicts[place].losses["qwk"]
    ours = f"{gone:.0%} ({_loss_text('qwk', loss)})"
    enough = gone >= 0.195  # a fifth of 144 heads is 28.8
    reason = (
        f"A mask without {gone:.0%} of the heads is non-inferior at margin {study.margin:g} on other queries."
        if enough
        else f"Only {gone:.0%} could be shown; whether more can go these queries do not tell."
    )
    return (Finding(claim, published, ours, True if enough else None, reason, claims.DEPTH),)


def _path_json(path: Sequence[Candidate], verdicts: Sequence[Verdict], study: Study) -> list[dict[str, Any]]:
    points = []
    resamples = Resamples(study.data, study.resamples, study.seed)
    for place, candidate in enumerate(path):
        point = _point_json(candidate)
        point["interval"] = {}
        for name, draws in resamples.draws(candidate.quality).items():
            found = resamples.estimate(draws).interval()
            point["interval"][name] = [found.low, found.high]
        if verdicts:
            point["holdout"] = _verdict_json(verdicts[place], candidate)
        points.append(point)
    return points


def _point_json(candidate: Candidate) -> dict[str, Any]:
    off = HeadMask.from_matrix((candidate.weights > 0).astype(np.float32))
    return {
        "method": candidate.method,
        "heads_on": candidate.heads_on,
        "spec": off.spec,
        **_metrics(candidate.quality.metrics()),
    }


def _verdict_json(verdict: Verdict, candidate: Candidate) -> dict[str, Any]:
    assert candidate.held_out is not None
    return {
        **_metrics(candidate.held_out.metrics()),
        "tested": verdict.tested,
        "passed": verdict.passed,
        "loss": {
            name: {
                "delta": loss.delta,
                "bound": loss.bound,
                "standard_error": loss.error,
                "power": loss.power,
                "queries_needed": loss.queries_needed,
            }
            for name, loss in verdict.losses.items()
        },
    }


def _chosen_json(
    path: Sequence[Candidate], verdicts: Sequence[Verdict], place: int | None, file: str
) -> dict[str, Any] | None:
    if place is None:
        return None
    return {**_point_json(path[place]), "file": file, "holdout": _verdict_json(verdicts[place], path[place])}


def _metrics(values: dict[str, float]) -> dict[str, float]:
    return {name: values[name] for name in NAMES}


def _baseline_sentence(search: Search) -> str:
    """How the order compares with its baselines where both keep about 40 % of the heads."""
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


def _nothing_passed(search: Search, study: Study) -> str:
    assert study.holdout is not None
    first, losses = search.plain[0], search.plain_verdicts[0].losses
    weakest = min(losses.values(), key=lambda loss: loss.power)
    return (
        f"No mask could be shown to be non-inferior at a margin of {study.margin:g} on the "
        f"{len(study.holdout.queries)} held-out queries: already at {first.heads_on} heads "
        + " and ".join(_loss_text(name, loss) for name, loss in losses.items())
        + f". The test would have found a harmless mask with a power of {weakest.power:.0%}; "
        f"{weakest.queries_needed:,} queries are needed for {POWER:.0%}."
    )


def _why_stopped(search: Search, study: Study, place: int) -> str:
    if place + 1 >= len(search.plain):
        return "No smaller mask was tried."
    failed, verdict = search.plain[place + 1], search.plain_verdicts[place + 1]
    name, loss = min(verdict.losses.items(), key=lambda item: item[1].bound)
    text = f"At {failed.heads_on} heads the test stopped ({_loss_text(name, loss)})"
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


def _path_table(search: Search) -> Table:
    rows = [("intact", str(search.heads), *_cells(search.intact.metrics()))]
    for plain, tuned in zip(search.plain, search.tuned, strict=True):
        rows += [(c.method, str(c.heads_on), *_cells(c.quality.metrics())) for c in (plain, tuned)]
    return Table(
        ("method", "heads on", *NAMES.values()), tuple(rows), "Quality along the path, on the search data."
    )


def _test_table(path: Sequence[Candidate], verdicts: Sequence[Verdict], caption: str) -> Table:
    rows = []
    for candidate, verdict in zip(path, verdicts, strict=True):
        cells = [str(candidate.heads_on)]
        for loss in verdict.losses.values():
            cells += [signed(loss.delta), signed(loss.bound), f"{loss.power:.0%}"]
        outcome = "passed" if verdict.passed else "failed" if verdict.tested else "not tested"
        rows.append((*cells, outcome))
    header = ["heads on"]
    for name in METRICS:
        header += [f"Δ {NAMES[name]}", "lower bound", "power"]
    return Table((*header, "test"), tuple(rows), caption)


def _speed_sections(search: Search) -> tuple[Section, ...]:
    if search.speed is None:
        return ()
    rows = []
    for way in search.speed.ways:
        quality = ("", "") if way.quality is None else _cells(way.quality.metrics())[2:]
        rows.append(
            (way.name, f"{way.pairs_per_second:.0f}", f"{way.speedup:.2f}", f"{way.parameters:,}", *quality)
        )
    return (
        Section(
            "Search: what it saves",
            (
                f"The ways took {search.speed.rounds} turns of {search.speed.pairs} pairs each; speed-up is "
                "the median ratio within a turn. Quality is that of the pruned checkpoint as loaded, on "
                "held-out queries.",
            ),
            (
                Table(
                    ("way", "pairs/s", "speed-up", "parameters", "QWK", "NDCG@10"),
                    tuple(rows),
                    "Speed and size.",
                ),
            ),
        ),
    )


def _mask_figures(search: Search) -> tuple[Figure, ...]:
    if search.chosen is None:
        return ()
    weights = search.plain[search.chosen].weights
    scales = None if search.chosen_tuned is None else search.tuned[search.chosen_tuned].weights
    return (
        Figure(
            "search_mask",
            "The chosen mask (dark: head kept) and, beside it, the chosen tuned scales.",
            lambda: search_plots.masks(weights, scales),
            alt="A map of layers by heads that shows which heads are kept.",
        ),
    )


def _cells(values: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{values[name]:.3f}" for name in NAMES)


def _loss_text(name: str, loss: Loss) -> str:
    return f"{NAMES[name]} {signed(loss.delta)} (lower bound {signed(loss.bound)})"


def _seeds(search: Search) -> int:
    sizes = [c.heads_on for c in search.baselines if c.method == "random"]
    return sizes.count(sizes[0]) if sizes else 0


def _and(names: Sequence[str]) -> str:
    return " and ".join(NAMES[name] for name in names)
