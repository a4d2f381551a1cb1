"""On a network whose useless parts are known, exactly those go first; what is removed costs least of all that
fits, and of two parts that do the same work one is kept."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headroom import Classifier, HeadMask
from headroom.models.batch import pack
from headroom.models.compress.prune import prune
from headroom.models.networks import build
from headroom.models.selection import RowMasks
from headroom.models.study.runner import Runner
from headroom.models.study.search import compute, plans
from headroom.models.study.search.networks import Networks, Times, measure_times, steps
from headroom.models.study.search.plans import (
    Gradients,
    Option,
    Planner,
    cheapest,
    eliminate,
    gated_logits,
    gradients,
)
from headroom.models.study.study import QUICK, Study
from tests.checkpoints import random_model, write_vocabulary
from tests.models.study.data import judged

pytestmark = pytest.mark.more

LAYERS, HEADS, UNITS = 4, 4, 32
IDLE_LAYER = 2
IDLE_HEADS = {0: (1,), 1: (0, 3), 3: ()}
IDLE_UNITS = {0: tuple(range(0, 32, 2)), 1: tuple(range(8)), 3: (1, 2, 3, 5, 8, 13, 21, 31)}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Layer 2 passes on what it gets: both of its halves write nothing, and what enters is normalised. Of the
    other layers, some heads and units write nothing."""
    directory = tmp_path_factory.mktemp("idle")
    model = random_model(1, num_hidden_layers=LAYERS, intermediate_size=UNITS)
    with torch.no_grad():
        for number, layer in enumerate(model.bert.encoder.layer):
            heads, down = layer.attention.output.dense, layer.output.dense
            if number == IDLE_LAYER:
                for part in (heads, down):
                    part.weight.zero_()
                    part.bias.zero_()
                continue
            for head in IDLE_HEADS[number]:
                heads.weight[:, head * 8 : head * 8 + 8] = 0
            down.weight[:, list(IDLE_UNITS[number])] = 0
    model.save_pretrained(directory)
    write_vocabulary(directory)
    data = judged(queries=16)
    classifier = Classifier.load(directory, "cpu", "float32")
    return Study(classifier, data, Runner(classifier), directory)


@pytest.fixture(scope="module")
def found(study: Study) -> Gradients:
    encoded = study.classifier.tokenizer.encode(study.data.pairs)
    return gradients(study.classifier, encoded, study.data.grade)


@pytest.fixture(scope="module")
def planner(study: Study, found: Gradients) -> Planner:
    """A head takes as long as eight units, and so does a layer by itself."""
    heads, units = np.arange(HEADS + 1), np.arange(1, UNITS + 1)
    times = Times(tuple(heads.tolist()), tuple(units.tolist()), heads * 8.0, 8.0 + units, (1.0, 1.0), 1.0)
    return Planner.of(study.classifier.config, times, ("heads", "units", "layers"), found)


def intact_seconds(planner: Planner) -> float:
    return planner.seconds(planner.config.intact_mask)


def test_exactly_the_useless_parts_go_first(study: Study, planner: Planner) -> None:
    matrix, units_off = np.ones((LAYERS, HEADS), np.float32), np.zeros((LAYERS, UNITS), np.bool_)
    for layer in IDLE_HEADS:
        matrix[layer, list(IDLE_HEADS[layer])] = 0
        units_off[layer, list(IDLE_UNITS[layer])] = True
    useful = HeadMask(matrix, (IDLE_LAYER,), units_off)
    networks = Networks(study)
    speedup = intact_seconds(planner) / planner.seconds(useful)

    order = compute._layer_order(networks, planner, 4.0)
    best = compute._best(networks, planner, order, intact_seconds(planner) / (0.995 * speedup))

    assert order[0] == IDLE_LAYER
    assert best is not None
    assert best == useful
    assert networks.divergence(best) == pytest.approx(0, abs=1e-6)


def test_what_may_not_go_stays(study: Study, planner: Planner) -> None:
    config = study.classifier.config
    units = replace(planner, what=("units",)).fitting(intact_seconds(planner) / 1.3)
    heads = replace(planner, what=("heads",)).fitting(intact_seconds(planner) / 1.1)
    assert units is not None
    assert heads is not None
    assert config.heads_kept(units) == config.kept_heads
    assert {len(units) for units in config.units_kept(heads)} == {UNITS}
    assert replace(planner, what=("heads",)).fitting(intact_seconds(planner) / 20) is None


@pytest.mark.parametrize("pruned", ["none", "0.1-2,1.*"])
def test_gated_logits_are_the_encoders_logits(tiny_checkpoint: Path, tmp_path: Path, pruned: str) -> None:
    prune(tiny_checkpoint, tmp_path / "model", HeadMask.parse(pruned, layers=3, heads=4))
    clf = Classifier.load(tmp_path / "model", "cpu", "float32")
    weights = np.random.default_rng(0).uniform(0, 2, (3, 4)).astype(np.float32)
    encoded = clf.tokenizer.encode(judged().pairs[:8])
    batch = pack(encoded, device=clf.network.device, fill=False)
    heads = torch.from_numpy(weights).expand(batch.rows, 3, 4)
    units = torch.ones(batch.rows, 3, max(clf.config.widths))

    logits = np.empty((8, 5), np.float32)
    logits[batch.order] = gated_logits(clf.network.in_plain_torch(), batch, heads, units).detach().numpy()

    np.testing.assert_allclose(logits, clf.forward(encoded, RowMasks(weights)), atol=2e-5)


def test_gradients_are_the_slopes_of_the_loss(study: Study, found: Gradients) -> None:
    """Each kind of gate moved a little, on the network itself: a unit and a head by their weights."""
    networks, clf = Networks(study), study.classifier
    rows, size = np.arange(len(study.data)), clf.config.head_size
    encoded = clf.tokenizer.encode(study.data.pairs)

    def losses(name: str, columns: slice, weight: float) -> np.ndarray:
        """Weight what a map of a layer reads of one head or unit."""
        tensors = {one: tensor.clone() for one, tensor in networks.tensors.items()}
        tensors[f"bert.encoder.layer.{name}.dense.weight"][:, columns] *= weight
        network = build(clf.config, tensors, device=clf.network.device, dtype=clf.network.dtype)
        moved = Classifier(clf.name, clf.config, clf.tokenizer, network, {})
        probabilities = np.exp(moved.forward(encoded).astype(np.float64) / clf.config.temperature)
        return -np.log(probabilities[rows, study.data.grade] / probabilities.sum(1))

    step = 1e-2
    for name, columns, slopes, place in (
        ("0.attention.output", slice(2 * size, 3 * size), found.heads, (0, 2)),
        ("1.output", slice(20, 21), found.units, (1, 20)),
    ):
        ends = [losses(name, columns, 1 + sign * step) for sign in (1, -1)]
        numeric = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(numeric, slopes[:, *place], atol=2e-2 * np.abs(numeric).max())


def test_times_of_parts_add_up_to_the_whole_network(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine on which a head, a unit, and the rest of a layer take known times."""
    outside, rest, head, unit = 5e-3, 1e-3, 2e-3, 1e-4

    def seconds(mask: HeadMask) -> float:
        left = [layer for layer in range(LAYERS) if layer not in mask.skipped]
        units = LAYERS * UNITS if mask.units_off is None else int((~mask.units_off).sum())
        units -= UNITS * len(mask.skipped)
        return outside + rest * len(left) + head * np.count_nonzero(mask.matrix) + unit * units

    def shortest_seconds(_: Networks, masks: Sequence[HeadMask]) -> np.ndarray:
        return np.array([seconds(mask) for mask in masks])

    with monkeypatch.context() as patch:
        patch.setattr(Networks, "shortest_seconds", shortest_seconds)
        times = measure_times(Networks(replace(study, effort=QUICK)))
    assert (times.heads, times.units) == ((0, 1, 2, 3, 4), (16, 32))
    np.testing.assert_allclose(np.diff(times.feed_forward), 16 * unit)
    # Without any head, layer 0 keeps one, so the time of a head is a little too short.
    np.testing.assert_allclose(np.diff(times.attention)[1:], head, rtol=0.15)
    assert times.network([(HEADS, UNITS)] * LAYERS) == pytest.approx(
        seconds(study.classifier.config.intact_mask)
    )
    assert times.outside_layers > 0
    assert steps(3072, 16)[:2] == (256, 512)


def test_the_choice_is_the_best_of_all_that_fit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        groups = [
            [Option(kept, float(rng.integers(1, 20)), float(rng.random())) for kept in range(4)]
            for _ in range(4)
        ]
        budget = float(rng.integers(10, 60))
        fitting = [
            choice for choice in itertools.product(*groups) if sum(o.seconds for o in choice) <= budget
        ]
        chosen = cheapest(groups, budget)
        if not fitting:
            assert chosen is None
            continue
        assert chosen is not None
        assert sum(o.seconds for o in chosen) <= budget
        assert sum(o.cost for o in chosen) == pytest.approx(
            min(sum(o.cost for o in choice) for choice in fitting)
        )


def test_of_equal_losses_the_faster_is_chosen() -> None:
    options = [Option(2, 5.0, 0.0), Option(1, 3.0, 0.0), Option(0, 4.0, 0.0)]
    assert cheapest([options], 10.0) == [options[1]]


def test_parts_without_effect_go_first_and_of_two_equal_ones_only_one() -> None:
    rng = np.random.default_rng(1)
    shared, own = rng.standard_normal(500), rng.standard_normal(500)
    gradients = np.stack([shared, shared, np.zeros(500), 1.2 * own], 1).astype(np.float32)

    elimination = eliminate(gradients)

    assert elimination.order[0] == 2
    assert elimination.order[1] in (0, 1)
    assert elimination.order[2] == 3
    assert elimination.costs[1] == 0
    assert (np.diff(elimination.costs) >= 0).all()
    information = gradients.T @ gradients / 500
    assert elimination.costs[2] == pytest.approx(information[0, 0] / 2, rel=1e-5)


def test_random_networks_keep_as_many_parts_of_each_layer(study: Study, planner: Planner) -> None:
    config = study.classifier.config
    chosen = planner.fitting(intact_seconds(planner) / 2, [IDLE_LAYER])
    assert chosen is not None
    others = [plans.shuffled(chosen, config, seed) for seed in range(3)]
    assert all(planner.seconds(other) == planner.seconds(chosen) for other in others)
    assert {other.skipped for other in others} == {chosen.skipped}
    assert len(set(others)) == 3
