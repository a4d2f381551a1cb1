"""Tunes the pretrained base on graded pairs, and calibrates it on the validation folds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from models.training.data import GRADES
from models.training.loop import Batch, Progress, Schedule, ordinal_loss, ranking_loss, train
from models.training.plan import grouped
from models.training.shipped.judged import Judged, source_groups
from models.training.shipped.mixture import Group, Sources, mixed_groups

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

TITLED_FIRST = Phase(
    2000,
    1.5e-4,
    {
        "ranked": 0.32,
        "others": 0.12,
        "numbers": 0.03,
        "titled": 0.20,
        "movies": 0.06,
        "strangers": 0.04,
        "english": 0.115,
        "korean": 0.045,
        "chinese": 0.045,
        "questions": 0.025,
    },
)
TITLED_SECOND = Phase(
    1000,
    1.2e-4,
    {
        "ranked": 0.22,
        "others": 0.11,
        "numbers": 0.025,
        "titled": 0.16,
        "movies": 0.04,
        "strangers": 0.03,
        "english": 0.135,
        "korean": 0.065,
        "chinese": 0.065,
        "unrelated": 0.11,
        "questions": 0.04,
    },
)


@dataclass(frozen=True, slots=True)
class Training:
    """One training of the base, phase by phase. share: of its weights in the model's."""

    share: float
    batch_tokens: int
    phases: Sequence[Phase]


TRAININGS: Sequence[Training] = (
    Training(0.72, 4096, (FIRST, SECOND)),
    Training(0.28, 2048, (TITLED_FIRST, TITLED_SECOND)),
)
"""The model is the mean of two trainings' weights ("Model soups", Wortsman et al. 2022): it ranks better than
either. docs/model-card.md says how the shares were chosen."""

JUDGED_SHARES = {"esci": 0.40, "chorus": 0.27, "dbpedia": 0.15, "socrata": 0.18}
"""How often each judged source is drawn."""

# docs/model-card.md says how these were chosen.
DECAY = 0.8
MAX_TOKENS = 128
PAIRS_PER_ROUND = 2560
RANKING_WEIGHT = 0.5


def untuned(base: Path) -> Learner:
    """Return the base with a new classifier of the grades; its word embeddings take no part in training.

    So words of languages that are not trained on keep their meaning. There is no dropout: made-up pairs never
    repeat.
    """
    torch.manual_seed(0)
    config = replace(read_config(base), labels=GRADES, label_order=tuple(range(len(GRADES))))
    model = Learner(config, read_tensors(base, config, new_classifier=True))
    model.weight("bert.embeddings.word_embeddings.weight").requires_grad_(False)
    return model


def tuned(
    model: Learner, tokenizer: PairTokenizer, sources: Sources, training: Training, work: Path
) -> list[Progress]:
    """Train the model in place, phase by phase; a run that was killed goes on from `work`."""

    def loss_of(batch: Batch) -> Tensor:
        logits = model(batch.pairs)
        assert batch.groups is not None
        ranking = ranking_loss(logits, batch.labels, batch.groups)
        return ordinal_loss(logits, batch.labels, batch.weights) + RANKING_WEIGHT * ranking

    def progress_of(number: int, phase: Phase) -> Progress:
        def make_round(index: int) -> list[Batch]:
            groups = mixed_groups(sources, phase.shares, count=PAIRS_PER_ROUND, seed=number, index=index)
            return batches_of(groups, tokenizer, batch_tokens=training.batch_tokens, seed=index)

        schedule = Schedule(steps=phase.steps, rate=phase.rate, decay=DECAY)
        return train(model, loss_of, make_round, schedule, work / f"progress-{number + 1}.pt", seed=number)

    return [progress_of(number, phase) for number, phase in enumerate(training.phases)]


def averaged(models: Sequence[Learner], shares: Sequence[float]) -> Learner:
    """Return the first model with the mean of all models' weights. shares: they sum to 1."""
    with torch.no_grad():
        for name, weight in models[0].named_parameters():
            parts = [share * model.get_parameter(name) for model, share in zip(models, shares, strict=True)]
            weight.copy_(torch.stack(parts).sum(0))
    return models[0]


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
