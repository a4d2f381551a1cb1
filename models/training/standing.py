"""Measures a network in training on the validation pairs and keeps the best epoch."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from models.checkpoint.tokenizer import PairTokenizer
from models.learner import Learner
from models.quality.evaluation import evaluation_of
from models.quality.labelled import LabelledPair
from models.training.batches import logits_of, targets
from models.training.job import Options
from models.training.loop import ordinal_loss, read_saved, save

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """The quality of the network at one time.

    loss: the training loss on the validation pairs. metrics: those of models.quality.evaluation.
    """

    loss: float
    metrics: dict[str, float]

    @property
    def order(self) -> tuple[float, float]:
        """Return a key that is larger if better: mean of Spearman and NDCG@10 if defined, then the loss."""
        ranking = [self.metrics[name] for name in ("spearman", "ndcg10") if np.isfinite(self.metrics[name])]
        return float(np.mean(ranking)) if ranking else -1.0, -self.loss


@dataclass(slots=True)
class Best:
    """The weights of the epoch that did best on the validation pairs, and how good they are."""

    path: Path
    standing: Standing | None = None
    epoch: int = 0


def loss_on(logits: np.ndarray, pairs: Sequence[LabelledPair], options: Options) -> float:
    """Return the training loss of logits, (n, grades), on these pairs."""
    labels, weights = targets(pairs, options)
    loss = ordinal_loss(torch.from_numpy(logits), labels, weights, distance_weight=options.distance_weight)
    return float(loss)


def standing(
    model: Learner, tokenizer: PairTokenizer, validation: Sequence[LabelledPair], options: Options
) -> Standing:
    """Measure the model on the validation pairs."""
    logits = logits_of(model, tokenizer, validation)
    metrics = evaluation_of(validation, softmax(logits, axis=1)).metrics()
    return Standing(loss_on(logits, validation, options), metrics)


def keep_if_best(
    model: Learner,
    tokenizer: PairTokenizer,
    validation: Sequence[LabelledPair],
    options: Options,
    best: Best,
    epoch: int,
) -> None:
    """Measure an epoch on the validation pairs; keep its weights if no epoch before was better."""
    now = standing(model, tokenizer, validation, options)
    report(f"epoch {epoch}", now)
    if best.standing is None and best.path.exists():  # a resumed run
        saved = read_saved(best.path)
        best.standing, best.epoch = Standing(saved["loss"], saved["metrics"]), saved["epoch"]
    if best.standing is None or now.order > best.standing.order:
        best.standing, best.epoch = now, epoch
        save({"model": model.state_dict(), "epoch": epoch, **asdict(now)}, best.path)


def report(when: str, now: Standing) -> None:
    """Log a standing."""
    log.info(
        "%s: validation loss %.4f  qwk %.4f  spearman %.4f  ndcg10 %.4f",
        *(when, now.loss, *(now.metrics[name] for name in ("qwk", "spearman", "ndcg10"))),
    )


def fitted_temperature(truth: np.ndarray, logits: np.ndarray) -> float:
    """Return the temperature from 0.2 to 5 with the least negative log-likelihood.

    truth: (n,) grades; logits: (n, grades).
    """

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / np.exp(log_temperature), axis=1)
        return -float(scaled[np.arange(len(truth)), truth].sum())

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.2), np.log(5.0)), method="bounded").x))
