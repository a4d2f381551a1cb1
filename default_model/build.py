"""Makes the shipped model: the base, tuned twice, averaged, trained by recipes, calibrated and written.

    python -m default_model.build --recipes written,everything,longer,contradictions --data ../shared/data
    python -m default_model.build --without chorus,socrata --steps 300 --work runs/without-chorus

The second form trains without some judged sources and prints how the model ranks them: the measure by which
the recipe was chosen. It writes no checkpoint. A run that was killed goes on from its work directory.
"""

import argparse
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from default_model.base import MAX_TOKENS, make_base
from default_model.checks import Answer, Floats, ranking_answers
from default_model.grouped_batches import GroupedBatch, ranking_loss
from default_model.groups import FOLDS, TRAINING_FOLDS, VALIDATION_FOLDS
from default_model.mixture import (
    Judged,
    Sources,
    mixed_groups,
    read_judged,
    read_sources,
    source_groups,
)
from default_model.recipes import RECIPES, Recipe, follow
from default_model.tuning import JUDGED_SHARES, PAIRS_PER_ROUND, averaged, batches_of, untuned, write
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.tokenizer import PairTokenizer, load_tokenizer
from headroom.models.learner import Learner
from headroom.models.quality.calibration import fit_grades
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.training.loop import Progress, Schedule, logits_of, ordinal_loss, train


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training with a learning rate and shares of its own.

    shares: of the kinds of `mixture.kinds`, one of pairs.
    """

    steps: int
    rate: float
    shares: Mapping[str, float]


SHARES = {  # of the two phases of the first training, and of the second one
    "ranked": (0.40, 0.28, 0.32, 0.22),
    "others": (0.15, 0.10, 0.12, 0.11),
    "numbers": (0.04, 0.03, 0.03, 0.025),
    "titled": (0, 0, 0.20, 0.16),
    "movies": (0.08, 0.05, 0.06, 0.04),
    "strangers": (0.05, 0.04, 0.04, 0.03),
    "english": (0.14, 0.16, 0.115, 0.135),
    "korean": (0.055, 0.08, 0.045, 0.065),
    "chinese": (0.055, 0.08, 0.045, 0.065),
    "unrelated": (0, 0.13, 0, 0.11),
    "questions": (0.03, 0.05, 0.025, 0.04),
}
"""After a first phase Korean and Chinese were still read badly: unrelated titles got 2.5 of 4."""

FIRST, SECOND, TITLED_FIRST, TITLED_SECOND = (
    Phase(steps, rate, {kind: shares[column] for kind, shares in SHARES.items() if shares[column]})
    for column, (steps, rate) in enumerate(((1600, 1.5e-4), (800, 1.2e-4), (2000, 1.5e-4), (1000, 1.2e-4)))
)


@dataclass(frozen=True, slots=True)
class Training:
    """One training of the base, phase by phase. share: of its weights in the model's."""

    share: float
    batch_tokens: int
    phases: Sequence[Phase]


TRAININGS = (
    Training(0.72, 4096, (FIRST, SECOND)),
    Training(0.28, 2048, (TITLED_FIRST, TITLED_SECOND)),
)
"""The model is the mean of two trainings' weights ("Model soups", Wortsman et al. 2022): it ranks better than
either. docs/model-card.md says how the shares were chosen."""

RANKING_WEIGHT = 0.5

CROSSED_SHARE = 10
"""Titles of other queries count in the calibration as one pair in so many."""


def build(
    data: Path,
    base: Path,
    out: Path,
    work: Path,
    trainings: Sequence[Training],
    recipes: Sequence[Recipe],
    without: Collection[str],
) -> list[Answer]:
    """Tune, average, calibrate and write the model; return how it ranks the validation folds.

    recipes: what the average is trained by afterwards, one after another; calibrated before, because its
    opinion of graded pairs is kept by the first.

    If judged sources are left out, return how it ranks these, and write nothing.
    """
    tokenizer = load_tokenizer(base, read_config(base)).within(MAX_TOKENS)
    shares = {name: share for name, share in JUDGED_SHARES.items() if name not in without}
    model, progress = averaged_trainings(read_sources(data, shares), tokenizer, base, work, trainings)
    validation = [row for row in read_judged(data, VALIDATION_FOLDS) if row.family not in without]
    if recipes:
        calibrate(model, tokenizer, validation)
    for number, recipe in enumerate(recipes, 1):
        progress.append(follow(recipe, model, base, data, without, work / f"recipe-{number}.pt"))

    def probabilities(rows: Sequence[Judged]) -> Floats:
        return np.asarray(softmax(logits_of(model, tokenizer, rows), axis=1))

    if without:
        rows = [row for row in read_judged(data, VALIDATION_FOLDS + TRAINING_FOLDS) if row.family in without]
        return ranking_answers(probabilities(rows), rows)
    metrics: dict[str, Any] = {"calibration": calibrate(model, tokenizer, validation)}
    for name, folds in FOLDS.items():
        metrics[name] = product_metrics(read_judged(data, folds), probabilities)
    metrics["recipe"] = {
        "trainings": list(map(asdict, trainings)),
        "judged_shares": shares,
        "recipes": list(map(asdict, recipes)),
    }
    metrics["progress"] = list(map(asdict, progress))
    metrics["made_with"] = made_with()
    answers = ranking_answers(probabilities(validation), validation)
    write(model, base, out, metrics)
    return answers


def made_with() -> dict[str, str]:
    """Return the version of torch and today's date."""
    return {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


def averaged_trainings(
    sources: Sources, tokenizer: PairTokenizer, base: Path, work: Path, trainings: Sequence[Training]
) -> tuple[Learner, list[Progress]]:
    """Return the mean of the trainings' weights, and the progress of each phase."""
    models = list[Learner]()
    progress = list[Progress]()
    for number, training in enumerate(trainings, 1):
        models.append(untuned(base))
        progress += tuned(models[-1], tokenizer, sources, training, work / str(number))
    return averaged(models, [training.share for training in trainings]), progress


def product_metrics(
    rows: Sequence[Judged], probabilities: Callable[[Sequence[Judged]], Floats]
) -> dict[str, float]:
    """Return the metrics on the products among these pairs."""
    products = [rows[index] for index in source_groups(rows)["products"]]
    shares = probabilities(products)
    return GradedEvaluation(products, shares, shares @ np.arange(shares.shape[1])).metrics()


def tuned(
    model: Learner, tokenizer: PairTokenizer, sources: Sources, training: Training, work: Path
) -> list[Progress]:
    """Train the model in place, phase by phase; a run that was killed goes on from `work`."""

    def loss_of(batch: GroupedBatch) -> Tensor:
        logits = model(batch.pairs)
        ranking = ranking_loss(logits, batch.labels, batch.groups)
        return ordinal_loss(logits, batch.labels, batch.weights) + RANKING_WEIGHT * ranking

    def progress_of(number: int, phase: Phase) -> Progress:
        def make_round(index: int) -> list[GroupedBatch]:
            groups = mixed_groups(sources, phase.shares, count=PAIRS_PER_ROUND, seed=number, index=index)
            return batches_of(groups, tokenizer, batch_tokens=training.batch_tokens, seed=index)

        file = work / f"progress-{number + 1}.pt"
        schedule = Schedule(phase.steps, phase.rate)
        return train(model, loss_of, make_round, schedule, file, seed=number)

    return [progress_of(number, phase) for number, phase in enumerate(training.phases)]


def calibrate(model: Learner, tokenizer: PairTokenizer, judged: Sequence[Judged]) -> dict[str, Any]:
    """Fit the classifier's probabilities to the validation folds; return temperature and biases.

    Some titles of other queries take part: judged pairs were retrieved for their query, so few are far off.
    """
    crossed: list[Judged] = []
    for one, other in zip(judged, reversed(judged), strict=True):
        same = one.family == other.family
        if same and one.query != other.query and len(crossed) < len(judged) // CROSSED_SHARE:
            crossed.append(replace(one, title=other.title, grade=0))
    rows = [*judged, *crossed]
    logits = logits_of(model, tokenizer, rows)
    temperature, biases = calibration(logits, [row.grade for row in rows], [row.family for row in rows])
    with torch.no_grad():
        for part in ("weight", "bias"):
            model.weight(f"classifier.{part}").div_(temperature)
        model.weight("classifier.bias").add_(torch.from_numpy(biases).float())
    return {"temperature": temperature, "bias": biases.tolist()}


def calibration(logits: Floats, grades: Sequence[int], families: Sequence[str]) -> tuple[float, Floats]:
    """Fit the map `logits / temperature + biases` by likelihood; each family of pairs has the same weight.

    biases: (grades,).
    """
    counts = Counter(families)
    weights = np.array([1 / counts[family] for family in families]) / len(counts)
    fitted = fit_grades(logits, np.asarray(grades), weights)
    return fitted.temperature, fitted.bias


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("models/default"), help="default: %(default)s")
    parser.add_argument("--work", type=Path, default=Path("runs/shipped"), help="default: %(default)s")
    parser.add_argument("--base", type=Path, default=Path("runs/base"), help="made if it is not there")
    parser.add_argument("--without", default="", help="judged sources to leave out, comma-separated")
    parser.add_argument(
        "--recipes", default="", help="recipes that the average is trained by, comma-separated; default: none"
    )
    parser.add_argument("--steps", type=int, help="train only so many steps of the first phase")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    trainings: Sequence[Training] = TRAININGS
    if options.steps is not None:
        trainings = [Training(1.0, TRAININGS[0].batch_tokens, [replace(FIRST, steps=options.steps)])]
    without = [name for name in options.without.split(",") if name]
    base = options.base / "checkpoint"
    if not (base / "tokenizer_config.json").exists():
        make_base(options.base)
    recipes = [RECIPES[name] for name in options.recipes.split(",") if name]
    answers = build(options.data, base, options.out, options.work, trainings, recipes, without)
    print(*answers, sep="\n")


if __name__ == "__main__":
    main()
