"""What each study reports, on a model with heads that are known to do nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from headroom import Classifier, HeadMask
from headroom.models.quality.bootstrap import Draws
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.metrics import GRADED
from headroom.models.study import kinds
from headroom.models.study.layers import cka
from headroom.models.study.pairs import Judged
from headroom.models.study.random import mean_of_masks
from headroom.models.study.statistics import Resamples, effects
from headroom.models.study.study import FULL, Study
from tests.checkpoints import random_model, write_vocabulary
from tests.models.study.data import judged, reported, study

IDLE = [(0, 1), (2, 3)]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study of 3 layers of 4 heads, of which those in IDLE write nothing, and layer 1 neither."""
    directory = tmp_path_factory.mktemp("idle")
    model: BertForSequenceClassification = random_model(3)
    size = 32 // 4
    with torch.no_grad():
        for layer, head in [*IDLE, *((1, head) for head in range(4))]:
            output = model.bert.encoder.layer[layer].attention.output.dense.weight
            output[:, head * size : (head + 1) * size] = 0
    model.save_pretrained(directory)
    write_vocabulary(directory)
    return study(Classifier.load(directory, dtype="float32"), directory, judged(queries=16))


def test_idle_heads_change_nothing_and_others_what_an_evaluation_says(asked: Study) -> None:
    result = kinds.run("single", asked)
    rows = {(row["layer"], row["head"]): row for row in result.json["heads"]}
    assert len(rows) == 12
    for head in [*IDLE, (1, 0)]:
        assert set(rows[head]["delta"].values()) == {0.0}
        assert rows[head]["p_adjusted"] == 1
        assert rows[head]["interval"]["qwk"] == [0, 0]

    def alone(spec: str) -> dict[str, float]:
        mask = HeadMask.parse(spec, layers=3, heads=4)
        scores = asked.classifier.score(asked.data.pairs, mask)
        return GradedEvaluation(asked.data.labelled, scores.probabilities, scores.raw_score).metrics()

    for layer, head in ((0, 0), (2, 1)):
        row = rows[layer, head]
        whole, off = alone("none"), alone(f"{layer}.{head}")
        for name in GRADED.names:
            assert row["delta"][name] == pytest.approx(off[name] - whole[name], abs=1e-9)
            assert row["relative"][name] == pytest.approx(off[name] / whole[name] - 1, abs=1e-9)
            low, high = row["interval"][name]
            assert low <= row["delta"][name] <= high
        assert 0 < row["p_adjusted"] <= 1


def test_layers_that_do_nothing_are_found_to_do_nothing(asked: Study) -> None:
    result = reported("layers", asked)
    rows = {(row["off"], row["layers"]): row for row in result.json["layers"]}
    assert len(rows) == 9
    assert set(rows["alone", "1"]["delta"].values()) == {0.0}
    assert rows["below", "0-1"]["qwk"] == rows["alone", "0"]["qwk"]
    assert rows["above", "1-2"]["qwk"] == rows["alone", "2"]["qwk"]
    cka = np.array(result.json["cka"], float)
    assert cka[1, 1:] == pytest.approx([1, 1])
    assert np.isnan(cka[1:, 0]).all()
    assert (cka[0] < 0.999).all()
    assert "layer" in result.verdict


@pytest.mark.more
def test_random_curves_have_every_fraction_and_seed_of_every_range(asked: Study) -> None:
    result = kinds.run("random", replace(asked, effort=replace(FULL, resamples=20)))
    rows = result.json["curves"]
    assert len(rows) == 3 * 21 * 20
    assert {row["layers"] for row in rows} == {"0-2", "0", "1-2"}
    assert {row["fraction"] for row in rows} == {k / 20 for k in range(21)}
    base = rows[0]["qwk"]
    assert all(row["qwk"] == base for row in rows if row["fraction"] == 0)
    last = {row["layers"]: row["heads_on"] for row in rows if row["fraction"] == 1}
    assert last == {"0-2": 0, "0": 8, "1-2": 4}
    tests = {(row["layers"], row["metric"]): row for row in result.json["equivalence"]}
    assert len(tests) == 12
    curve = [row["qwk"] for row in rows if row["layers"] == "0-2" and row["fraction"] == 0.2]
    assert tests["0-2", "qwk"]["delta"] == pytest.approx(np.mean(curve) - base)
    assert tests["0-2", "qwk"]["p_equivalent"] > 0.05
    assert 0.98**217 <= 0.05 / 4 < 0.98**216, "of 4 metrics; a loss of 0.02 may be that of 2% of the queries"
    assert "that takes at least 217 such queries" in result.verdict


def test_bands_count_the_choice_of_masks_as_well_as_that_of_queries() -> None:
    rng = np.random.default_rng(0)
    whole = GradedEvaluation(
        [LabelledPair(f"q{i}", "", i % 2) for i in range(40)], np.full((40, 2), 0.5), np.zeros(40)
    )
    resamples = Resamples(whole, 50, 0)
    weights = np.ones((51, 20))
    spread = rng.normal(0, 0.1, 20)
    changes = [Draws(np.full(51, change), np.zeros(resamples.counts.shape[1]), 1) for change in spread]
    estimate = mean_of_masks(resamples, changes, weights)
    assert estimate.value == pytest.approx(spread.mean())
    assert estimate.error == pytest.approx(spread.std(ddof=1) / np.sqrt(20))


def barely_ranked(ranked: int) -> Judged:
    """Twelve queries, of which `ranked` have titles of different grades."""
    pairs = [LabelledPair(f"red lamp {q}", "wood screws", q % 4) for q in range(12)]
    pairs += [LabelledPair(f"red lamp {q}", "usb towel", 4) for q in range(ranked)]
    return Judged(pairs, "pairs.csv")


@pytest.mark.parametrize("ranked", [0, 1, 9])
def test_without_ranked_queries_no_head_is_called_significant_or_harmless(asked: Study, ranked: int) -> None:
    result = kinds.run("single", study(asked.classifier, asked.out, barely_ranked(ranked)))

    for row in result.json["heads"]:
        assert row["interval"]["ndcg10"] == pytest.approx([np.nan, np.nan], nan_ok=True)
        assert row["p_adjusted"] > 0.05
        assert row["p_non_inferior"] > 0.05
    assert result.findings[0].ours.count("that takes at least 272 such queries") == 1


def test_heads_and_layers_are_called_harmless_after_a_correction_for_their_number(asked: Study) -> None:
    """With a margin at which some would pass alone, the report counts those that statsmodels leaves."""
    from statsmodels.stats.multitest import multipletests

    many = replace(study(asked.classifier, asked.out, learned(asked, judged(queries=140))), margin=0.05)
    single = [many.without([head]) for head in many.heads]
    layers = [many.without([(layer, head) for head in range(4)]) for layer in range(3)]
    for kind, masks in (("single", single), ("layers", layers)):
        family = effects(many, masks, kind)
        uncorrected = [
            max(one.delta[metric].p_above(-0.05) for metric in GRADED.tested) for one in family.effects
        ]
        harmless = multipletests(uncorrected, 0.05, "holm")[0].sum()
        assert harmless == family.harmless, kind
        assert f"{harmless} are shown to cost less than 0.05 each" in kinds.run(kind, many).verdict


def learned(asked: Study, data: Judged) -> Judged:
    """The pairs with the grades that the model gives them."""
    grades = asked.classifier.score(data.pairs).grade
    rows = [LabelledPair(*pair, int(grade)) for pair, grade in zip(data.pairs, grades, strict=True)]
    return Judged(rows, "the model's own grades")


def test_cka_sees_no_difference_in_a_rotation_and_a_scale() -> None:
    rng = np.random.default_rng(0)
    states, turn = rng.normal(size=(200, 8)), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    first = states.astype(np.float32)
    assert cka(first, (3 * states @ turn + 1).astype(np.float32)) == pytest.approx(1, abs=1e-4)
    assert cka(first, rng.normal(size=(200, 8)).astype(np.float32)) < 0.2
