"""Fine-tunes a classifier on somebody's own labelled pairs: `headroom train`.

Starts from a checkpoint of any family, a classifier or a plain encoder; keeps the epoch that
ranks the validation queries best, calibrates its temperature there, and writes it with metrics.json.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from models.checkpoint.config import read_raw
from models.checkpoint.families import FAMILIES
from models.checkpoint.files import copy_tokenizer, put_in_place, readable_as_usual
from models.checkpoint.modules import read_head
from models.checkpoint.tensors import read_tensors
from models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from models.checkpoint.tokenizer_files import read_window
from models.classifier import Classifier
from models.device import resolve_device
from models.quality.evaluation import intervals
from models.training.batches import Batch, Model, epoch_of, logits_of_batch
from models.training.job import Job, Options, mark_run, prepare
from models.training.loop import Progress, ordinal_loss, read_saved, train
from models.training.plan import Plan, plan_for
from models.training.standing import (
    Best,
    Standing,
    evaluation_of,
    fitted_temperature,
    keep_if_best,
    loss_on,
    report,
    scored,
    standing,
)

log = logging.getLogger(__name__)

LOSS_PAIRS = 2_000
"""The loss before and after is measured on so many training pairs, the first ones of the file."""

CHECKPOINT_SECONDS = 10.0
"""A user who stops a run loses little more than this, unless the model is large."""


def tune(job: Job | Options) -> dict[str, Any]:
    """Train, write the checkpoint, and return the content of its metrics.json.

    A run that was killed goes on, to the same weights, when it is started again with the same options and
    files; its state is in `<out>.training/` until it is done. Raises ModelError for wrong data, options
    or checkpoints.
    """
    job = job if isinstance(job, Job) else prepare(job)
    options, validation = job.options, job.validation
    model, tokenizer_files = start(job)
    model.to(resolve_device(options.device))
    window = min(options.max_tokens, read_window(*job.base))
    tokenizer = PairTokenizer.load(tokenizer_files, max_tokens=window, vocab_size=model.config.vocab_size)
    mark_run(job)
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in job.training])
    plan = plan_for(
        [len(pair) for pair in encoded],
        width=model.config.hidden_size,
        epochs=options.epochs,
        rate=options.rate,
        batch_tokens=options.batch_tokens,
    )
    log.info(
        "%d steps: %d epochs of %d batches of up to %d tokens; learning rate up to %.2g",
        *(plan.steps, plan.epochs, plan.batches, plan.batch_tokens, plan.rate),
    )
    best = Best(options.work / "best.pt")
    sample = job.training[:LOSS_PAIRS]
    before = standing(model, tokenizer, validation, options)
    loss_before = loss_on(model, tokenizer, sample, options)
    report("start", before)
    progress = _train(job, model, tokenizer, encoded, plan, best)
    saved = read_saved(best.path)
    model.load_state_dict(saved["model"])
    after = Standing(saved["loss"], saved["metrics"])
    learnt = {
        "steps": progress.step,
        "epochs": plan.epochs,
        "best_epoch": saved["epoch"],
        "batch_tokens": plan.batch_tokens,
        "rate": plan.rate,
        "loss": {
            "training": {"before": loss_before, "after": loss_on(model, tokenizer, sample, options)},
            "validation": {"before": before.loss, "after": after.loss},
        },
        "validation_before": before.metrics,
        "better": after.order > before.order,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
    }
    return finish(job, model, tokenizer, tokenizer_files, learnt)


def start(job: Job) -> tuple[Model, Path]:
    """Return the model before training, float32, and the directory of its tokenizer's files.

    The checkpoint's order of labels and its temperature are folded into its last layer, so that training goes
    on from the probabilities that the checkpoint serves.
    """
    options = job.options
    labels = dict(enumerate(options.labels))
    torch.manual_seed(options.seed)
    directory, config = job.base
    kind = CONFIG_MAPPING[config.family]
    model = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[kind].from_pretrained(
        directory,
        config=kind.from_dict(
            read_raw(directory)
            | {
                "id2label": labels,
                "label2id": {name: grade for grade, name in labels.items()},
                "problem_type": None,  # the base may have been a regression
            }
        ),
        ignore_mismatched_sizes=True,  # a new number of grades needs a new last layer
        dtype=torch.float32,
        attn_implementation="eager",  # trains twice as fast as sdpa on a CPU under bf16 autocast
    )
    if read_head(directory):  # transformers does not read the classifier of sentence-transformers' modules
        tensors = FAMILIES[config.family].theirs(read_tensors(directory, config), config)
        fitting = {name: t for name, t in model.state_dict().items() if t.shape == tensors[name].shape}
        model.load_state_dict({name: tensors[name] for name in fitting}, strict=False)
    if len(config.labels) == len(labels):
        with torch.no_grad():
            last = getattr(model.classifier, "out_proj", model.classifier)  # RoBERTa's has two layers
            for part in last.parameters():
                part.copy_(part[list(config.label_order)])
                part.div_(config.temperature)
    return model, directory


def _train(
    job: Job,
    model: Model,
    tokenizer: PairTokenizer,
    encoded: Sequence[EncodedPair],
    plan: Plan,
    best: Best,
) -> Progress:
    """Train the model in place and keep the best epoch. encoded: the training pairs."""
    options = job.options

    def loss_of(batch: Batch) -> Tensor:
        logits = logits_of_batch(model, batch)
        return ordinal_loss(logits, batch.labels, batch.weights, distance_weight=options.distance_weight)

    def after_step(progress: Progress) -> bool:
        if progress.step % plan.batches:
            return False
        keep_if_best(model, tokenizer, job.validation, options, best, progress.step // plan.batches)
        return True

    return train(
        model,
        loss_of,
        lambda epoch: epoch_of(encoded, job.training, options, plan, epoch),
        plan.schedule,
        options.progress,
        seed=options.seed,
        checkpoint_seconds=CHECKPOINT_SECONDS,
        after_step=after_step,
    )


def finish(
    job: Job, model: Model, tokenizer: PairTokenizer, tokenizer_files: Path, learnt: dict[str, Any]
) -> dict[str, Any]:
    """Calibrate the model, write the checkpoint, and measure it as it was written.

    learnt: further entries of metrics.json. Returns the content of metrics.json.
    """
    options, validation = job.options, job.validation
    truth = np.array([pair.grade for pair in validation])
    temperature = fitted_temperature(truth, scored(model, tokenizer, validation))
    model.config.headroom = {"temperature": temperature}
    draft = options.work / "checkpoint"
    shutil.rmtree(draft, ignore_errors=True)
    model.cpu().save_pretrained(draft)
    copy_tokenizer(tokenizer_files, draft)
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
