"""Fine-tunes a classifier on a user's labelled pairs: `headroom train`.

Starts from a checkpoint of any family, a classifier or a plain encoder; keeps the epoch that
ranks the validation queries best, calibrates its temperature there, and writes it with metrics.json. Its
figures are of queries that had no part in these choices (`chosen_by_other_half`).
"""

import logging
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headroom.models.checkpoint.config import classifier_fields, read_config, read_raw
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer, load_tokenizer
from headroom.models.compress.prune import write_checkpoint
from headroom.models.device import resolve_device
from headroom.models.files import Json
from headroom.models.learner import Learner
from headroom.models.quality.bootstrap import resample
from headroom.models.quality.calibration import fit_grades, judged_folds
from headroom.models.quality.evaluation import Evaluation, changes_of, intervals_of
from headroom.models.quality.graded import evaluation_of
from headroom.models.quality.labelled import LabelledPair
from headroom.models.scores import Scores
from headroom.models.training.job import TrainingOptions, TrainingRun
from headroom.models.training.loop import (
    REPORT_SECONDS,
    Batch,
    Progress,
    Schedule,
    grouped,
    logits_of,
    ordinal_loss,
    read_saved,
    save,
    targets,
    train,
)
from headroom.models.training.state import at_work, publish

log = logging.getLogger(__name__)

LOSS_PAIRS = 2_000
"""The training loss before and after is measured on the first pairs of the file."""

MIN_STEPS = 150
EPOCHS = 3
BATCH_TOKENS = 4096
"""Padded tokens of a batch, if there are enough pairs for MIN_STEPS such batches in EPOCHS."""

MIN_BATCH_PAIRS = 16
"""At least this many pairs of mean length fit into a batch."""

RATE = 5e-5
WIDTH = 768
"""The usual peak rate of a network as wide as BERT-base. With Adam, the best rate is in inverse proportion to
the width (Yang et al. 2022, "Tensor Programs V")."""

WARM_UP = 0.1
DECAY = 0.9
"""Shares of the steps: the rate rises over the first tenth and falls to 0 over the others."""

RANKING = ("spearman", "ndcg10")
"""The metrics whose mean chooses the best epoch."""

RESAMPLES = 2000

ENCODED_PAIRS = 10_000
"""Pairs that are tokenized between two looks at the clock."""


def tune(run: TrainingRun) -> Json:
    """Train, write the checkpoint, and return the content of its metrics.json.

    A run that was killed goes on, to the same weights, when it is started again with the same options and
    files; its state is in `<out>.training/` until it is done.
    """
    options = run.options
    model = start(run.base, options.labels, options.seed).to(resolve_device(options.device))
    tokenizer = load_tokenizer(run.base, model.config).within(options.max_tokens)
    with at_work(options.work, run.fingerprint):
        return _tuned(run, model, tokenizer)


def _tuned(run: TrainingRun, model: Learner, tokenizer: PairTokenizer) -> Json:
    options = run.options
    pairs = encoded(tokenizer, run.training)
    steps = planned([len(pair) for pair in pairs], model, options)
    sample = run.training[:LOSS_PAIRS]
    before = measure(model, tokenizer, run.validation, "start")
    before_on_sample = logits_of(model, tokenizer, sample)
    progress = train_epochs(run, model, tokenizer, pairs, steps)
    best = read_saved(options.work / "best.pt")
    model.load_state_dict(best["model"])
    after_on_sample = logits_of(model, tokenizer, sample)
    files = (_epoch_file(options, epoch) for epoch in range(1, steps.epochs + 1))
    epochs = [read_saved(file)["logits"].numpy() for file in files]
    after = chosen_by_other_half(epochs, run.validation)
    metrics = {
        "schema": 1,
        **report(before, after, run.validation, options.seed),
        "loss": {
            "training": losses(before_on_sample, after_on_sample, sample),
            "validation": losses(before, after, run.validation),
        },
        "temperature": fitted_temperature(run.validation, epochs[best["epoch"] - 1]),
        "best_epoch": best["epoch"],
        "epochs": steps.epochs,
        "batch_tokens": steps.batch_tokens,
        "rate": steps.schedule.rate,
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
        "options": {name: str(value) for name, value in asdict(options).items()},
    }
    return finish(run, model, metrics)


def encoded(tokenizer: PairTokenizer, pairs: Sequence[LabelledPair]) -> list[EncodedPair]:
    """Return the pairs, tokenized, and log how many are done if it takes long."""
    done = list[EncodedPair]()
    logged_at = time.monotonic()
    for start in range(0, len(pairs), ENCODED_PAIRS):
        portion = pairs[start : start + ENCODED_PAIRS]
        done += tokenizer.encode([(pair.query, pair.title) for pair in portion])
        if time.monotonic() - logged_at >= REPORT_SECONDS:
            logged_at = time.monotonic()
            log.info("tokenizing: %d/%d pairs", len(done), len(pairs))
    return done


class Steps(NamedTuple):
    """The steps of a run. batches: of each epoch, one a step. batch_tokens: padded, of each batch."""

    schedule: Schedule
    batches: int
    batch_tokens: int

    @property
    def epochs(self) -> int:
        """Return the number of epochs."""
        return self.schedule.steps // self.batches


def planned(lengths: Sequence[int], model: Learner, options: TrainingOptions) -> Steps:
    """Choose steps and rate for pairs of these lengths, and log them.

    A step on a few dozen pairs moves a network as far as one on hundreds, and too few steps teach it nothing:
    with 200 pairs in one batch, three epochs are three steps. So few pairs are cut into more batches and
    trained on for more epochs (Zhang et al. 2021, "Revisiting Few-sample BERT Fine-tuning"; Mosbach et al.
    2021, "On the Stability of Fine-tuning BERT", who also warm up over the first tenth of the steps).
    """
    enough = sum(lengths) * EPOCHS // MIN_STEPS
    batch_tokens = min(BATCH_TOKENS, max(enough, MIN_BATCH_PAIRS * sum(lengths) // len(lengths)))
    batches = len(grouped(lengths, batch_tokens=batch_tokens))
    count = batches * (options.epochs or max(EPOCHS, math.ceil(MIN_STEPS / batches)))
    rate = options.rate or RATE * WIDTH / model.config.hidden_size
    schedule = Schedule(count, rate, warmup=max(1, math.ceil(WARM_UP * count)), decay=DECAY)
    steps = Steps(schedule, batches, batch_tokens)
    log.info(
        "%d steps: %d epochs of %d batches of up to %d tokens; learning rate up to %.2g",
        count,
        steps.epochs,
        batches,
        batch_tokens,
        rate,
    )
    return steps


def train_epochs(
    run: TrainingRun, model: Learner, tokenizer: PairTokenizer, pairs: Sequence[EncodedPair], steps: Steps
) -> Progress:
    """Train on the run's encoded pairs. After each epoch, measure it and keep the best one's weights."""
    options = run.options
    labels, weights = targets(run.training, len(options.labels))

    def loss_of(batch: Batch) -> Tensor:
        return ordinal_loss(model(batch.pairs), batch.labels, batch.weights)

    def make_epoch(epoch: int) -> list[Batch]:
        rng = np.random.default_rng([options.seed, epoch])
        shuffled = rng.permutation(len(pairs))  # pairs of equal length meet others in each epoch
        groups = grouped([len(pairs[row]) for row in shuffled], batch_tokens=steps.batch_tokens)
        batches = []
        for index in rng.permutation(len(groups)):
            rows = shuffled[groups[index]].tolist()
            batches.append(Batch([pairs[row] for row in rows], labels[rows], weights[rows]))
        return batches

    def after_step(progress: Progress) -> None:
        epoch, steps_into_epoch = divmod(progress.step, steps.batches)
        if steps_into_epoch == 0:
            logits = measure(model, tokenizer, run.validation, f"epoch {epoch}")
            save({"logits": torch.from_numpy(logits)}, _epoch_file(options, epoch))
            keep_if_best(options.work / "best.pt", model, order(logits, run.validation), epoch)

    return train(
        model,
        loss_of,
        make_epoch,
        steps.schedule,
        options.work / "progress.pt",
        seed=options.seed,
        after_step=after_step,
    )


def chosen_by_other_half(epochs: Sequence[np.ndarray], pairs: Sequence[LabelledPair]) -> np.ndarray:
    """Return the logits of the pairs, (n, grades), each under an epoch and temperature it had no part in.

    Figures on the pairs that chose the best of many epochs are too good. So the queries are halved, and each
    half is measured with the epoch and the temperature that the other half chooses (cross-fitting).
    epochs: the logits after each epoch. A single query has no other half and gets the last epoch's.
    """
    logits = epochs[-1].copy()
    for judged_half in judged_folds(pairs, folds=2):
        choosing = np.flatnonzero(~judged_half)
        judges = [pairs[row] for row in choosing.tolist()]
        best = max(epochs, key=lambda epoch: order(epoch[choosing], judges))
        logits[judged_half] = best[judged_half] / fitted_temperature(judges, best[choosing])
    return logits


def report(before: np.ndarray, after: np.ndarray, pairs: Sequence[LabelledPair], seed: int) -> Json:
    """Return the figures of the logits before and after the training, (n, grades), and of their change.

    better: whether the interval of the change of NDCG@10, or of Spearman's correlation where no query has an
    NDCG, is above 0.
    """
    first = judged(before, pairs)
    last = judged(after, pairs)
    counts = resample(last.clusters, RESAMPLES, seed)
    draws = last.draws(counts)
    change = changes_of(first.draws(counts), draws, counts)
    ranks = "ndcg10" if np.isfinite(change["ndcg10"].value) else "spearman"
    return {
        "validation": last.metrics(),
        "validation_intervals": intervals_of(draws, counts),
        "validation_before": first.metrics(),
        "validation_change": change,
        "validation_queries": last.queries,
        "validation_measured": "each half of the queries with the epoch and temperature of the other half",
        "ndcg10_random_order": last.random_order_ndcg10(),
        "better": change[ranks].low > 0,
    }


def _epoch_file(options: TrainingOptions, epoch: int) -> Path:
    return options.work / "epochs" / f"{epoch}.pt"


def measure(
    model: Learner, tokenizer: PairTokenizer, validation: Sequence[LabelledPair], when: str
) -> np.ndarray:
    """Return the model's logits on the validation pairs, and log what they are worth."""
    logits = logits_of(model, tokenizer, validation)
    metrics = judged(logits, validation).metrics()
    figures = (metrics[name] for name in ("qwk", "spearman", "ndcg10"))
    loss = loss_on(logits, validation)
    log.info("%s: validation loss %.4f  qwk %.4f  spearman %.4f  ndcg10 %.4f", when, loss, *figures)
    return logits


def judged(logits: np.ndarray, pairs: Sequence[LabelledPair]) -> Evaluation:
    """Return the evaluation of logits, (n, grades), of these pairs."""
    return evaluation_of(pairs, Scores.from_logits(logits))


def order(logits: np.ndarray, pairs: Sequence[LabelledPair]) -> tuple[float, float]:
    """Return a key that is larger if better: mean of Spearman and NDCG@10 if defined, then the loss."""
    metrics = judged(logits, pairs).metrics()
    ranking = [metrics[name] for name in RANKING if np.isfinite(metrics[name])]
    return float(np.mean(ranking)) if ranking else -1.0, -loss_on(logits, pairs)


def loss_on(logits: np.ndarray, pairs: Sequence[LabelledPair]) -> float:
    """Return the training loss of logits, (n, grades), on these pairs."""
    return float(ordinal_loss(torch.from_numpy(logits), *targets(pairs, logits.shape[1])))


def losses(before: np.ndarray, after: np.ndarray, pairs: Sequence[LabelledPair]) -> dict[str, float]:
    """Return the training loss of the logits before and after the training."""
    return {"before": loss_on(before, pairs), "after": loss_on(after, pairs)}


def keep_if_best(file: Path, model: Learner, key: tuple[float, float], epoch: int) -> None:
    """Save the weights of an epoch, unless those in the file are of one that was as good. key: `order`'s."""
    if not file.exists() or tuple(read_saved(file)["order"]) < key:
        save({"model": model.state_dict(), "epoch": epoch, "order": key}, file)


def start(base: Path, labels: Sequence[str], seed: int) -> Learner:
    """Return a checkpoint's model before training. What a plain encoder lacks of a classifier is random.

    The checkpoint's order of labels and its calibration are folded into its last layer, so that training goes
    on from the probabilities that the checkpoint serves; a decoder's last layer has no bias to take one up.
    """
    torch.manual_seed(seed)
    config = read_config(base)
    raw = read_raw(base)
    graded = replace(
        config,
        labels=tuple(labels),
        label_order=tuple(range(len(labels))),
        is_order_known=True,
        temperature=1.0,
        bias=(0.0,),
        score_activation="softmax",
    )
    tensors = read_tensors(base, graded, new_classifier=True)
    if len(config.labels) == len(labels):
        for name in {"classifier.weight", "classifier.bias"} & tensors.keys():
            tensors[name] = tensors[name].float()[list(config.label_order)] / config.temperature
        if "classifier.bias" in tensors:
            tensors["classifier.bias"] += torch.tensor(config.bias)

    def rate(*names: str) -> float:
        for name in names:
            if name in raw:
                return float(raw[name])
        return 0.0

    return Learner(
        graded,
        tensors,
        dropout=rate("hidden_dropout_prob", "dropout", "mlp_dropout"),
        attention_dropout=rate("attention_probs_dropout_prob", "attention_dropout"),
    )


def fitted_temperature(pairs: Sequence[LabelledPair], logits: np.ndarray) -> float:
    """Return the temperature from 0.2 to 5 with the least negative log-likelihood. logits: (n, grades)."""
    grades = np.array([pair.grade for pair in pairs])
    return float(np.clip(fit_grades(logits, grades, with_bias=False).temperature, 0.2, 5.0))


def finish(run: TrainingRun, model: Learner, metrics: Json) -> Json:
    """Write the checkpoint with its metrics.json, and return the content of that. metrics: its entries."""
    options = run.options
    draft = options.work / "checkpoint"
    shutil.rmtree(draft, ignore_errors=True)
    ours = read_raw(run.base).get("headroom") or {}
    ours = {name: value for name, value in ours.items() if name != "bias"}
    write_learner(draft, model, run.base, headroom={**ours, "temperature": metrics["temperature"]})
    return publish(draft, options.out, options.work, metrics)


def write_learner(target: Path, model: Learner, source: Path, **fields: Any) -> None:
    """Write the classifier that a checkpoint became. fields: of config.json, where it differs."""
    raw = read_raw(source)
    write_checkpoint(
        source,
        target,
        {name: tensor.detach().cpu() for name, tensor in model.tensors().items()},
        model.config,
        **classifier_fields(raw, model.config.labels),
        **{
            "torch_dtype" if "torch_dtype" in raw else "dtype": "float32",
            **fields,
        },
    )
