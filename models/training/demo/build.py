"""Makes a checkpoint from data and a recipe, stage by stage.

    python -m models.training.demo.build --recipe models/training/demo/recipes/default.yaml \\
        --data ../shared/data --out models/default --work runs/default

A stage that has finished is not run again, and one that was killed goes on from its last checkpoint in the
work directory, which belongs to one recipe and its data. Remove the directory to start afresh.
"""

import argparse
import gzip
import hashlib
import logging
import random
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from models.device import resolve_device
from models.errors import ModelError
from models.quality.lexical import words_of
from models.training.batches import tokenized
from models.training.data import (
    TRAINING_FOLDS,
    VALIDATION_FOLDS,
    Judged,
    read_judged,
    read_movies,
    read_products,
    read_text,
    source_family,
)
from models.training.demo.catalogue import new_catalogue, read_things
from models.training.demo.dictionary import read_dictionary
from models.training.demo.export import export, trainable
from models.training.demo.figures import final_metrics
from models.training.demo.finetune import Validation, finetune
from models.training.demo.mixture import Sources, group_judged
from models.training.demo.pretrain import MaskedLanguageModel, masked_round
from models.training.demo.prose import new_prose
from models.training.demo.recipe import GradedStage, Recipe, read_recipe
from models.training.demo.shelf import new_shelf
from models.training.demo.titles import title_statistics
from models.training.demo.work import claim
from models.training.embeddings import cooccurrence_vectors
from models.training.loop import Progress, train
from models.training.network import Model, new_model, stacked
from models.training.saved import read_saved, save
from models.training.vocabulary import alphabet, save_tokenizer, train_tokenizer

log = logging.getLogger(__name__)

RECIPE = Path("models/training/demo/recipes/default.yaml")
_CPU = torch.device("cpu")


def build(
    recipe: Recipe, *, data: Path, out: Path, work: Path, device: torch.device = _CPU
) -> dict[str, Any]:
    """Run every stage of the recipe and write the checkpoint to `out`. Returns metrics.json's content.

    device: where the model is trained. Raises ModelError if `work` holds the state of another recipe or data.
    """
    claim(work, recipe, data)
    text = read_text(data)
    sources = read_sources(recipe, data)
    compute: dict[str, Any] = {}
    if recipe.begins_from is not None:
        model, tokenizer = trainable(recipe.begins_from)
        model.to(device)
    else:
        tokenizer = vocabulary_stage(recipe, text, sources, work)
        tokens = [tokenized(tokenizer, lines) for lines in text.values()]
        model = start(recipe, vectors_stage(recipe, tokens, work)).to(device)
        compute["pretrain"] = asdict(pretrain_stage(recipe, model, tokens, work))
    validation = validation_rows(recipe, data)
    handed_on: dict[str, dict[str, Tensor]] = {}
    for stage in recipe.graded:
        if stage.begins_with:
            model.load_state_dict(averaged(handed_on, stage.begins_with))
        model, progress = graded_stage(stage, model, tokenizer, sources, validation, work)
        compute[stage.name] = asdict(progress)
        if stage.name in recipe.averaged_stages():
            handed_on[stage.name] = weights_of(model)
    if recipe.average:
        model.load_state_dict(averaged(handed_on, recipe.average))
    metrics = {
        **final_metrics(model, tokenizer, sources, data),
        "compute": compute,
        "made_with": _versions(data),
    }
    difference = export(model, tokenizer, out, temperature=metrics["temperature"], metrics=metrics)
    log.info("wrote %s; float16 moves a logit by at most %.4f", out, difference)
    return metrics


def read_sources(recipe: Recipe, data: Path) -> Sources:
    """Read products, dictionary, catalogue, movie queries, and judged pairs of the training folds only."""
    dictionary = read_dictionary(read_text(data)["oewn_text"])
    products = read_products(data)
    shelf = new_shelf(products, dictionary, title_statistics(products, dictionary.nouns()))
    lexicon = sorted(
        set(dictionary.words()) | {word for product in products for word in words_of(product.title)}
    )
    judged = read_judged(data, TRAINING_FOLDS)
    catalogue = new_catalogue(read_things(), shelf.titles)
    movies = read_movies(data)
    entries = [row.title for row in judged if source_family(row.source) in ("dbpedia", "socrata")]
    definitions = [synset.definition for synset in dictionary.synsets]
    return Sources(
        shelf,
        catalogue,
        lexicon,
        movies,
        group_judged(judged),
        recipe.judged_shares,
        new_prose([*entries, *definitions[::6]]),
        [product.title for product in products] + [t for thing in catalogue.things for t in thing.titles],
        sorted({row.query for row in judged} | {query for query, _, _ in movies[::20]})
        + [name for thing in catalogue.things for name in thing.names],
    )


def validation_rows(recipe: Recipe, data: Path) -> list[Judged]:
    """Return the validation folds, with a sample of DBpedia's pairs, which otherwise would dominate."""
    rows = read_judged(data, VALIDATION_FOLDS)
    entities = [row for row in rows if source_family(row.source) == "dbpedia"]
    random.Random(0).shuffle(entities)
    return [row for row in rows if source_family(row.source) != "dbpedia"] + entities[
        : recipe.validation_dbpedia_pairs
    ]


def vocabulary_stage(recipe: Recipe, text: dict[str, list[str]], sources: Sources, work: Path) -> Tokenizer:
    """Return the tokenizer; train it if the work directory has none."""
    path = work / "tokenizer" / "tokenizer.json"
    if not path.exists():
        lines = [line for source in text.values() for line in source]
        lines += [line for product in sources.shelf.products for line in (product.title, product.text)]
        lines += sorted({query for query, _, _ in sources.movies})
        tokenizer = train_tokenizer(lines, size=recipe.network.vocabulary)
        save_tokenizer(tokenizer, path.parent, max_tokens=recipe.network.max_tokens)
    return Tokenizer.from_file(str(path))


def vectors_stage(recipe: Recipe, tokens: list[list[list[int]]], work: Path) -> Tensor:
    """Return the co-occurrence vectors, computed once. Contexts begin after the alphabet's entries."""
    path = work / "vectors.pt"
    if not path.exists():
        vectors = cooccurrence_vectors(
            [line for source in tokens for line in source],
            vocab_size=recipe.network.vocabulary,
            dimensions=recipe.network.hidden,
            first_context=len(alphabet()),
            seed=recipe.seed,
        )
        save(vectors, path)
    loaded: Tensor = torch.load(path, weights_only=True)
    return loaded


def start(recipe: Recipe, vectors: Tensor) -> Model:
    """Return the untrained model with its first layers."""
    shape = recipe.network
    return new_model(
        vocab_size=shape.vocabulary,
        layers=shape.first_layers,
        heads=shape.heads,
        hidden=shape.hidden,
        feed_forward=shape.feed_forward,
        max_tokens=shape.max_tokens,
        vectors=vectors,
        seed=recipe.seed,
    )


def pretrain_stage(recipe: Recipe, model: Model, tokens: list[list[list[int]]], work: Path) -> Progress:
    """Masked-language-model training of the first layers, in place."""
    stage = recipe.pretrain
    assert stage is not None  # the recipe has either this or begins_from
    masked = MaskedLanguageModel(model)

    def make_round(index: int) -> list[Any]:
        return masked_round(
            tokens,
            index=index,
            pairs=stage.pairs_per_round,
            max_tokens=stage.max_tokens,
            batch_tokens=stage.batch_tokens,
            vocab_size=recipe.network.vocabulary,
        )

    return train(masked, masked.loss, make_round, stage.schedule(), work / "pretrain.pt", seed=stage.seed)


def graded_stage(
    stage: GradedStage,
    model: Model,
    tokenizer: Tokenizer,
    sources: Sources,
    validation: list[Judged],
    work: Path,
) -> tuple[Model, Progress]:
    """Run one graded stage; the recipe says which weights it hands on (`GradedStage`)."""
    log.info("stage %s: %d layers, %d steps", stage.name, stage.layers, stage.steps)
    if stage.layers != model.config.num_hidden_layers:
        model = stacked(model, stage.layers).to(model.device)
    began_with = weights_of(model)
    if stage.judged_shares:
        sources = replace(sources, judged_shares=stage.judged_shares)
    checkpoint, best = work / f"{stage.name}.pt", work / f"{stage.name}.best.pt"
    watch = Validation(model, tokenizer, validation, best, every_seconds=60 * stage.validate_minutes)
    progress = finetune(
        model,
        tokenizer,
        sources,
        stage.shares,
        stage.schedule(),
        checkpoint,
        seed=stage.seed,
        max_tokens=stage.max_tokens,
        batch_tokens=stage.batch_tokens,
        pairs_per_round=stage.pairs_per_round,
        dropout=stage.dropout,
        ranking_weight=stage.ranking_weight,
        after_step=watch,
    )
    watch.measure(progress)
    if stage.hands_on == "best":
        model.load_state_dict(read_saved(best)["model"])
    learnt = model.state_dict()
    model.load_state_dict({name: began_with[name].lerp(learnt[name], stage.learnt) for name in learnt})
    return model, progress


def weights_of(model: Model) -> dict[str, Tensor]:
    """Return a copy of the model's weights, which further training does not change."""
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def averaged(weights: dict[str, dict[str, Tensor]], shares: dict[str, float]) -> dict[str, Tensor]:
    """Return the weighted mean of several models' weights. shares: the weight of each, by name."""
    return {
        name: torch.stack([shares[key] * weights[key][name] for key in shares]).sum(0)
        for name in next(iter(weights.values()))
    }


def _versions(data: Path) -> dict[str, str]:
    with gzip.open(data / "graded.jsonl.gz") as file:  # unpacked: the compression does not matter
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "graded.jsonl": f"sha256:{digest}",
        "date": time.strftime("%Y-%m-%d"),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m models.training.demo.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="default: %(default)s")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("models/default"), help="default: %(default)s")
    parser.add_argument("--work", type=Path, help="default: runs/ and the recipe's name, as runs/default")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N; default: %(default)s")
    options = parser.parse_args(arguments)
    if not (options.data / "graded.jsonl.gz").exists():
        parser.error(
            f"{options.data} holds no graded.jsonl.gz: give --data the directory of the training data"
        )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        build(
            read_recipe(options.recipe),
            data=options.data,
            out=options.out,
            work=options.work or Path("runs") / options.recipe.stem,
            device=resolve_device(options.device),
        )
    except ModelError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
