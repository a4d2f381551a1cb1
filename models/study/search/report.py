"""The report of `search`: sections, finding and files, with JSON and conclusion from modules beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from models.masks.head_mask import HeadMask
from models.study import claims
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.search import json_values, plots, rivals_report
from models.study.search.compute import Candidate, Search
from models.study.search.conclusion import conclusion, nothing_passed, within
from models.study.search.noninferiority import TESTED_METRICS, Verdict
from models.study.study import Study
from models.study.wording import NAMES, bound, signed, value_or_dash


def result(study: Study, search: Search) -> Result:
    """Return the report of a search."""
    return Result(
        "search",
        json_values.as_json(search, study),
        conclusion(search, study),
        _sections(search, study),
        (_finding(search, study),),
        _files(search, study),
    )


def _sections(search: Search, study: Study) -> tuple[Section, ...]:
    """Return the path, the held-out test, the rivals and the speed."""
    path = Section(
        "Search: the path",
        (
            "Heads go in the order of a greedy backward elimination under the full Fisher information of the "
            "head gates (Kwon et al. 2022), estimated on the search data. The same data shows the path "
            "below, so it looks better than it is; the next section is a fair test. Bands are 95 % intervals "
            f"by bootstrap over queries; random is the middle 90 % of {_seeds(search)} orders.",
        ),
        (_path_table(search),),
        (
            Figure(
                "search_path",
                "Quality on the search data by heads kept: the full-Fisher order, plain and with tuned "
                "scales, beside its baselines.",
                lambda: plots.path(search, study.data),
                alt="Curves of QWK and NDCG@10 against the number of heads kept, one per method.",
            ),
        ),
    )
    if study.holdout is None:
        return (path,)
    test = Section(
        "Search: the test on held-out queries",
        (
            "A mask passes if the one-sided 97.5 % lower bounds of its change in "
            f"{_and(TESTED_METRICS)} both lie above −{study.margin:g}. Masks are tested from many heads to "
            "few and testing stops at the first failure (fixed-sequence testing), plain and tuned each with "
            "half of a 5 % error rate, so that the chance of choosing any mask worse than the margin is at "
            "most 5 %. Power is the chance that a mask which changes nothing passes.",
        ),
        (
            _test_table(
                search.plain, search.plain_verdicts, study.margin, "Plain masks, in the order tested."
            ),
            _test_table(
                search.tuned, search.tuned_verdicts, study.margin, "The same heads with tuned scales."
            ),
        ),
        (
            Figure(
                "search_holdout",
                "Change on held-out queries with its lower bound; a mask passes if both lie above the line "
                "of the margin.",
                lambda: plots.held_out(search, study.margin),
                alt="Points with bounds against the number of heads kept, and the margin as a line.",
            ),
            *_mask_figures(search),
        ),
    )
    assert search.rivalry is not None
    return (path, test, rivals_report.section(search.rivalry), *_speed_sections(search))


def _finding(search: Search, study: Study) -> Finding:
    """Return whether about 20 % of the heads can go at no loss."""
    claim, published = "a fifth of the heads can go at no loss", "about 20 %"
    total = search.heads
    place = search.chosen
    if study.holdout is None:
        reason = "There were no held-out queries to test a mask on."
        return Finding(claim, published, "–", None, reason, claims.DEPTH)
    if place is None:
        reason = nothing_passed(search, study)
        return Finding(claim, published, "not shown", None, reason, claims.DEPTH)
    gone = 1 - search.plain[place].heads_on / total
    ours = f"{gone:.0%} ({within(study.margin)})"
    enough = gone >= 0.195  # a fifth of 144 heads is 28.8
    reason = (
        f"A mask without {gone:.0%} of the heads is non-inferior at margin {study.margin:g} on other queries."
        if enough
        else f"Only {gone:.0%} could be shown to be harmless; these queries do not tell whether more can go."
    )
    return Finding(claim, published, ours, True if enough else None, reason, claims.DEPTH)


def _path_table(search: Search) -> Table:
    rows = [("intact", str(search.heads), *_cells(search.intact.metrics()))]
    for plain, tuned in zip(search.plain, search.tuned, strict=True):
        rows += [(c.method, str(c.heads_on), *_cells(c.quality.metrics())) for c in (plain, tuned)]
    return Table(
        ("method", "heads on", *NAMES.values()), tuple(rows), "Quality along the path, on the search data."
    )


def _test_table(path: Sequence[Candidate], verdicts: Sequence[Verdict], margin: float, caption: str) -> Table:
    rows = []
    for candidate, verdict in zip(path, verdicts, strict=True):
        cells = [str(candidate.heads_on)]
        for loss in verdict.losses.values():
            cells += [signed(loss.delta), bound(loss.bound, margin), f"{loss.power:.0%}"]
        rows.append((*cells, verdict.outcome))
    header = ["heads on"]
    for name in TESTED_METRICS:
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
            lambda: plots.masks(weights, scales),
            alt="A map of layers by heads that shows which heads are kept.",
        ),
    )


def _cells(values: dict[str, float]) -> tuple[str, ...]:
    return tuple(value_or_dash(values[name]) for name in NAMES)


def _seeds(search: Search) -> int:
    sizes = [c.heads_on for c in search.baselines if c.method == "random"]
    return sizes.count(sizes[0]) if sizes else 0


def _and(names: Sequence[str]) -> str:
    return " and ".join(NAMES[name] for name in names)


def _files(search: Search, study: Study) -> dict[str, str]:
    """Return mask.json, which fits a checkpoint's masks/NAME.json and serve.yaml, and scales.json for
    `headroom prune`."""
    files = {}
    about = {"model": study.classifier.name, "study": "search", "data": study.data.source}
    if search.chosen is not None:
        mask = HeadMask.from_matrix(search.plain[search.chosen].weights)
        form = {"mask": mask.to_json(), "spec": mask.spec, "id": mask.id, "heads_on": mask.heads_on, **about}
        files["mask.json"] = json.dumps(form, indent=2) + "\n"
    if search.chosen_tuned is not None:
        scales = search.tuned[search.chosen_tuned].weights
        kept = {
            "scales": scales.astype(float).round(6).tolist(),
            "heads_on": int((scales > 0).sum()),
            **about,
        }
        files["scales.json"] = json.dumps(kept, indent=2) + "\n"
    return files
