"""Recipes: sources that are left out for real, and what is trained, kept and averaged."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from default_model import drawers
from default_model.base import MAX_TOKENS
from default_model.build import Phase, Training, build
from default_model.drawers import LISTS, SENTENCES, all_sources
from default_model.groups import TEST_FOLDS, VALIDATION_FOLDS
from default_model.mixture import mixed_groups
from default_model.recipes import (
    RECIPES,
    Recipe,
    follow,
    layer_of,
)
from default_model.tuning import untuned
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.classifier import Classifier
from headroom.models.training.distil.teaching import WORDS
from tests.checkpoints import write_checkpoint

pytestmark = pytest.mark.more


@pytest.fixture(autouse=True, scope="module")
def _written_once() -> Iterator[None]:
    """Read the lists that were written for a language once: it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawers, "written_drawers", cache(drawers.written_drawers))
        yield


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
    sources = all_sources(write_data(tmp_path), ["openbg", "chorus", "klue"], tokenizer)
    shares = {
        name: share
        for name, share in {**RECIPES["everything"].shares, **RECIPES["contradictions"].shares}.items()
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
    progress = follow(recipe, model, base, data, [], tmp_path / "progress.pt")
    assert progress.step == 3

    def changed() -> set[int]:
        weights = model.named_parameters()
        return {layer_of(name) for name, weight in weights if not weight.equal(before[name])}

    assert changed() == {1, 2, 1000}

    again = untuned(base)
    follow(recipe, again, base, data, [], tmp_path / "progress.pt")
    for name, weight in again.named_parameters():
        torch.testing.assert_close(weight, model.get_parameter(name))

    follow(replace(recipe, frozen_layers=0), model, base, data, [], tmp_path / "next.pt")
    assert changed() == {0, 1, 2, 1000}, "the next recipe trains what the one before it froze"
    assert model.weight(WORDS).equal(before[WORDS.replace(".", "/")])


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
