"""Tries: losses that reach the top of the scale, and sources that are left out for real."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from default_model.base import MAX_TOKENS
from default_model.build import Phase, Training, build
from default_model.drawers import LISTS, SENTENCES, all_sources
from default_model.grouped_batches import GroupedBatch
from default_model.groups import TEST_FOLDS, VALIDATION_FOLDS
from default_model.mixture import mixed_groups
from default_model.recipes import (
    RECIPES,
    Recipe,
    follow,
    graded_loss,
    layer_of,
    partly_frozen,
    raw_ranking_loss,
    raw_scores,
    softened,
)
from default_model.tuning import untuned
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.checkpoint.tokenizer import PairTokenizer
from headroom.models.classifier import Classifier
from headroom.models.scores import Scores
from tests.checkpoints import write_checkpoint

pytestmark = pytest.mark.more


def test_raw_scores_are_those_that_the_service_ranks_by() -> None:
    logits = torch.randn(50, 5, generator=torch.Generator().manual_seed(0)) * 4
    wanted = Scores.from_logits(logits.numpy()).raw_score
    np.testing.assert_allclose(raw_scores(logits).numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_titles_of_different_queries_are_not_ranked_against_each_other() -> None:
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    targets = torch.eye(5)[[0, 4]]
    assert raw_ranking_loss(logits, targets, torch.tensor([0, 1])).item() == 0


def test_pairs_that_are_only_ranked_neither_add_to_the_graded_loss_nor_break_it() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
    targets = torch.eye(5)[[0, 1, 2, 4]]
    assert graded_loss(logits, targets, torch.zeros(4)).item() == 0
    one = graded_loss(logits[:1], targets[:1], torch.ones(1))
    with_ranked = graded_loss(logits, targets, torch.tensor([1.0, 0, 0, 0]))
    assert with_ranked.item() == pytest.approx(one.item() / 4)


def test_the_starting_model_keeps_its_opinion_of_graded_pairs_and_has_none_of_ranked_ones(
    tmp_path: Path,
) -> None:
    base = write_checkpoint(tmp_path / "base", num_labels=5)
    teacher = untuned(base).eval()
    tokenizer = PairTokenizer.load(base, max_tokens=32, vocab_size=teacher.config.vocab_size)
    pairs = tokenizer.encode([("angle bracket", "steel angle"), ("red lamp", "usb charger")])
    batch = GroupedBatch(pairs, torch.eye(5)[[4, 0]], torch.tensor([1.0, 0.0]), torch.zeros(2))
    targets = softened(batch, teacher, 0.75)
    with torch.no_grad():
        own = teacher(pairs).softmax(-1)
    torch.testing.assert_close(targets[0], 0.25 * batch.labels[0] + 0.75 * own[0])
    torch.testing.assert_close(targets[1], batch.labels[1])
    assert torch.equal(batch.labels, torch.eye(5)[[4, 0]])


def test_frozen_layers_take_no_part_in_training_and_the_others_do(tmp_path: Path) -> None:
    model = partly_frozen(untuned(write_checkpoint(tmp_path / "base", num_labels=5)), 2)
    trained = {layer_of(name) for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {2, 1000}


def write_data(data: Path) -> Path:
    """Some judged pairs and lists of every source; each title names its source."""
    data.mkdir(exist_ok=True)

    def rows(source: str) -> list[dict[str, object]]:
        return [
            {
                "query": f"{source} q{n}",
                "title": f"{source} 商品 {n} {grade} red",
                "grade": grade,
                "source": source,
            }
            for n in range(60)
            for grade in (4, 0)
        ]

    with gzip.open(data / "graded.jsonl.gz", "wt", encoding="utf-8") as file:
        for name in ("esci", "chorus", "dbpedia", "socrata"):
            file.writelines(json.dumps({**row, "fold": 5}) + "\n" for row in rows(name))
    for directory in {**LISTS, **SENTENCES}.values():
        folder = data / "multilingual" / directory
        folder.mkdir(parents=True)
        with gzip.open(folder / "pairs.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({**row, "lang": "zh"}) + "\n" for row in rows(directory))
    movies = data / "msrd_movies"
    movies.mkdir()
    with gzip.open(movies / "movies-corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        for number in (1, 2):
            movie = {"id": str(number), "title": f"Film {number}", "year": 1999, "genres": [], "actors": []}
            file.write(json.dumps(movie) + "\n")
    with gzip.open(movies / "movies-judgments.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("head\n0\tfilm\t1\t1\n0\tfilm\t2\t0\n")
    return data


def test_a_source_that_is_left_out_is_in_no_group_not_by_its_titles_either(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(DEFAULT / "tokenizer.json"))
    sources = all_sources(write_data(tmp_path), ["openbg", "chorus", "klue"], tokenizer, attributes=0.0)
    shares = {
        name: share
        for name, share in RECIPES["attributes"].shares.items()
        if name not in ("openbg", "short_zh", "klue")
    }
    groups = mixed_groups(sources, shares, count=6000, seed=0, index=0)
    text = " ".join(f"{example.query} {example.title}" for group in groups for example in group)
    for name in ("openbg_slice", "chorus", "klue_sts_train"):
        assert name not in text
    assert "dureader_demo" in text
    assert "esci" in text


def test_a_recipe_trains_what_is_not_frozen_and_goes_on_where_it_was_killed(
    tmp_path: Path,
) -> None:
    base = write_checkpoint(tmp_path / "base", num_labels=5)
    data = write_data(tmp_path / "data")
    recipe = Recipe(3, 1e-3, {"ranked": 0.5, "brands_en": 0.5}, batch_tokens=256, frozen_layers=1, kept=0.5)
    model = untuned(base)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    progress = follow(recipe, model, untuned(base).eval(), base, data, [], tmp_path / "progress.pt")
    assert progress.step == 3
    changed = {layer_of(name) for name, weight in model.named_parameters() if not weight.equal(before[name])}
    assert changed == {1, 2, 1000}

    again = untuned(base)
    follow(recipe, again, untuned(base).eval(), base, data, [], tmp_path / "progress.pt")
    for name, weight in again.named_parameters():
        torch.testing.assert_close(weight, model.get_parameter(name))


def test_a_model_made_from_nothing_ends_with_the_recipes_that_are_named(tmp_path: Path) -> None:
    """The path of `make model RECIPES=…`: training, recipes one after another, calibration, files."""
    base = write_checkpoint(tmp_path / "base", num_labels=5, max_position_embeddings=MAX_TOKENS)
    data = write_data(tmp_path / "data")
    with gzip.open(data / "graded.jsonl.gz", "at", encoding="utf-8") as file:
        for fold in (*VALIDATION_FOLDS, *TEST_FOLDS):
            for source in ("esci", "chorus"):
                for number in range(4):
                    for grade, title in enumerate(("lamp", "red light", "usb cable", "desk", "steel angle")):
                        row = {"query": f"{source} {fold} q{number}", "title": f"{title} {number}"}
                        file.write(json.dumps(row | {"grade": grade, "source": source, "fold": fold}) + "\n")
    training = Training(1.0, 512, [Phase(2, 1e-3, {"ranked": 1.0})])
    recipes = [
        Recipe(2, 1e-3, {"ranked": 0.5, "stuffed_zh": 0.5}, batch_tokens=512, kept=0.5, seed=seed)
        for seed in (1, 2)
    ]
    out = tmp_path / "out"
    build(data, base, out, tmp_path / "work", [training], recipes, without=())
    metrics = json.loads((out / "metrics.json").read_text())
    assert [one["step"] for one in metrics["progress"]] == [2, 2, 2]
    assert [one["seed"] for one in metrics["recipe"]["recipes"]] == [1, 2]
    assert {"calibration", "validation", "test"} <= set(metrics)
    scores = Classifier.load(out, "cpu", "float32").score([("red lamp", "lamp"), ("red lamp", "desk")])
    assert np.isfinite(scores.probabilities).all()

    plain = tmp_path / "plain"
    build(data, base, plain, tmp_path / "other", [training], [], without=())
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not load_file(out / "model.safetensors")[name].equal(load_file(plain / "model.safetensors")[name])
