"""Fine-tunes a classifier on somebody's own labelled pairs: `headroom train`.

Starts from a checkpoint of any family, a classifier or a plain encoder; keeps the epoch that
ranks the validation queries best, calibrates its temperature there, and writes it with metrics.json.
"""

import json
import logging
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from torch import Tensor

from models.checkpoint.config import read_config, read_raw
from models.checkpoint.files import put_in_place
from models.checkpoint.tensors import read_tensors
from models.checkpoint.tokenizer import PairTokenizer, load_tokenizer
from models.classifier import Classifier
from models.compress.prune import write_checkpoint
from models.device import resolve_device
from models.files import write_whole
from models.learner import Learner
from models.quality.evaluation import Evaluation, intervals
from models.quality.labelled import LabelledPair
from models.training.job import MARK, Job, Options, prepare
from models.training.loop import (
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

log = logging.getLogger(__name__)

LOSS_PAIRS = 2_000
"""The loss before and after is measured on so many training pairs, the first ones of the file."""

LEAST_STEPS = 150
EPOCHS = 3
BATCH_TOKENS = 4096
"""Padded tokens of a batch, if there are enough pairs for LEAST_STEPS such batches in EPOCHS."""

LEAST_PAIRS = 16
"""So many pairs of mean length fit into the smallest batch."""

RATE, WIDTH = 5e-5, 768
"""The usual peak rate of a network as wide as BERT-base. With Adam, the best rate is in inverse proportion to
the width (Yang et al. 2022, "Tensor Programs V")."""

WARM_UP, DECAY = 0.1, 0.9
"""Shares of the steps: the rate rises over the first tenth and falls to 0 over the others."""


def tune(job: Job | Options) -> dict[str, Any]:
    """Train, write the checkpoint, and return the content of its metrics.json.

    A run that was killed goes on, to the same weights, when it is started again with the same options and
    files; its state is in `<out>.training/` until it is done. Raises ModelError for wrong data, options
    or checkpoints.
    """
    job = job if isinstance(job, Job) else prepare(job)
    options, training = job.options, job.training
    model = start(job.base, options.labels, options.seed).to(resolve_device(options.device))
    tokenizer = load_tokenizer(job.base, model.config).within(options.max_tokens)
    write_whole(options.work / MARK, json.dumps(job.mark, indent=1).encode())  # `prepare` compares it
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in training])
    schedule, batches, batch_tokens = planned([len(pair) for pair in encoded], model, options)
    epochs = schedule.steps // batches
    log.info(
        "%d steps: %d epochs of %d batches of up to %d tokens; learning rate up to %.2g",
        *(schedule.steps, epochs, batches, batch_tokens, schedule.rate),
    )
    best, sample = options.work / "best.pt", training[:LOSS_PAIRS]
    before = standing(model, tokenizer, job.validation, "start")
    losses = {"before": loss_on(logits_of(model, tokenizer, sample), sample)}
    whole = Batch(encoded, *targets(training, len(options.labels)), torch.zeros(len(encoded)))

    def loss_of(batch: Batch) -> Tensor:
        return ordinal_loss(model(batch.pairs), batch.labels, batch.weights)

    def make_epoch(epoch: int) -> list[Batch]:
        rng = np.random.default_rng([options.seed, epoch])
        rows = rng.permutation(len(encoded)).tolist()  # pairs of equal length meet others in each epoch
        return whole.split([[row] for row in rows], batch_tokens=batch_tokens, rng=rng)

    def after_step(progress: Progress) -> None:
        epoch, rest = divmod(progress.step, batches)
        if not rest:
            now = standing(model, tokenizer, job.validation, f"epoch {epoch}")
            keep_if_best(best, model, now, epoch)

    progress = train(
        model,
        loss_of,
        make_epoch,
        schedule,
        options.work / "progress.pt",
        seed=options.seed,
        after_step=after_step,
    )
    saved = read_saved(best)
    model.load_state_dict(saved["model"])
    after = saved["metrics"]
    losses["after"] = loss_on(logits_of(model, tokenizer, sample), sample)
    learnt = {
        "steps": progress.step,
        "epochs": epochs,
        "best_epoch": saved["epoch"],
        "batch_tokens": batch_tokens,
        "rate": schedule.rate,
        "loss": {"training": losses, "validation": {"before": before["loss"], "after": after["loss"]}},
        "validation_before": before,
        "better": order(after) > order(before),
        "tokens": progress.tokens,
        "seconds": progress.seconds,
    }
    return finish(job, model, tokenizer, learnt)


def planned(lengths: Sequence[int], model: Learner, options: Options) -> tuple[Schedule, int, int]:
    """Choose steps and rate, batches per epoch, and padded tokens per batch for pairs of these lengths.

    A step on a few dozen pairs moves a network as far as one on hundreds, and too few steps teach it nothing:
    with 200 pairs in one batch, three epochs are three steps. So few pairs are cut into more batches and
    trained on for more epochs (Zhang et al. 2021, "Revisiting Few-sample BERT Fine-tuning"; Mosbach et al.
    2021, "On the Stability of Fine-tuning BERT", who also warm up over the first tenth of the steps).
    """
    enough = sum(lengths) * EPOCHS // LEAST_STEPS
    batch_tokens = min(BATCH_TOKENS, max(enough, LEAST_PAIRS * sum(lengths) // len(lengths)))
    batches = len(grouped(lengths, batch_tokens=batch_tokens))
    steps = batches * (options.epochs or max(EPOCHS, math.ceil(LEAST_STEPS / batches)))
    rate = options.rate or RATE * WIDTH / model.config.hidden_size
    schedule = Schedule(steps, rate, warmup=max(1, math.ceil(WARM_UP * steps)), decay=DECAY)
    return schedule, batches, batch_tokens


def standing(
    model: Learner, tokenizer: PairTokenizer, validation: Sequence[LabelledPair], when: str
) -> dict[str, float]:
    """Return the metrics of models.quality.evaluation and the loss on the validation pairs, and log them."""
    logits = logits_of(model, tokenizer, validation)
    metrics = Evaluation(validation, softmax(logits, axis=1)).metrics()
    metrics["loss"] = loss_on(logits, validation)
    figures = (metrics[name] for name in ("loss", "qwk", "spearman", "ndcg10"))
    log.info("%s: validation loss %.4f  qwk %.4f  spearman %.4f  ndcg10 %.4f", when, *figures)
    return metrics


def loss_on(logits: np.ndarray, pairs: Sequence[LabelledPair]) -> float:
    """Return the training loss of logits, (n, grades), on these pairs."""
    return float(ordinal_loss(torch.from_numpy(logits), *targets(pairs, logits.shape[1])))


def order(metrics: Mapping[str, float]) -> tuple[float, float]:
    """Return a key that is larger if better: mean of Spearman and NDCG@10 if defined, then the loss."""
    ranking = [metrics[name] for name in ("spearman", "ndcg10") if np.isfinite(metrics[name])]
    return float(np.mean(ranking)) if ranking else -1.0, -metrics["loss"]


def keep_if_best(best: Path, model: Learner, metrics: dict[str, float], epoch: int) -> None:
    """Save the weights of an epoch, unless those in the file are of one that was as good."""
    if not best.exists() or order(read_saved(best)["metrics"]) < order(metrics):
        save({"model": model.state_dict(), "epoch": epoch, "metrics": metrics}, best)


def start(base: Path, labels: Sequence[str], seed: int) -> Learner:
    """Return a checkpoint's model before training. What a plain encoder lacks of a classifier is random.

    The checkpoint's order of labels and its temperature are folded into its last layer, so that training goes
    on from the probabilities that the checkpoint serves.
    """
    torch.manual_seed(seed)
    config, raw = read_config(base), read_raw(base)
    graded = replace(config, labels=tuple(labels), label_order=tuple(range(len(labels))), temperature=1.0)
    tensors = read_tensors(base, graded, new_classifier=True)
    if len(config.labels) == len(labels):
        for name in filter(tensors.__contains__, ("classifier.weight", "classifier.bias")):
            tensors[name] = tensors[name].float()[list(config.label_order)] / config.temperature

    def rate(*names: str) -> float:
        return next((float(raw[name]) for name in names if name in raw), 0.0)

    return Learner(
        graded,
        tensors,
        dropout=rate("hidden_dropout_prob", "dropout", "mlp_dropout"),
        attention_dropout=rate("attention_probs_dropout_prob", "attention_dropout"),
    )


def fitted_temperature(truth: np.ndarray, logits: np.ndarray) -> float:
    """Return the temperature from 0.2 to 5 with the least negative log-likelihood.

    truth: (n,) grades; logits: (n, grades).
    """

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / np.exp(log_temperature), axis=1)
        return -float(scaled[np.arange(len(truth)), truth].sum())

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.2), np.log(5.0)), method="bounded").x))


def finish(job: Job, model: Learner, tokenizer: PairTokenizer, learnt: dict[str, Any]) -> dict[str, Any]:
    """Calibrate the model, write the checkpoint, and measure it as it was written.

    learnt: further entries of metrics.json. Returns the content of metrics.json.
    """
    options, validation = job.options, job.validation
    truth = np.array([pair.grade for pair in validation])
    temperature = fitted_temperature(truth, logits_of(model, tokenizer, validation))
    draft = options.work / "checkpoint"
    shutil.rmtree(draft, ignore_errors=True)
    ours = read_raw(job.base).get("headroom") or {}
    ours = {name: value for name, value in ours.items() if name != "label_order"}
    write_learner(draft, model, job.base, headroom={**ours, "temperature": temperature})
    scores = Classifier.load(draft, options.device).score([(pair.query, pair.title) for pair in validation])
    evaluation = Evaluation(validation, scores.probabilities)
    metrics = {
        "schema": 1,
        "validation": evaluation.metrics(),
        "validation_intervals": intervals(evaluation, resamples=2000, seed=options.seed),
        "validation_queries": evaluation.queries,
        "ndcg10_random_order": evaluation.random_order_ndcg10(),
        "temperature": temperature,
        **learnt,
        "options": {name: str(value) for name, value in asdict(options).items()},
    }
    written = orjson.dumps(metrics, option=orjson.OPT_INDENT_2)  # an undefined figure becomes null
    (draft / "metrics.json").write_bytes(written + b"\n")
    put_in_place(draft, options.out)
    shutil.rmtree(options.work)
    plain: dict[str, Any] = orjson.loads(written)
    return plain


def write_learner(target: Path, model: Learner, source: Path, **fields: Any) -> None:
    """Write the classifier that a checkpoint became. fields: of config.json, where it differs."""
    labels, raw = model.config.labels, read_raw(source)
    write_checkpoint(
        source,
        target,
        {name: tensor.detach().cpu() for name, tensor in model.tensors().items()},
        model.config,
        **{
            "architectures": [
                re.sub(r"(Model|For[A-Z]\w*)$", "ForSequenceClassification", name)
                for name in raw.get("architectures") or ()
            ],
            "id2label": dict(enumerate(labels)),
            "label2id": {name: grade for grade, name in enumerate(labels)},
            "num_labels": len(labels),
            "problem_type": None,  # the source may have been a regression
            "torch_dtype" if "torch_dtype" in raw else "dtype": "float32",
            **fields,
        },
    )
