"""Which heads hold which role, what switching them off costs, and the report of both."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.condense.words import chinese_splitter, has_jieba
from headroom.models.files import Json
from headroom.models.quality.bootstrap import Interval
from headroom.models.quality.metrics import NAMES
from headroom.models.study import plots
from headroom.models.study.page import Figure, Finding, Result, Section, Table
from headroom.models.study.pairs import Judged
from headroom.models.study.roles.scores import RoleScores, role_scores, segmentation_scores, unscored
from headroom.models.study.statistics import LEVEL, Resamples, metrics_of, permutation_p
from headroom.models.study.study import Head, Heads, Study
from headroom.models.study.wording import listed, method, p_value, percent, signed

NAMED = {
    "term_match": "term match",
    "previous_word": "previous word",
    "next_word": "next word",
    "segmentation": "segmentation",
    "segmentation_zh": "segmentation, Chinese",
    "segmentation_ko": "segmentation, Korean",
    "special": "special tokens",
}
"""The roles. Word segmentation is asked on the study's data, and on Chinese and Korean titles. In Chinese no
space says where a word ends; jieba does."""

CLAIMS = (
    ("some heads attend by word order", ("previous_word", "next_word")),
    ("some heads attend by word segmentation in Chinese", ("segmentation_zh",)),
    ("some heads attend by word segmentation in English or Korean", ("segmentation", "segmentation_ko")),
    ("some heads match query terms with title terms", ("term_match",)),
)
"""The published functions, and the roles that show them."""

TITLES = Path(__file__).parent / "titles.tsv"
"""Language, product and title in each row."""

TOP = 5
"""How many heads the causal check switches off, as the source study did."""

TRIES = 10
"""Draws for each random set that is wanted: where few different sets are possible, there are fewer."""

CAUSAL_PAIRS = 600
"""How many pairs, spread over the queries, hundreds of masks are tried on: the queries are the sample."""


def run(study: Study) -> Result:
    """Score every head in every role, switch the leading heads of each role off, and report both."""
    scores, pairs = _scores(study)
    name, published = _published(scores["term_match"], study.heads)
    sets = {role: leaders(scores[role], study.heads) for role in NAMED} | {name: published}
    data = study.data.take(study.data.spread(CAUSAL_PAIRS, study.seed))
    causal = causal_check(study, data, sets)
    counts = {role: int(scores[role].holds.sum()) for role in NAMED}
    held = [f"{NAMED[role]} {count}" for role, count in counts.items() if count]
    verdict = f"Of {len(study.heads)} heads, these hold a role: {listed(held)}."
    caption = "Excess over chance of every head in every role; framed heads hold it."
    picture = Figure("role_map", caption, partial(_draw, study, scores))
    by_role = {role: _ranked(scores[role], study.heads) for role in NAMED}
    json = {
        "roles": by_role,
        "causal": {"pairs": len(data), "queries": len(data.queries), "roles": causal},
        "role_pairs": pairs,
    }
    table = _leading({role: rows for role, rows in by_role.items() if scores[role].queries})
    sections = (
        Section("Roles: which head does what", (method("roles", study.measures),), (table,)),
        Section("Roles: the causal check", (method("causal", study.measures),), (_causal_table(causal),)),
    )
    findings = [_finding(claim, [scores[role] for role in roles]) for claim, roles in CLAIMS]
    if published:
        findings.append(_causal_finding(name, causal[name], study.measures.share))
    return Result("roles", json, verdict, sections, picture, tuple(findings))


def _causal_finding(name: str, comparison: Mapping[str, Any], metric: str) -> Finding:
    """Return the published claim that a set of heads matters beside our numbers."""
    relative, random, p = _causal_cells(comparison, metric)
    ours = f"{NAMES[metric]} {relative}; random {random} (median; p {p})"
    published = "−52 % relative accuracy, against 0 % for five random heads"
    return Finding(f"{name} off cost quality", published, ours)


def _leading(by_role: Mapping[str, list[Json]]) -> Table:
    rows = tuple(
        (NAMED[role], f"{row['layer']}.{row['head']}",
         Interval(row["excess"], *row["interval"]).text(sign=True), p_value(row["p_adjusted"]),
         "yes" if row["holds"] else "no")
        for role, of_role in by_role.items()
        for row in of_role[:5]
    )  # fmt: skip
    header = ("role", "head", "excess over chance (95 % interval)", "adjusted p", "holds")
    return Table(header, rows, "The five leading heads of each role.")


def _scores(study: Study) -> tuple[dict[str, RoleScores], int]:
    """Return the scores of every head in every role, and how many of the study's pairs they rest on."""
    tokenizer = study.classifier.tokenizer
    limit = study.effort.role_pairs
    rows = study.data.spread(limit, study.seed)
    encoded = study.encode(rows)
    sample = defaultdict[str, list[tuple[str, str]]](list)
    for line in TITLES.read_text(encoding="utf-8").splitlines():
        language, query, title = line.split("\t")
        sample[language].append((query, title))
    titles = {language: tokenizer.encode(pairs[:limit]) for language, pairs in sample.items()}
    chinese = chinese_splitter() if has_jieba() else None
    study.progress.start("attention of every head", len(encoded) + sum(map(len, titles.values())))
    of_data = chinese if study.data.is_chinese else None
    scores = role_scores(study, encoded, study.data.query_of[rows].tolist(), of_data)
    for language, pairs in titles.items():
        role = f"segmentation_{language}"
        readable = [pair for pair in pairs if 2 * pair.unknown_tokens < len(pair)]
        if language == "zh" and chinese is None:
            scores[role] = unscored(len(study.heads))
            continue
        scores[role] = segmentation_scores(study, readable, chinese if language == "zh" else None)
    return scores, len(encoded)


def leaders(scores: RoleScores, heads: Heads) -> Heads:
    """Return the TOP heads, or fewer, with the largest significant excess. If any head holds the role,
    return only heads that do."""
    significant = [i for i in scores.ranked if scores.p_adjusted[i] < LEVEL and scores.values[i] > 0]
    holding = [i for i in significant if scores.holds[i]]
    return tuple(heads[i] for i in (holding or significant)[:TOP])


def _published(term_match: RoleScores, heads: Heads) -> tuple[str, Heads]:
    """Return the set that the source study switched off: five term-match heads of layers 2–4 of 12."""
    layers = 1 + max(layer for layer, _ in heads)
    middle = range(round(layers / 6), round(layers / 3) + 1)
    inside = [heads[i] for i in term_match.ranked if heads[i][0] in middle]
    return f"five term-match heads of layers {middle.start}–{middle.stop - 1}", tuple(inside[:5])


def causal_check(study: Study, data: Judged, sets: Mapping[str, Heads]) -> dict[str, Json]:
    """Switch each set of heads off on `data`, and random sets with as many heads of each layer beside it.

    Empty sets are left out. Returns by set its heads, and by metric its relative change, that of each random
    set, and p: the share of sets that lose at least as much, this one included (one-sided); nan if the
    relative change is undefined.
    """
    rng = np.random.default_rng([study.seed, 6])
    sets = {name: heads for name, heads in sets.items() if heads}
    random = {
        name: layer_matched(heads, study.heads, rng, study.effort.role_sets) for name, heads in sets.items()
    }
    tried = [(), *(off for name, heads in sets.items() for off in (heads, *random[name]))]
    masks = [study.without(off) for off in tried]
    evaluations = iter(study.runner.evaluate(data, masks, "heads of a role off, and random ones"))
    resamples = Resamples(next(evaluations), study.effort.resamples, study.seed)
    metrics = tuple(dict.fromkeys((*study.measures.tested, study.measures.share)))
    comparisons = {}
    for name, heads in sets.items():
        changes = resamples.relative_changes(resamples.draws(next(evaluations)))
        relative = {metric: changes[metric].interval() for metric in metrics}
        of_random = [metrics_of(next(evaluations)) for _ in random[name]]
        random_changes = {metric: _relative(of_random, resamples, metric) for metric in metrics}
        p = {metric: permutation_p(-relative[metric].value, -random_changes[metric]) for metric in metrics}
        comparisons[name] = {"heads": heads, "relative": relative, "random": random_changes, "p": p}
    return comparisons


def _relative(masked: list[dict[str, float]], resamples: Resamples, metric: str) -> Floats:
    """Return the relative change of a metric under each mask; nan if it is 0 for the intact model."""
    intact = float(resamples.intact[metric].values[0]) or math.nan
    return np.array([values[metric] for values in masked]) / intact - 1


def layer_matched(heads: Heads, held: Heads, rng: np.random.Generator, sets: int) -> list[Heads]:
    """Return up to `sets` different sets with as many heads of each layer as `heads`, but none of `heads`.

    If a layer has too few other heads, each set takes all of them and fills up from those in `heads`.
    """
    pools = []
    fixed: list[Head] = []
    for layer, count in sorted(Counter(layer for layer, _ in heads).items()):
        others = [head for head in held if head[0] == layer and head not in heads]
        if len(others) < count:
            fixed += others
            pools.append(([head for head in heads if head[0] == layer], count - len(others)))
        else:
            pools.append((others, count))
    drawn: dict[Heads, None] = {}
    for _ in range(TRIES * sets):
        if len(drawn) < sets:
            parts = [pool[i] for pool, count in pools for i in rng.permutation(len(pool))[:count]]
            drawn[tuple(sorted([*fixed, *parts]))] = None
    return list(drawn)


def _ranked(scores: RoleScores, heads: Heads) -> list[Json]:
    """Return every head, the largest excess over chance first."""
    return [
        {
            "layer": heads[i][0],
            "head": heads[i][1],
            "score": float(scores.score[i]),
            "excess": scores.excess[i].value,
            "interval": scores.excess[i].ends,
            "p_adjusted": float(scores.p_adjusted[i]),
            "holds": bool(scores.holds[i]),
        }
        for i in scores.ranked
    ]


def _finding(claim: str, scores: list[RoleScores]) -> Finding:
    """Return a published function beside the heads that hold a role which shows it."""
    scores = [one for one in scores if one.queries]
    if not scores:
        missing = "" if has_jieba() else ", or it takes jieba, which is not installed"
        return Finding(claim, "yes", f"no pair has words that could show it{missing}")
    holding = [one.excess[index] for one in scores for index in np.flatnonzero(one.holds).tolist()]
    if not holding:
        return Finding(claim, "yes", "no head is shown to")
    top = max(holding, key=lambda excess: excess.value)
    return Finding(claim, "yes", f"{len(holding)} heads; largest excess {top.text()}")


def _causal_table(causal: Mapping[str, Json]) -> Table:
    rows = []
    for name, comparison in causal.items():
        for metric in comparison["relative"]:
            relative, random, p = _causal_cells(comparison, metric)
            sets = f"{p} of {len(comparison['random'][metric])} sets"
            heads = str(len(comparison["heads"]))
            rows.append((NAMED.get(name, name), heads, NAMES[metric], relative, random, sets))
    header = ("heads off", "how many", "metric", "relative change", "random: median", "p")
    return Table(header, tuple(rows), "What switching the heads of a role off costs.")


def _causal_cells(comparison: Mapping[str, Any], metric: str) -> tuple[str, str, str]:
    """Return a set's relative change, the median of random sets' (a dash if there are none), and p."""
    random = comparison["random"][metric]
    median = np.median(random) if len(random) else np.nan
    shown = f"{signed(100 * median, 1)} %" if np.isfinite(median) else "–"
    return percent(comparison["relative"][metric]), shown, p_value(comparison["p"][metric])


def _draw(study: Study, scores: Mapping[str, RoleScores]) -> plots.Drawing:
    """Draw a heat map of each role."""
    drawing, panels = plots.figure(22, 9.5, rows=2, columns=4)
    for axes, (role, title) in zip(panels.flat, NAMED.items(), strict=False):
        one = scores[role]
        label = "attention beyond chance" if one.queries else "nothing to measure it on"
        plots.heat_map(axes, study.shape, study.heads, one.values, one.holds, title, label, digits=2)
    panels.flat[-1].set_axis_off()
    return drawing
