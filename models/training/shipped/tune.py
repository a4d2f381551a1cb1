"""Tunes the pretrained base on graded pairs, and calibrates it on the validation folds."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from torch import Tensor

from models.checkpoint.config import read_config
from models.checkpoint.tensors import read_tensors
from models.checkpoint.tokenizer import PairTokenizer
from models.learner import Learner
from models.quality.evaluation import evaluation_of
from models.training.batches import logits_of
from models.training.data import GRADES
from models.training.loop import Batch, Progress, Schedule, ordinal_loss, ranking_loss, train
from models.training.plan import grouped
from models.training.shipped.judged import Judged, source_family, source_groups
from models.training.shipped.mixture import Group, Sources, mixed_groups

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training with a learning rate and shares of its own.

    shares: of the kinds of `mixture.kinds`, one of pairs.
    """

    steps: int
    rate: float
    shares: Mapping[str, float]


FIRST = Phase(
    1600,
    1.5e-4,
    {
        "ranked": 0.40,
        "others": 0.15,
        "numbers": 0.04,
        "movies": 0.08,
        "strangers": 0.05,
        "english": 0.14,
        "korean": 0.055,
        "chinese": 0.055,
        "questions": 0.03,
    },
)
SECOND = Phase(
    800,
    1.2e-4,
    {
        "ranked": 0.28,
        "others": 0.10,
        "numbers": 0.03,
        "movies": 0.05,
        "strangers": 0.04,
        "english": 0.16,
        "korean": 0.08,
        "chinese": 0.08,
        "unrelated": 0.13,
        "questions": 0.05,
    },
)
"""After the first phase Korean and Chinese were still read badly: unrelated titles got 2.5 of 4."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The choices of the training; docs/model-card.md says how they were made.

    judged_shares: of the judged sources. The word embeddings stay as they are, so that words of languages
    that are not trained on keep their meaning.
    """

    phases: tuple[Phase, ...] = (FIRST, SECOND)
    decay: float = 0.8
    batch_tokens: int = 4096
    max_tokens: int = 128
    pairs_per_round: int = 2560
    distance_weight: float = 0.3
    ranking_weight: float = 0.5
    seed: int = 0
    judged_shares: Mapping[str, float] = field(
        default_factory=lambda: {"esci": 0.40, "chorus": 0.27, "dbpedia": 0.15, "socrata": 0.18}
    )

    def without(self, families: Sequence[str]) -> dict[str, float]:
        """Return the shares of the judged sources without some of them."""
        return {name: share for name, share in self.judged_shares.items() if name not in families}


def untuned(base: Path, seed: int) -> Learner:
    """Return the base with a new classifier of the grades; its word embeddings take no part in training.

    There is no dropout: made-up pairs never repeat.
    """
    torch.manual_seed(seed)
    config = replace(read_config(base), labels=GRADES, label_order=tuple(range(len(GRADES))))
    model = Learner(config, read_tensors(base, config, new_classifier=True))
    model.weight("bert.embeddings.word_embeddings.weight").requires_grad_(False)
    return model


def tuned(
    model: Learner, tokenizer: PairTokenizer, sources: Sources, recipe: Recipe, work: Path
) -> list[Progress]:
    """Train the model in place, phase by phase; a run that was killed goes on from `work`."""

    def loss_of(batch: Batch) -> Tensor:
        logits = model(batch.pairs)
        loss = ordinal_loss(logits, batch.labels, batch.weights, distance_weight=recipe.distance_weight)
        assert batch.groups is not None
        return loss + recipe.ranking_weight * ranking_loss(logits, batch.labels, batch.groups)

    def progress_of(number: int, phase: Phase) -> Progress:
        seed = recipe.seed + number

        def make_round(index: int) -> list[Batch]:
            groups = mixed_groups(sources, phase.shares, count=recipe.pairs_per_round, seed=seed, index=index)
            return batches_of(groups, tokenizer, batch_tokens=recipe.batch_tokens, seed=index)

        schedule = Schedule(steps=phase.steps, rate=phase.rate, decay=recipe.decay)
        return train(model, loss_of, make_round, schedule, work / f"progress-{number + 1}.pt", seed=seed)

    return [progress_of(number, phase) for number, phase in enumerate(recipe.phases)]


def batches_of(
    groups: Sequence[Group], tokenizer: PairTokenizer, *, batch_tokens: int, seed: int
) -> list[Batch]:
    """Return the groups, each in one batch, as batches of similar length in a shuffled order."""
    examples = [example for group in groups for example in group]
    encoded = tokenizer.encode([(example.query, example.title) for example in examples])
    targets = torch.tensor([example.target for example in examples])
    weights = torch.tensor([example.weight for example in examples])
    numbers = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    ends = list(accumulate(map(len, groups)))
    spans = [range(end - len(group), end) for end, group in zip(ends, groups, strict=True)]
    lengths = [max(len(encoded[row]) for row in span) for span in spans]
    batches = []
    for chosen in grouped(lengths, batch_tokens=batch_tokens, sizes=[len(span) for span in spans]):
        rows = [row for number in chosen for row in spans[number]]
        batches.append(Batch([encoded[row] for row in rows], targets[rows], weights[rows], numbers[rows]))
    return [batches[index] for index in np.random.default_rng(seed).permutation(len(batches))]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A small map of the logits, `logits / temperature + bias`, which the last layer takes up.

    One temperature cannot move probability from one grade to another; the biases can. bias: (grades,).
    """

    temperature: float
    bias: Floats

    def apply(self, logits: Floats) -> Floats:
        """Return probabilities, (pairs, grades)."""
        return np.asarray(softmax(logits / self.temperature + self.bias, axis=1))

    def fold_into(self, model: Learner) -> None:
        """Change the classifier so that its logits are the calibrated ones."""
        with torch.no_grad():
            for part in ("weight", "bias"):
                model.weight(f"classifier.{part}").div_(self.temperature)
            model.weight("classifier.bias").add_(torch.from_numpy(self.bias).float())


def calibrated(logits: Floats, grades: Sequence[int], families: Sequence[str]) -> Calibration:
    """Fit the calibration by likelihood; each family of pairs has the same weight."""
    counts = Counter(families)
    weights = np.array([1 / counts[family] for family in families]) / len(counts)
    truth, rows = np.asarray(grades), np.arange(len(grades))

    def loss(parameters: Floats) -> float:
        scaled = log_softmax(logits / np.exp(parameters[0]) + parameters[1:], axis=1)
        return float(-scaled[rows, truth] @ weights + 1e-3 * parameters[1:] @ parameters[1:])

    best = minimize(loss, np.zeros(1 + len(GRADES)), method="L-BFGS-B").x
    return Calibration(float(np.exp(best[0])), best[1:] - best[1:].mean())


def by_family(judged: Sequence[Judged], probabilities: Floats) -> dict[str, dict[str, float]]:
    """Return the metrics of each source family, of "products" (ESCI and Chorus) and of "all"."""
    result = {}
    for name, rows in source_groups(judged).items():
        evaluation = evaluation_of([judged[row] for row in rows], probabilities[rows])
        result[name] = {
            "pairs": len(rows),
            "queries": evaluation.queries,
            **evaluation.metrics(),
            "ndcg10_random_order": evaluation.random_order_ndcg10(),
        }
    return result


def left_out(
    model: Learner, tokenizer: PairTokenizer, judged: Sequence[Judged], families: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return how the model ranks the sources that took no part in its training."""
    rows = [row for row in judged if source_family(row.source) in families]
    started = time.monotonic()
    logits = logits_of(model, tokenizer, rows)
    log.info("scored %d pairs in %.0f s", len(rows), time.monotonic() - started)
    return by_family(rows, np.asarray(softmax(logits, axis=1)))
