"""Which heads can go? The best mask for each number of heads kept, and the smallest that holds up on other
queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from models.head_mask import HeadMask
from models.quality.evaluation import Evaluation
from models.study.base import Matrix, Result, Study
from models.study.gradients import OpenNetwork
from models.study.inputs import check_apart
from models.study.search import importance, rivals
from models.study.search import report as search_report
from models.study.search.noninferiority import Verdict, compare, fixed_sequence
from models.study.search.rivals import Rivalry
from models.study.search.speed import Speed, measure
from models.study.search.tuning import tuned_scales
from models.study.statistics import Resamples

BASELINE_KEPT = (0.8, 0.6, 0.4, 0.3, 0.2)
RANDOM_KEPT = (0.8, 0.6, 0.4, 0.2)
TUNING_PAIRS = 128
GRADIENT_PAIRS = 256
"""Pairs whose gradients are kept in one file: a stopped run loses at most so many."""

COMPARED = 0.4
"""Share of heads at which masks are compared where none passed the test."""

ERROR_RATE = 0.05
"""Chance that a mask worse than the margin is chosen, over both sequences (plain and tuned get half each)."""


@dataclass(frozen=True)
class Candidate:
    """One mask of one method. weights: (layers, heads); quality: on the search data; held_out: on the
    others."""

    method: str
    heads_on: int
    weights: Matrix
    quality: Evaluation
    held_out: Evaluation | None = None


@dataclass(frozen=True)
class Search:
    """All that was found. heads: that the checkpoint holds; plain, tuned: the path from many to few, with
    verdicts; rivalry: the chosen mask beside others of its size."""

    heads: int
    intact: Evaluation
    intact_held_out: Evaluation | None
    plain: list[Candidate]
    tuned: list[Candidate]
    baselines: list[Candidate]
    plain_verdicts: list[Verdict]
    tuned_verdicts: list[Verdict]
    rivalry: Rivalry | None = None
    speed: Speed | None = None

    @property
    def chosen(self) -> int | None:
        """The place in `plain` of the smallest mask that passed."""
        return _last_passed(self.plain_verdicts)

    @property
    def chosen_tuned(self) -> int | None:
        """The place in `tuned` of the smallest set of heads that passed with tuned scales."""
        return _last_passed(self.tuned_verdicts)


def run(study: Study) -> Result:
    """Orders the heads on `data`, tests on `holdout`. Raises ModelError where the two share a query."""
    if study.holdout is not None:
        check_apart(study.data, study.holdout)
    gradients = gate_gradients(study)
    held = importance.held_heads(study.classifier)
    order = importance.by_full_fisher(gradients, held)
    sizes = sorted({round(share * len(held)) for share in study.effort.shares} - {0, len(held)}, reverse=True)
    plain = [importance.weights_without(order[: len(held) - size], study.shape) for size in sizes]
    tuned = _tuned(study, plain)
    baselines = _baselines(study, gradients, held)
    ones = np.ones(study.shape, np.float32)

    masks = [ones, *plain, *tuned, *(weights for _, _, weights in baselines)]
    found = study.runner.evaluate(masks, "masks on the search data")
    held_out: list[Evaluation] = []
    if study.holdout_runner is not None:
        held_out = study.holdout_runner.evaluate([ones, *plain, *tuned], "masks on the held-out queries")
    plain_path, tuned_path = (
        [
            Candidate(method, size, weights, found[start + i], held_out[start + i] if held_out else None)
            for i, (size, weights) in enumerate(zip(sizes, matrices, strict=True))
        ]
        for method, matrices, start in (
            ("full Fisher", plain, 1),
            ("full Fisher, tuned", tuned, 1 + len(sizes)),
        )
    )
    others = [
        Candidate(method, size, weights, quality)
        for (method, size, weights), quality in zip(baselines, found[1 + 2 * len(sizes) :], strict=True)
    ]
    intact = held_out[0] if held_out else None
    search = Search(
        len(held), found[0], intact, plain_path, tuned_path, others,
        _verdicts(study, intact, plain_path), _verdicts(study, intact, tuned_path),
    )  # fmt: skip
    search = replace(search, rivalry=_rivalry(study, search))
    search = replace(search, speed=_speed(study, search))
    return Result(
        "search",
        search_report.as_json(search, study),
        search_report.conclusion(search, study),
        search_report.sections(search, study),
        search_report.findings(search, study),
        _files(search, study),
    )


def gate_gradients(study: Study) -> NDArray[np.float64]:
    """∂loss/∂gate of each pair of the study's data at the intact model: (n, layers, heads)."""
    encoded = study.classifier.tokenizer.encode(study.data.pairs)
    study.progress.start("gradients of the mask", len(encoded))
    network = OpenNetwork(study.classifier)
    found = []
    for start in range(0, len(encoded), GRADIENT_PAIRS):
        rows = slice(start, start + GRADIENT_PAIRS)
        pairs, grades = encoded[rows], study.data.grade[rows]
        compute = partial(network.gate_gradients, pairs, grades)
        inputs = (study.data.pairs[rows], grades.tolist())
        found.append(study.runner.keep("gate gradients", inputs, compute))
        study.progress.advance(len(pairs))
    return np.concatenate(found)


def _tuned(study: Study, masks: Sequence[Matrix]) -> list[Matrix]:
    rng = np.random.default_rng(study.seed)
    rows = rng.permutation(len(study.data))[:TUNING_PAIRS]
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in rows])
    study.progress.start("tuned scales", len(masks) * study.classifier.num_layers)

    def compute() -> NDArray[np.float64]:
        network = OpenNetwork(study.classifier)
        return np.array(tuned_scales(network, encoded, masks, done=study.progress.advance), np.float64)

    inputs = ([study.data.pairs[i] for i in rows], np.array(masks).tobytes())
    return list(study.runner.keep("tuned scales", inputs, compute).astype(np.float32))


def _baselines(
    study: Study, gradients: NDArray[np.float64], held: importance.Order
) -> list[tuple[str, int, Matrix]]:
    """(method, heads on, weights) of every mask of the other methods."""
    orders = {
        "diagonal Fisher": importance.by_diagonal_fisher(gradients, held),
        "Michel et al. 2019": importance.by_michel(gradients, held),
        "magnitude": importance.by_magnitude(study.classifier, held),
        rivals.LOWEST: importance.from_the_top(held),
    }
    plans: list[tuple[str, importance.Order, tuple[float, ...]]] = [
        (name, order, BASELINE_KEPT) for name, order in orders.items()
    ]
    plans += [
        ("random", importance.at_random(held, study.seed + number), RANDOM_KEPT)
        for number in range(study.effort.orders)
    ]
    masks = []
    for name, order, shares in plans:
        for share in shares:
            size = round(share * len(held))
            masks.append((name, size, importance.weights_without(order[: len(held) - size], study.shape)))
    return masks


def _verdicts(study: Study, intact: Evaluation | None, path: Sequence[Candidate]) -> list[Verdict]:
    """The verdict on each mask of a path; none without held-out queries."""
    if intact is None:
        return []
    assert study.holdout is not None
    resamples = Resamples(study.holdout, study.resamples, study.seed)
    whole = resamples.draws(intact)
    losses = [
        compare(
            resamples,
            whole,
            candidate.held_out,
            margin=study.margin,
            alpha=ERROR_RATE / 2,
            queries=len(study.holdout.queries),
        )
        for candidate in path
        if candidate.held_out is not None
    ]
    return fixed_sequence(losses, study.margin)


def _rivalry(study: Study, search: Search) -> Rivalry | None:
    """The chosen mask beside others; where none passed, the one of COMPARED heads."""
    if search.intact_held_out is None:
        return None
    wanted = round(COMPARED * search.heads)
    nearest = min(range(len(search.plain)), key=lambda i: abs(search.plain[i].heads_on - wanted))
    mask = search.plain[nearest if search.chosen is None else search.chosen]
    assert mask.held_out is not None
    return rivals.compete(study, search.intact_held_out, mask.weights, mask.held_out)


def _speed(study: Study, search: Search) -> Speed | None:
    mask = None if search.chosen is None else search.plain[search.chosen].weights
    scales = None if search.chosen_tuned is None else search.tuned[search.chosen_tuned].weights
    return None if mask is None and scales is None else measure(study, mask, scales)


def _last_passed(verdicts: Sequence[Verdict]) -> int | None:
    passed = [place for place, verdict in enumerate(verdicts) if verdict.passed]
    return passed[-1] if passed else None


def _files(search: Search, study: Study) -> dict[str, str]:
    """mask.json, as a checkpoint's masks/NAME.json and as a value in serve.yaml; scales.json for `headroom
    prune`."""
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
