"""The variance between heads is split as it was planted, and a stopped study trains nothing twice."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, jensenshannon

from headroom import Classifier, UnsupportedCheckpoint
from headroom.models.arrays import Floats
from headroom.models.study import kinds
from headroom.models.study.initialisation import networks
from headroom.models.study.initialisation.compute import (
    Divergences,
    divergences,
    matched,
    shares,
    sums_of_squares,
)
from headroom.models.study.limits import limits
from headroom.models.study.roles.scores import ROLES
from headroom.models.study.study import QUICK
from tests.models.study.data import drawn, study
from tests.models.study.planted import PLANTED, planted_study

SEEDS, LAYERS, HEADS, DIMENSIONS = 5, 6, 8, 300
LAYER_OF = np.repeat(np.arange(LAYERS), HEADS)


def patterns(layer: float, position: float, seed: float, rest: float) -> Floats:
    """Points of these variances, (seeds, heads, dimensions)."""
    rng = np.random.default_rng(0)

    def drawn(variance: float, *shape: int) -> Floats:
        return rng.normal(0, np.sqrt(variance), (*shape, DIMENSIONS))

    heads = LAYERS * HEADS
    of_layer = np.repeat(drawn(layer, LAYERS), HEADS, axis=0)
    return of_layer + drawn(position, heads) + drawn(seed, SEEDS, 1) + drawn(rest, SEEDS, heads)


def squares(points: Floats) -> Floats:
    flat = points.reshape(-1, DIMENSIONS)
    square = cdist(flat, flat, "sqeuclidean")
    return square.reshape(1, *points.shape[:2], *points.shape[:2])


def test_shares_are_those_of_the_variances_that_were_drawn() -> None:
    found = shares(sums_of_squares(squares(patterns(4, 3, 1, 2)), LAYER_OF), SEEDS, LAYER_OF)[0]
    assert found == pytest.approx([0.4, 0.3, 0.3], abs=0.07)
    nothing = shares(sums_of_squares(squares(patterns(0, 0, 0, 1)), LAYER_OF), SEEDS, LAYER_OF)[0]
    assert nothing == pytest.approx([0, 0, 1], abs=0.02), "heads that have nothing in common"


def test_matching_finds_the_heads_that_each_seed_numbers_its_own_way() -> None:
    points = patterns(4, 3, 0, 0.5)
    rng = np.random.default_rng(1)
    numbers = [layer * HEADS + rng.permutation(HEADS) for _ in range(SEEDS) for layer in range(LAYERS)]
    order = np.concatenate(numbers).reshape(SEEDS, -1)
    order[0] = np.arange(LAYERS * HEADS)
    shuffled = np.take_along_axis(points, order[:, :, None], 1)
    square = squares(shuffled)
    found = matched(Divergences(square, LAYER_OF))
    assert (np.take_along_axis(order, found, 1) == order[0]).all()
    as_numbered = shares(sums_of_squares(square, LAYER_OF), SEEDS, LAYER_OF)[0]
    assert abs(as_numbered[1]) < 0.1, "a number alone says nothing"


def test_divergences_are_the_squared_distances_that_scipy_computes() -> None:
    maps = np.random.default_rng(0).dirichlet(np.ones(5), (3, 5)).astype(np.float32)
    found = divergences(torch.from_numpy(maps)).numpy()
    for first in range(3):
        for second in range(3):
            expected = np.mean(jensenshannon(maps[first], maps[second], axis=1, base=2) ** 2)
            assert found[first, second] == pytest.approx(expected, abs=1e-6)


def test_int8_checkpoints_are_refused_and_left_out_of_all_questions(clf: Classifier, tmp_path: Path) -> None:
    quantized = replace(clf, config=replace(clf.config, int8=True))
    asked = study(quantized, tmp_path)
    with pytest.raises(UnsupportedCheckpoint, match="is int8, and 8-bit weights cannot be trained"):
        kinds.run("initialisation", asked)
    assert "`study initialisation` is left out: 8-bit weights cannot be trained." in limits("all", asked)


@pytest.mark.more
def test_roles_of_pretrained_layers_stay_and_a_stopped_study_trains_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = planted_study(tmp_path / "model", holdout=False)
    runner = replace(asked.runner, cache=tmp_path / "cache", identity="planted")
    effort = replace(QUICK, resamples=100, start_pairs=12)
    asked = replace(asked, runner=runner, effort=effort, seeds=3, steps=1)
    result = kinds.run("initialisation", asked)
    found = result.json["initialisation"]["starts"]
    for role in ("previous_word", "next_word"):
        assert found["pretrained"]["roles"][role] == [1, 1, 1], f"{PLANTED[role]} was planted"
    assert found["pretrained"]["variance"]["seed"].value < 0.05, "one step hardly moves a head"
    assert found["body"]["variance"]["seed"].value > 0.9, "heads drawn at random have nothing in common"
    assert list(found["body"]["roles"]) == list(ROLES)
    assert drawn(result) == "initialisation"

    monkeypatch.setattr(networks, "train", None)
    repeated = kinds.run("initialisation", asked)
    assert repeated.verdict == result.verdict
