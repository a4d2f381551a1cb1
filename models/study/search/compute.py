"""The best mask for each number of heads kept, and the smallest that passes a test on other queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from models.quality.evaluation import Evaluation
from models.study.base import Matrix
from models.study.gradients import DifferentiableNetwork
from models.study.heads import Heads, held_heads, weights_without
from models.study.inputs import check_apart
from models.study.search import importance, rivals
from models.study.search.noninferiority import Verdict, compare, fixed_sequence
from models.study.search.rivals import Rivalry
from models.study.search.speed import Speed, measure_speed
from models.study.search.tuning import tuned_scales
from models.study.statistics import Resamples
from models.study.study import Study

BASELINE_KEPT = (0.8, 0.6, 0.4, 0.3, 0.2)
RANDOM_KEPT = (0.8, 0.6, 0.4, 0.2)
TUNING_PAIRS = 128
GRADIENT_PAIRS = 256
"""How many pairs' gradients are kept in one file; a stopped run loses at most these."""

COMPARED = 0.4
"""The share of heads kept at which masks are compared if none passed the test."""

ERROR_RATE = 0.05
"""The chance of choosing a mask worse than the margin; plain and tuned masks get half of it each."""


@dataclass(frozen=True)
class Candidate:
    """One mask of one method. weights: (layers, heads). quality: on the search data; held_out: on the
    held-out queries."""

    method: str
    heads_on: int
    weights: Matrix
    quality: Evaluation
    held_out: Evaluation | None = None


@dataclass(frozen=True)
class Search:
    """The masks of all methods and the tests of them.

    heads: how many the checkpoint holds. intact, intact_held_out: the quality of the intact model on the
    search data and on the held-out queries. plain, tuned: the masks from many heads to few, each with its
    verdict. baselines: the masks of other methods. rivalry: the chosen mask beside others of its size.
    """

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
        """Return the place in `plain` of the smallest mask that passed."""
        return _last_passed(self.plain_verdicts)

    @property
    def chosen_tuned(self) -> int | None:
        """Return the place in `tuned` of the smallest set of heads that passed with tuned scales."""
        return _last_passed(self.tuned_verdicts)


def measure(study: Study) -> Search:
    """Order the heads on `data` and test on `holdout`. Raises ModelError if the two share a query."""
    if study.holdout is not None:
        check_apart(study.data, study.holdout)
    gradients = gate_gradients(study)
    held = held_heads(study.classifier)
    order = importance.by_full_fisher(gradients, held)
    sizes = sorted({round(share * len(held)) for share in study.effort.shares} - {0, len(held)}, reverse=True)
    plain = [weights_without(order[: len(held) - size], study.shape) for size in sizes]
    tuned = _tuned(study, plain)
    baselines = _baselines(study, gradients, held)
    ones = np.ones(study.shape, np.float32)

    masks = [ones, *plain, *tuned, *(weights for _, _, weights in baselines)]
    qualities = study.runner.evaluate(masks, "masks on the search data")
    held_out: list[Evaluation] = []
    if study.holdout_runner is not None:
        held_out = study.holdout_runner.evaluate([ones, *plain, *tuned], "masks on the held-out queries")
    plain_path, tuned_path = (
        [
            Candidate(method, size, weights, qualities[start + i], held_out[start + i] if held_out else None)
            for i, (size, weights) in enumerate(zip(sizes, matrices, strict=True))
        ]
        for method, matrices, start in (
            ("full Fisher", plain, 1),
            ("full Fisher, tuned", tuned, 1 + len(sizes)),
        )
    )
    others = [
        Candidate(method, size, weights, quality)
        for (method, size, weights), quality in zip(baselines, qualities[1 + 2 * len(sizes) :], strict=True)
    ]
    intact = held_out[0] if held_out else None
    search = Search(
        len(held), qualities[0], intact, plain_path, tuned_path, others,
        _verdicts(study, intact, plain_path), _verdicts(study, intact, tuned_path),
    )  # fmt: skip
    search = replace(search, rivalry=_rivalry(study, search))
    return replace(search, speed=_speed(study, search))


def gate_gradients(study: Study) -> NDArray[np.float64]:
    """Return ∂loss/∂gate of each pair of the study's data at the intact model: (n, layers, heads)."""
    encoded = study.classifier.tokenizer.encode(study.data.pairs)
    study.progress.start("gradients of the mask", len(encoded))
    network = DifferentiableNetwork(study.classifier)
    gradients = []
    for start in range(0, len(encoded), GRADIENT_PAIRS):
        rows = slice(start, start + GRADIENT_PAIRS)
        pairs, grades = encoded[rows], study.data.grade[rows]
        inputs = (study.data.pairs[rows], grades.tolist())
        gradients.append(
            study.runner.keep("gate gradients", inputs, partial(network.gate_gradients, pairs, grades))
        )
        study.progress.advance(len(pairs))
    return np.concatenate(gradients)


def _tuned(study: Study, masks: Sequence[Matrix]) -> list[Matrix]:
    rng = np.random.default_rng(study.seed)
    rows = rng.permutation(len(study.data))[:TUNING_PAIRS]
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in rows])
    study.progress.start("tuned scales", len(masks) * study.classifier.num_layers)

    def scales() -> NDArray[np.float64]:
        network = DifferentiableNetwork(study.classifier)
        return np.array(tuned_scales(network, encoded, masks, done=study.progress.advance), np.float64)

    inputs = ([study.data.pairs[i] for i in rows], np.array(masks).tobytes())
    return list(study.runner.keep("tuned scales", inputs, scales).astype(np.float32))


def _baselines(study: Study, gradients: NDArray[np.float64], held: Heads) -> list[tuple[str, int, Matrix]]:
    """Return (method, heads on, weights) of every mask of the other methods."""
    orders = {
        "diagonal Fisher": importance.by_diagonal_fisher(gradients, held),
        "Michel et al. 2019": importance.by_michel(gradients, held),
        "magnitude": importance.by_magnitude(study.classifier, held),
        rivals.LOWEST: importance.from_the_top(held),
    }
    plans: list[tuple[str, Heads, tuple[float, ...]]] = [
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
            masks.append((name, size, weights_without(order[: len(held) - size], study.shape)))
    return masks


def _verdicts(study: Study, intact: Evaluation | None, path: Sequence[Candidate]) -> list[Verdict]:
    """Return the verdict on each mask of a path; none without held-out queries."""
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
    """Compare the chosen mask with others of its size; if none passed, the one that keeps COMPARED of the
    heads."""
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
    return None if mask is None and scales is None else measure_speed(study, mask, scales)


def _last_passed(verdicts: Sequence[Verdict]) -> int | None:
    passed = [place for place, verdict in enumerate(verdicts) if verdict.passed]
    return passed[-1] if passed else None
