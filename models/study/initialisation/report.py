"""Reports where attention patterns come from, and whether every start finds the same roles."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from headroom.models.checkpoint.config import check_holds_floats
from headroom.models.files import Json
from headroom.models.quality.graded import evaluation_of
from headroom.models.scores import Scores
from headroom.models.study import plots
from headroom.models.study.initialisation.compute import SHARES, Compared, Divergences, Likeness, compare
from headroom.models.study.initialisation.networks import STARTS, Recipe, Recorded, Start, record
from headroom.models.study.page import Figure, Finding, Result, Section, Table
from headroom.models.study.roles.scores import ROLES
from headroom.models.study.study import Study
from headroom.models.study.wording import listed, method, share_text


def run(study: Study) -> Result:
    """Train the same recipe from several starts, and compare the heads of each with those of the others.

    `initialisation` of report.json holds of each start: variance, the shares of the variance that are the
    layer's, the position's and the seed's, and matched, these shares with matched heads; the CKA of two
    seeds' outputs; roles, how many heads of each seed hold each role; and ndcg10 of each seed.
    Raises UnsupportedCheckpoint for an int8 checkpoint, which cannot be trained.
    """
    assert study.classifier.directory is not None  # `ask` has refused others
    check_holds_floats(study.classifier.directory, study.classifier.config)
    recipe = Recipe.of(study)
    layer_of = np.array([layer for layer, _ in study.heads])
    query_of = study.data.query_of[list(recipe.compared)].tolist()
    found: dict[Start, Compared] = {}
    content: dict[Start, Json] = {}
    for start in STARTS:
        recorded = [record(study, recipe, start, seed) for seed in range(study.seeds)]
        study.progress.start(f"distances of heads, {start}", 1)
        between = Divergences.of(recorded, query_of, layer_of)
        found[start] = compare(between, recorded, study.effort.resamples, study.seed)
        content[start] = _content(found[start], recorded)
    settings = _settings(study, recipe)
    sections = (
        Section(
            "Where attention patterns come from",
            (method("initialisation", study.measures), _setting(settings)),
            (_likeness(found),),
        ),
        Section("Roles in every start", tables=(_roles(content, study.seeds),)),
    )
    picture = Figure(
        "initialisation",
        "Shares of the variance between heads' attention patterns, with 95 % intervals: as the seeds number "
        "their heads, and after heads are matched.",
        partial(_draw, found),
    )
    of_seeds = [
        f"{STARTS[start]}: seed {share_text(one.as_numbered.variance['seed'])}"
        for start, one in found.items()
    ]
    finding = Finding("Different attention patterns come from initialisation", "yes", listed(of_seeds))
    return Result(
        "initialisation",
        {"initialisation": {**settings, "starts": content}},
        _verdict(found, content, study.seeds),
        sections,
        picture,
        (finding,),
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
    return {
        "variance": found.as_numbered.variance,
        "matched": found.matched.variance,
        "cka": {"same_position": found.as_numbered.cka, "matched": found.matched.cka},
        "roles": {role: [int(one.holds[row].sum()) for one in recorded] for row, role in enumerate(ROLES)},
        "ndcg10": [one.ndcg10 for one in recorded],
    }


def _verdict(found: dict[Start, Compared], content: dict[Start, Json], seeds: int) -> str:
    """Say how much of the variance is the seed's, the layer's and the position's, and which roles all seeds
    have."""
    sentences = []
    for start, one in found.items():
        shares = {name: share_text(share) for name, share in one.as_numbered.variance.items()}
        shared = [ROLES[role] for role, counts in content[start]["roles"].items() if min(counts)]
        sentences.append(
            f"with {STARTS[start]} the seed makes {shares['seed']} of the variance between heads, the layer "
            f"{shares['layer']}, the position {shares['position']}, and all {seeds} seeds have heads for: "
            f"{listed(shared)}"
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


def _both(found: Compared) -> dict[str, Likeness]:
    """Return the likeness of heads by which of them are compared, as reports say it."""
    return {"as numbered": found.as_numbered, "matched": found.matched}


def _likeness(found: dict[Start, Compared]) -> Table:
    rows = tuple(
        (STARTS[start], which, *(share_text(one.variance[share]) for share in SHARES), one.cka.text())
        for start, compared in found.items()
        for which, one in _both(compared).items()
    )
    caption = (
        "Shares of the variance between heads' attention patterns, and the CKA of two seeds' outputs (95 % "
        "intervals over queries and seeds, of CKA over seeds)."
    )
    return Table(("start", "heads", *SHARES, "CKA of outputs"), rows, caption)


def _roles(content: dict[Start, Json], seeds: int) -> Table:
    rows = []
    for start, of_start in content.items():
        for role, counts in of_start["roles"].items():
            by_seed = ", ".join(map(str, counts))
            rows.append((STARTS[start], ROLES[role], by_seed, f"{np.count_nonzero(counts)} of {seeds}"))
        ndcg10 = ", ".join(f"{value:.3f}" for value in of_start["ndcg10"])
        rows.append((STARTS[start], "NDCG@10 (no role)", ndcg10, ""))
    header = ("start", "role", "heads that hold it, by seed", "seeds that have one")
    return Table(header, tuple(rows), "Roles after training, as `headroom study roles` defines them.")


def _draw(found: dict[Start, Compared]) -> plots.Drawing:
    """Draw the shares as points with their intervals."""
    drawing, panels = plots.figure(12, 4.5, 1, len(found), sharey=True)
    for axes, (start, compared) in zip(panels, found.items(), strict=True):
        for line, (which, one) in enumerate(_both(compared).items()):
            colour, _, marker = plots.LINES[line]
            of_shares = [one.variance[share] for share in SHARES]
            middle = np.array([100 * share.value for share in of_shares])
            reach = np.nan_to_num([100 * (share.high - share.value) for share in of_shares])
            x = np.arange(len(SHARES)) + 0.15 * (line - 0.5)
            axes.errorbar(x, middle, reach, fmt=marker, color=colour, capsize=4, label=which)
        axes.set(title=STARTS[start], xticks=range(len(SHARES)), xticklabels=SHARES)
        axes.axhline(0, color=plots.GREY, lw=0.8)
    panels[0].set_ylabel("share of the variance (%)")
    panels[0].legend(loc="best")
    return drawing
