"""Fine-tunes a classifier on somebody's own labelled pairs: `headroom train`.

Starts from a checkpoint of any family, a classifier or a plain encoder; keeps the epoch that
ranks the validation queries best, calibrates its temperature there, and writes it with metrics.json.
"""

import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from torch import Tensor

from models.checkpoint.config import read_raw
from models.checkpoint.files import put_in_place, readable_as_usual
from models.checkpoint.tensors import read_tensors
from models.checkpoint.tokenizer import PairTokenizer, load_tokenizer
from models.classifier import Classifier
from models.compress.prune import write_checkpoint
from models.device import resolve_device
from models.learner import Learner
from models.quality.evaluation import evaluation_of, intervals
from models.quality.labelled import LabelledPair
from models.training.batches import epoch_of, logits_of, targets
from models.training.job import Job, Options, mark_run, prepare
from models.training.loop import Batch, Progress, ordinal_loss, read_saved, save, train
from models.training.plan import plan_for

log = logging.getLogger(__name__)

LOSS_PAIRS = 2_000
"""The loss before and after is measured on so many training pairs, the first ones of the file."""

CHECKPOINT_SECONDS = 10.0
"""A user who stops a run loses little more than this, unless the model is large."""


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


def tune(job: Job | Options) -> dict[str, Any]:
    """Train, write the checkpoint, and return the content of its metrics.json.

    A run that was killed goes on, to the same weights, when it is started again with the same options and
    files; its state is in `<out>.training/` until it is done. Raises ModelError for wrong data, options
    or checkpoints.
    """
    job = job if isinstance(job, Job) else prepare(job)
    options, training = job.options, job.training
    model = start(job).to(resolve_device(options.device))
    tokenizer = load_tokenizer(*job.base).within(options.max_tokens)
    mark_run(job)
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in training])
    plan = plan_for(
        [len(pair) for pair in encoded],
        width=model.config.hidden_size,
        epochs=options.epochs,
        rate=options.rate,
    )
    log.info(
        "%d steps: %d epochs of %d batches of up to %d tokens; learning rate up to %.2g",
        *(plan.steps, plan.epochs, plan.batches, plan.batch_tokens, plan.rate),
    )
    best, sample = options.work / "best.pt", training[:LOSS_PAIRS]
    before = standing(model, tokenizer, job.validation, "start")
    losses = {"before": loss_on(logits_of(model, tokenizer, sample), sample)}
    labels, weights = targets(training, len(options.labels))

    def loss_of(batch: Batch) -> Tensor:
        return ordinal_loss(model(batch.pairs), batch.labels, batch.weights)

    def make_epoch(epoch: int) -> list[Batch]:
        seed = [options.seed, epoch]
        return epoch_of(encoded, labels, weights, batch_tokens=plan.batch_tokens, seed=seed)

    def after_step(progress: Progress) -> bool:
        epoch, rest = divmod(progress.step, plan.batches)
        if not rest:
            now = standing(model, tokenizer, job.validation, f"epoch {epoch}")
            keep_if_best(best, model, now, epoch)
        return not rest

    progress = train(
        model,
        loss_of,
        make_epoch,
        plan.schedule,
        options.progress,
        seed=options.seed,
        checkpoint_seconds=CHECKPOINT_SECONDS,
        after_step=after_step,
    )
    saved = read_saved(best)
    model.load_state_dict(saved["model"])
    after = Standing(saved["loss"], saved["metrics"])
    losses["after"] = loss_on(logits_of(model, tokenizer, sample), sample)
    learnt = {
        "steps": progress.step,
        "epochs": plan.epochs,
        "best_epoch": saved["epoch"],
        "batch_tokens": plan.batch_tokens,
        "rate": plan.rate,
        "loss": {"training": losses, "validation": {"before": before.loss, "after": after.loss}},
        "validation_before": before.metrics,
        "better": after.order > before.order,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
    }
    return finish(job, model, tokenizer, learnt)


def standing(
    model: Learner, tokenizer: PairTokenizer, validation: Sequence[LabelledPair], when: str
) -> Standing:
    """Measure the model on the validation pairs, and log it."""
    logits = logits_of(model, tokenizer, validation)
    metrics = evaluation_of(validation, softmax(logits, axis=1)).metrics()
    now = Standing(loss_on(logits, validation), metrics)
    figures = (metrics[name] for name in ("qwk", "spearman", "ndcg10"))
    log.info("%s: validation loss %.4f  qwk %.4f  spearman %.4f  ndcg10 %.4f", when, now.loss, *figures)
    return now


def loss_on(logits: np.ndarray, pairs: Sequence[LabelledPair]) -> float:
    """Return the training loss of logits, (n, grades), on these pairs."""
    return float(ordinal_loss(torch.from_numpy(logits), *targets(pairs, logits.shape[1])))


def keep_if_best(best: Path, model: Learner, now: Standing, epoch: int) -> None:
    """Save the weights of an epoch, unless those in the file are of one that was as good."""
    if best.exists():
        saved = read_saved(best)
        if Standing(saved["loss"], saved["metrics"]).order >= now.order:
            return
    save({"model": model.state_dict(), "epoch": epoch, **asdict(now)}, best)


def start(job: Job) -> Learner:
    """Return the model before training. What a plain encoder lacks of a classifier is random.

    The checkpoint's order of labels and its temperature are folded into its last layer, so that training goes
    on from the probabilities that the checkpoint serves.
    """
    labels, (directory, config) = job.options.labels, job.base
    torch.manual_seed(job.options.seed)
    graded = replace(config, labels=labels, label_order=tuple(range(len(labels))), temperature=1.0)
    tensors = read_tensors(directory, graded, new_classifier=True)
    if len(config.labels) == len(labels):
        for name in filter(tensors.__contains__, ("classifier.weight", "classifier.bias")):
            tensors[name] = tensors[name].float()[list(config.label_order)] / config.temperature
    raw = read_raw(directory)
    return Learner(
        graded,
        tensors,
        dropout=_rate(raw, "hidden_dropout_prob", "dropout", "mlp_dropout"),
        attention_dropout=_rate(raw, "attention_probs_dropout_prob", "attention_dropout"),
    )


def _rate(raw: Mapping[str, Any], *names: str) -> float:
    """Return the rate of dropout that a config.json has under one of these names, else 0."""
    return next((float(raw[name]) for name in names if name in raw), 0.0)


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
    ours = read_raw(job.base[0]).get("headroom") or {}
    ours = {name: value for name, value in ours.items() if name != "label_order"}
    write_learner(draft, model, job.base[0], headroom={**ours, "temperature": temperature})
    scores = Classifier.load(draft, options.device).score([(pair.query, pair.title) for pair in validation])
    evaluation = evaluation_of(validation, scores.probabilities)
    metrics = {
        "schema": 1,
        "validation": evaluation.metrics(),
        "validation_intervals": intervals(evaluation, seed=options.seed),
        "validation_queries": evaluation.queries,
        "ndcg10_random_order": evaluation.random_order_ndcg10(),
        "temperature": temperature,
        **learnt,
        "options": {name: str(value) for name, value in asdict(options).items()},
    }
    written = orjson.dumps(metrics, option=orjson.OPT_INDENT_2)  # an undefined figure becomes null
    (draft / "metrics.json").write_bytes(written + b"\n")
    readable_as_usual(draft)
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
