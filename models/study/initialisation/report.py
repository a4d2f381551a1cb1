"""Reports where attention patterns come from, and whether every start finds the same roles."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from headroom.models.arrays import Ints
from headroom.models.checkpoint.config import check_holds_floats
from headroom.models.files import Json
from headroom.models.quality.graded import evaluation_of
from headroom.models.scores import Scores
from headroom.models.study import plots
from headroom.models.study.initialisation.compute import SHARES, Compared, Divergences, compare
from headroom.models.study.initialisation.networks import KINDS, Kind, Recipe, Recorded, record
from headroom.models.study.page import Figure, Finding, Result, Section, Table
from headroom.models.study.roles.scores import ROLES
from headroom.models.study.study import Study
from headroom.models.study.wording import listed, method, share_text

STARTS = {"body": "layers drawn anew", "pretrained": "only the classifier drawn anew"}

NAMED = {
    "term_match": "term match",
    "previous_word": "previous word",
    "next_word": "next word",
    "segmentation": "segmentation",
    "special": "special tokens",
}

ROWS = {
    "same_layer": "two heads of one layer, one seed",
    "same_position": "heads of one layer and position, two seeds",
    "matched": "matched heads of one layer, two seeds",
    "other_layer": "heads matched with those of another layer, two seeds",
    "own_start": "a trained head and the same head before training",
    "other_start": "a trained head and another seed's before training",
}
"""Distances, by their names in FIGURES."""


def run(study: Study) -> Result:
    """Train the same recipe from several starts, and compare the heads of each with those of the others.

    `initialisation` of report.json holds by kind of start: variance, the shares of the variance that are the
    layer's, the position's and the seed's, and matched, the same with matched heads; distances; the CKA of
    two seeds' outputs; roles, how many heads of each seed hold each role; and ndcg10 of each seed.
    Raises UnsupportedCheckpoint for an int8 checkpoint, which cannot be trained.
    """
    assert study.classifier.directory is not None  # `ask` has refused others
    check_holds_floats(study.classifier.directory, study.classifier.config)
    recipe = Recipe.of(study)
    layer_of = np.array([layer for layer, _ in study.heads])
    query_of = study.data.query_of[list(recipe.compared)].tolist()
    found: dict[Kind, Compared] = {}
    content: dict[str, Json] = {}
    for kind in KINDS:
        recorded = [record(study, recipe, kind, number) for number in range(study.seeds)]
        study.progress.start(f"distances of heads, {kind}", 1)
        between = Divergences.of(recorded, query_of, layer_of)
        found[kind] = compare(between, recorded, study.effort.resamples, study.seed)
        content[kind] = _content(found[kind], recorded)
    settings = _settings(study, recipe)
    sections = (
        Section(
            "Where attention patterns come from",
            (method("initialisation", study.measures), _setting(settings)),
            (_variance(found), _distances(found)),
        ),
        Section("Roles in every start", tables=(_roles(content, study.seeds),)),
    )
    picture = Figure(
        "initialisation",
        "Shares of the variance between heads' attention patterns, with 95 % intervals: as the seeds number "
        "their heads, and after heads are matched.",
        partial(_draw, found),
    )
    findings = (
        Finding(
            "Different attention patterns come from initialisation",
            "yes",
            listed(
                [f"{STARTS[kind]}: seed {share_text(one.figures['seed'])}" for kind, one in found.items()]
            ),
        ),
    )
    return Result(
        "initialisation",
        {"initialisation": {**settings, "starts": content}},
        _verdict(found, content, study.seeds),
        sections,
        picture,
        findings,
    )


def _settings(study: Study, recipe: Recipe) -> Json:
    """Return what was trained and compared, and what a random order of the held-out titles is worth."""
    pairs = len(recipe.held_out)
    even = Scores.from_logits(np.zeros((pairs, len(recipe.labels)), np.float32))
    return {
        "seeds": study.seeds,
        "steps": recipe.steps,
        "training_pairs": len(recipe.training),
        "compared_pairs": len(recipe.compared),
        "compared_queries": len(set(study.data.query_of[list(recipe.compared)].tolist())),
        "held_out_pairs": pairs,
        "random_order_ndcg10": evaluation_of(recipe.held_out, even).random_order_ndcg10(),
    }


def _content(found: Compared, recorded: Sequence[Recorded]) -> Json:
    figures = found.figures
    return {
        "variance": {share: figures[share] for share in SHARES},
        "matched": {share: figures[f"matched_{share}"] for share in SHARES},
        "distances": {name: figures[name] for name in ROWS},
        "cka": {"same_position": found.cka, "matched": found.matched_cka},
        "roles": {role: [int(one.holds[row].sum()) for one in recorded] for row, role in enumerate(ROLES)},
        "matched_roles": {role: _agreement(recorded, found.order, row) for row, role in enumerate(ROLES)},
        "ndcg10": [one.ndcg10 for one in recorded],
    }


def _agreement(recorded: Sequence[Recorded], order: Ints, role: int) -> float:
    """Return which share of the first seed's heads that hold a role are matched with heads of the other
    seeds that hold it too; nan if no head of the first seed holds it."""
    holding = np.flatnonzero(recorded[0].holds[role])
    if not len(holding):
        return float("nan")
    shares = [one.holds[role][order[seed, holding]].mean() for seed, one in enumerate(recorded) if seed]
    return float(np.mean(shares))


def _verdict(found: dict[Kind, Compared], content: dict[str, Json], seeds: int) -> str:
    sentences = []
    for kind, one in found.items():
        of_seed = share_text(one.figures["seed"])
        of_layer = share_text(one.figures["layer"])
        of_position = share_text(one.figures["position"])
        roles = content[kind]["roles"]
        shared = [NAMED[role] for role, counts in roles.items() if min(counts)]
        sentences.append(
            f"with {STARTS[kind]} the seed makes {of_seed} of the variance between heads, the layer "
            f"{of_layer}, the position {of_position}, and all {seeds} seeds have heads for: {listed(shared)}"
        )
    text = "; ".join(sentences)
    return f"{text[0].upper()}{text[1:]}."


def _setting(settings: Json) -> str:
    order = settings["random_order_ndcg10"]
    chance = "" if order != order else f" A random order of their titles has NDCG@10 {order:.3f}."
    return (
        f"{settings['seeds']} starts of each kind, {settings['steps']} steps on "
        f"{settings['training_pairs']:,} pairs each; compared on {settings['compared_pairs']} pairs of "
        f"{settings['compared_queries']} other queries.{chance}"
    )


def _variance(found: dict[Kind, Compared]) -> Table:
    rows = tuple(
        (STARTS[kind], how, *(share_text(one.figures[f"{prefix}{share}"]) for share in SHARES))
        for kind, one in found.items()
        for prefix, how in (("", "as numbered"), ("matched_", "matched"))
    )
    caption = (
        "Shares of the variance between heads' attention patterns (95 % interval over queries and seeds)."
    )
    return Table(("start", "heads", *SHARES), rows, caption)


def _distances(found: dict[Kind, Compared]) -> Table:
    rows = [(name, *(one.figures[key].text() for one in found.values())) for key, name in ROWS.items()]
    rows.append(("CKA of outputs, same position", *(one.cka.text() for one in found.values())))
    rows.append(("CKA of outputs, matched heads", *(one.matched_cka.text() for one in found.values())))
    caption = "Jensen–Shannon distances: 0 is the same attention, 1 has nothing in common."
    return Table(("what", *(STARTS[kind] for kind in found)), tuple(rows), caption)


def _roles(content: dict[str, Json], seeds: int) -> Table:
    rows = []
    for kind, of_kind in content.items():
        for role, counts in of_kind["roles"].items():
            agreement = of_kind["matched_roles"][role]
            shared = "–" if agreement != agreement else f"{100 * agreement:.0f} %"
            by_seed = ", ".join(map(str, counts))
            rows.append(
                (STARTS[kind], NAMED[role], by_seed, f"{np.count_nonzero(counts)} of {seeds}", shared)
            )
        ndcg10 = ", ".join(f"{value:.3f}" for value in of_kind["ndcg10"])
        rows.append((STARTS[kind], "NDCG@10 (no role)", ndcg10, "", ""))
    header = (
        "start",
        "role",
        "heads that hold it, by seed",
        "seeds that have one",
        "matched head holds it too",
    )
    return Table(header, tuple(rows), "Roles after training, as `headroom study roles` defines them.")


def _draw(found: dict[Kind, Compared]) -> plots.Drawing:
    """Draw the shares as points with their intervals."""
    drawing, panels = plots.figure(12, 4.5, 1, len(found), sharey=True)
    for axes, (kind, one) in zip(panels, found.items(), strict=True):
        for line, (prefix, label) in enumerate((("", "as numbered"), ("matched_", "matched"))):
            colour, _, marker = plots.LINES[line]
            of_shares = [one.figures[f"{prefix}{share}"] for share in SHARES]
            middle = np.array([100 * share.value for share in of_shares])
            reach = np.nan_to_num([100 * (share.high - share.value) for share in of_shares])
            x = np.arange(len(SHARES)) + 0.15 * (line - 0.5)
            axes.errorbar(x, middle, reach, fmt=marker, color=colour, capsize=4, label=label)
        axes.set(title=STARTS[kind], xticks=range(len(SHARES)), xticklabels=SHARES)
        axes.axhline(0, color=plots.GREY, lw=0.8)
    panels[0].set_ylabel("share of the variance (%)")
    panels[0].legend(loc="best")
    return drawing
