"""Continues the training of a checkpoint by a recipe, and looks at every source on the way.

    python -m default_model.recipes --recipe longer --without openbg,stylekqc,klue --work runs/1

WORK gets `figures.jsonl` (a line per look: NDCG@10, Spearman within queries and over all pairs of each
source, and how many of the hand-written short lists have their best title first), and `checkpoint`, the
weights at the end, not calibrated. A run that was killed goes on from WORK.
`default_model.yardstick` measures the checkpoint with intervals.
"""

import argparse
import json
import logging
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from tokenizers import Tokenizer
from torch import Tensor

from default_model.attributes import LANGUAGES
from default_model.drawers import all_sources
from default_model.grouped_batches import GroupedBatch
from default_model.losses import graded_loss, margin_loss, raw_ranking_loss, softened
from default_model.mixture import Sources, kinds, mixed_groups
from default_model.tuning import PAIRS_PER_ROUND, averaged, batches_of, untuned, write
from default_model.yardstick import (
    Measure,
    best_first,
    evaluation_of,
    measures,
    quick_figures,
    read_short_lists,
)
from headroom.models.batch import pack
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer, load_tokenizer
from headroom.models.device import resolve_dtype
from headroom.models.files import write_whole
from headroom.models.learner import Learner
from headroom.models.networks import build
from headroom.models.quality.labelled import LabelledPair
from headroom.models.scores import Scores
from headroom.models.training.distil.teaching import WORDS
from headroom.models.training.loop import Progress, Schedule, logits_of, train

log = logging.getLogger(__name__)

WATCHED = 0.2
"""The share of the yardstick's queries that are asked at each look."""

TRAINED_TOKENS = 64
"""Tokens of a pair in a recipe: few titles have more, and those cost as much as several short ones."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A continued training. shares: of the kinds, one of pairs.

    ranking: the weight of the ranking loss. frozen_layers: so many first layers stay as they are, which makes
    a step cheaper and forgets less. kept: the share of the starting model's probabilities in the targets of
    graded pairs: it has seen the judged pairs often, and more steps on them make it sure without making it
    better. held: the weight of its probabilities for pairs that are ranked and not graded; 0 leaves their
    scale free. margin: the weight of `margin_loss`; 0 for recipes without taught
    grades. without: sources that take no part, so that they measure what the others taught. averaged: the
    share of the starting weights in the result; the rest are the trained ones.
    """

    steps: int
    rate: float
    shares: Mapping[str, float]
    batch_tokens: int = 1536
    ranking: float = 0.5
    frozen_layers: int = 0
    kept: float = 0.0
    held: float = 0.0
    margin: float = 0.0
    seed: int = 0
    without: Sequence[str] = ()
    averaged: float = 0.0


WRITTEN = {
    "ranked": 0.14,
    "others": 0.05,
    "numbers": 0.015,
    "titled": 0.03,
    "movies": 0.01,
    "strangers": 0.02,
    "english": 0.03,
    "unrelated": 0.04,
    "questions": 0.03,
    "korean": 0.05,
    "chinese": 0.05,
    "shops_en": 0.03,
    "shops_ko": 0.08,
    "shops_zh": 0.06,
    "brands_en": 0.03,
    "brands_ko": 0.03,
    "brands_zh": 0.03,
    "attributes_en": 0.04,
    "attributes_ko": 0.04,
    "attributes_zh": 0.04,
    "short_en": 0.015,
    "short_zh": 0.01,
    "changed_en": 0.01,
    "changed_zh": 0.01,
    "titled_ko": 0.02,
    "titled_zh": 0.01,
    "sae4k": 0.025,
    "stylekqc": 0.015,
    "klue": 0.02,
    "openbg": 0.06,
    "dureader": 0.03,
    "osm": 0.025,
    "cldr": 0.035,
}
"""Each language weighs about the same, and most lists say the same thing in other words."""

EVERYTHING = {
    "ranked": 0.15,
    "others": 0.05,
    "numbers": 0.02,
    "titled": 0.03,
    "movies": 0.01,
    "strangers": 0.02,
    "english": 0.03,
    "korean": 0.04,
    "chinese": 0.04,
    "unrelated": 0.04,
    "questions": 0.03,
    "shops_en": 0.03,
    "shops_ko": 0.06,
    "shops_zh": 0.06,
    "brands_en": 0.04,
    "brands_ko": 0.04,
    "brands_zh": 0.04,
    "attributes_en": 0.03,
    "attributes_ko": 0.03,
    "attributes_zh": 0.03,
    "negations_en": 0.03,
    "negations_ko": 0.03,
    "negations_zh": 0.03,
    "short_en": 0.01,
    "changed_en": 0.01,
    "changed_zh": 0.01,
    "titled_ko": 0.02,
    "titled_zh": 0.01,
    "sae4k": 0.03,
    "stylekqc": 0.015,
    "klue": 0.02,
    "openbg": 0.07,
    "dureader": 0.03,
    "osm": 0.02,
    "cldr": 0.03,
}
"""As WRITTEN, with more negations and more real Chinese titles."""

LONGER = {
    **EVERYTHING,
    "ranked": 0.16,
    "others": 0.06,
    "strangers": 0.03,
    "unrelated_en": 0.04,
    "titled_zh": 0.035,
    "shops_ko": 0.055,
    "shops_zh": 0.045,
    "stuffed_en": 0.01,
    "stuffed_ko": 0.02,
    "stuffed_zh": 0.045,
    **{f"negations_{language}": 0.025 for language in LANGUAGES},
    **{f"negated_{language}": 0.03 for language in LANGUAGES},
    **{f"without_{language}": 0.02 for language in LANGUAGES},
}
"""As EVERYTHING, with 5 % negations per language, stuffed titles, and more English titles of other things."""

CONTRADICTIONS = {
    "ranked": 0.16,
    "others": 0.06,
    "titled": 0.03,
    "movies": 0.01,
    "strangers": 0.03,
    "english": 0.03,
    "korean": 0.03,
    "chinese": 0.03,
    "unrelated": 0.04,
    "unrelated_en": 0.03,
    "questions": 0.02,
    "short_en": 0.01,
    "titled_ko": 0.02,
    "titled_zh": 0.03,
    "sae4k": 0.02,
    "stylekqc": 0.01,
    "klue": 0.06,
    "openbg": 0.05,
    "dureader": 0.03,
    "osm": 0.02,
    "cldr": 0.02,
    **{f"negated_{language}": 0.015 for language in LANGUAGES},
    **{f"without_{language}": 0.01 for language in LANGUAGES},
    **{f"graded_attributes_{language}": 0.06 for language in LANGUAGES},
    **{f"graded_negations_{language}": 0.03 for language in LANGUAGES},
    **{f"graded_shops_{language}": 0.08 for language in LANGUAGES},
    **{f"graded_brands_{language}": 0.06 for language in LANGUAGES},
    **{f"contradicted_{language}": 0.11 for language in LANGUAGES},
    "apart_en": 0.05,
    **{f"differing_{language}": 0.06 for language in LANGUAGES},
}
"""As LONGER, with lists in which one title contradicts the query, and with the grades of the written lists
taught and not their order alone. With a quarter of the share of `klue`, Spearman on KLUE-STS fell by 0.025
(0.008 to 0.041)."""

LEFT_OUT = ("openbg", "dureader", "sae4k", "stylekqc")
"""Sources in Korean and Chinese that show what the lists written for headroom teach; EVERYTHING has them."""

RECIPES = {
    "written": Recipe(450, 1e-4, WRITTEN, frozen_layers=4, kept=0.7, without=LEFT_OUT),
    "everything": Recipe(300, 8e-5, EVERYTHING, frozen_layers=4, kept=0.7, seed=1),
    "longer": Recipe(720, 8e-5, LONGER, frozen_layers=4, kept=0.7, seed=3, averaged=0.5),
    "contradictions": Recipe(
        2300, 1e-4, CONTRADICTIONS, batch_tokens=2048, kept=0.8, held=0.3, margin=0.5, seed=5
    ),
}
"""The shipped model is made with them, one after another; docs/model-card.md says where its run differed."""


def layer_of(name: str) -> int:
    """Return the index of the layer that a parameter belongs to; 0 for the embeddings, 1000 for the head."""
    if match := re.search(r"layer[./](\d+)[./]", name):
        return int(match[1])
    return 0 if "embeddings" in name else 1000


class Watch:
    """Looks at a model in training and writes what it sees to a file."""

    def __init__(
        self, model: Learner, tokenizer: PairTokenizer, found: Sequence[Measure], file: Path
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._measures = found
        self._lists = read_short_lists()
        self._file = file

    def look(self, step: int) -> None:
        """Measure every source and the short lists; append a line."""
        figures: dict[str, Any] = dict(quick_figures(self._measures, self._probabilities))
        first = best_first(self._lists, self._score)
        for language in ("en", "ko", "zh"):
            flags = [flag for flag, one in zip(first, self._lists, strict=True) if one.language == language]
            figures[f"lists_{language}"] = round(float(np.mean(flags)), 2)
        line = json.dumps({"step": step, **figures})
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        log.info("%s", line)

    def validation(self) -> dict[str, float]:
        """Return the metrics on the watched pairs of ESCI."""
        pairs = next(measure.pairs for measure in self._measures if measure.name == "esci")
        return evaluation_of(pairs, self._probabilities).metrics()

    def _logits(self, pairs: Sequence[LabelledPair]) -> np.ndarray:
        return logits_of(self._model, self._tokenizer, pairs)

    def _probabilities(self, pairs: Sequence[LabelledPair]) -> np.ndarray:
        return np.asarray(softmax(self._logits(pairs), axis=1))

    def _score(self, pairs: Sequence[LabelledPair]) -> np.ndarray:
        return Scores.from_logits(self._logits(pairs)).raw_score


def run(
    recipe: Recipe,
    start: Path,
    data: Path,
    work: Path,
    without: Collection[str],
    every: int,
) -> None:
    """Train, look every so many steps, and write the checkpoint."""
    model = untuned(start)
    description = {"recipe": asdict(recipe), "start": str(start), "without": sorted(without)}
    write_whole(work / "recipe.json", json.dumps(description, indent=1).encode())
    tokenizer = load_tokenizer(start, read_config(start)).within(TRAINED_TOKENS)
    watch = Watch(model, tokenizer, measures(data, without, scale=WATCHED), work / "figures.jsonl")

    def after_step(progress: Progress) -> None:
        if progress.step % every == 0 or progress.step == recipe.steps:
            watch.look(progress.step)

    progress = follow(recipe, model, start, data, without, work / "progress.pt", after_step)
    metrics = {"validation": watch.validation(), "recipe": description, "progress": asdict(progress)}
    write(model, start, work / "checkpoint", metrics)


def follow(
    recipe: Recipe,
    model: Learner,
    directory: Path,
    data: Path,
    without: Collection[str],
    file: Path,
    after_step: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Train the model in place by a recipe, and average it. A run that was killed goes on from `file`.

    directory: has the tokenizer's files. without: sources that take no part.
    """
    torch.manual_seed(recipe.seed)
    freeze(model, recipe.frozen_layers)
    tokenizer = load_tokenizer(directory, read_config(directory)).within(TRAINED_TOKENS)
    words = Tokenizer.from_file(str(directory / "tokenizer.json"))
    sources = all_sources(data, [*without, *recipe.without], words)
    available = kinds(sources, random.Random(0))
    shares = {name: share for name, share in recipe.shares.items() if name in available}
    loss_of = loss_function(model, recipe)
    make_round = partial(round_of, sources, shares, tokenizer, recipe)
    schedule = Schedule(recipe.steps, recipe.rate, warmup=20, decay=0.9)
    start = deepcopy(model) if recipe.averaged else None
    progress = train(model, loss_of, make_round, schedule, file, seed=recipe.seed, after_step=after_step)
    if start is not None:
        averaged([model, start], [1 - recipe.averaged, recipe.averaged])
    return progress


def round_of(
    sources: Sources, shares: Mapping[str, float], tokenizer: PairTokenizer, recipe: Recipe, index: int
) -> list[GroupedBatch]:
    """Return a round of batches; it depends on the recipe's seed and the index alone."""
    groups = mixed_groups(sources, shares, count=PAIRS_PER_ROUND, seed=recipe.seed + 100, index=index)
    return batches_of(groups, tokenizer, batch_tokens=recipe.batch_tokens, seed=index)


def loss_function(model: Learner, recipe: Recipe) -> Callable[[GroupedBatch], Tensor]:
    """Return the loss of a batch. The opinion that is kept is the model's as it is now."""
    opinion = opinion_of(model)

    def loss_of(batch: GroupedBatch) -> Tensor:
        logits = model(batch.pairs)
        targets, weights = softened(batch, opinion(batch.pairs), recipe.kept, recipe.held)
        ranking = raw_ranking_loss(logits, batch.labels, batch.groups)
        margin = margin_loss(logits, batch) if recipe.margin else 0.0
        return graded_loss(logits, targets, weights) + recipe.ranking * ranking + recipe.margin * margin

    return loss_of


def opinion_of(model: Learner) -> Callable[[Sequence[EncodedPair]], Tensor]:
    """Return a function of pairs that gives a model's logits as it is now, (pairs, grades).

    By the network that serves, which is three times as fast as one that autograd follows.
    """
    tensors = {name: weight.detach().clone() for name, weight in model.tensors().items()}
    dtype = resolve_dtype("auto", model.device, deterministic=False)
    network = build(model.config, tensors, device=model.device, dtype=dtype)
    return lambda pairs: network.forward(pack(pairs, device=network.device))


def freeze(model: Learner, layers: int) -> None:
    """Leave the first layers and the word embeddings out of training, and nothing else."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(layer_of(name) >= layers)
    model.weight(WORDS).requires_grad_(False)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipe", choices=sorted(RECIPES), required=True)
    parser.add_argument(
        "--start", type=Path, default=DEFAULT, help="the checkpoint to go on from; default: %(default)s"
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--work", type=Path, required=True, help="directory of the run")
    parser.add_argument("--without", default="", help="sources to leave out, comma-separated")
    parser.add_argument(
        "--every", type=int, default=100, help="steps between two looks; default: %(default)s"
    )
    parser.add_argument("--steps", type=int, help="instead of the recipe's number")
    parser.add_argument("--seed", type=int, help="of what is drawn; default: the recipe's")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    without = [name for name in options.without.split(",") if name]
    recipe = RECIPES[options.recipe]
    if options.seed is not None:
        recipe = replace(recipe, seed=options.seed)
    if options.steps is not None:
        recipe = replace(recipe, steps=options.steps)
    without += recipe.without
    run(recipe, options.start, options.data, options.work, without, options.every)


if __name__ == "__main__":
    main()
