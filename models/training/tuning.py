"""Fine-tunes a classifier on somebody's own labelled pairs: `headroom train`.

Starts from a BERT checkpoint (a classifier or a plain encoder) or from nothing, keeps the epoch that ranks
the validation queries best, calibrates its temperature there, and writes a checkpoint with metrics.json.
"""

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import BertForSequenceClassification

from models.checkpoint import TOKENIZER_FILES
from models.classifier import Classifier
from models.config import ModelConfig, read_config
from models.device import resolve_device
from models.errors import ModelError, UnsupportedCheckpoint
from models.evaluation import Evaluation, as_json, intervals
from models.hub import locate
from models.labelled import LabelledPair, read_labelled
from models.tokenizer import EncodedPair, PairTokenizer
from models.training.batches import Batch, grouped, tokenized
from models.training.data import GRADES, graded_target
from models.training.embeddings import cooccurrence_vectors
from models.training.evaluate import fitted_temperature, probabilities_of
from models.training.finetune import ordinal_loss
from models.training.loop import Progress, Schedule, train
from models.training.network import Model, new_model
from models.training.vocabulary import alphabet, save_tokenizer, train_tokenizer

log = logging.getLogger(__name__)

MARK = "options.json"

VALIDATION_SHARE = 10
"""One query in so many is kept for validation where no validation file is given."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """The network that is made where there is no checkpoint to start from."""

    layers: int = 12
    heads: int = 12
    hidden: int = 192
    vocabulary: int = 16_000
    max_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Options:
    """What to train on, from what, and how.

    base: a checkpoint directory or hub id, None for the shipped model, or the shape of a new network.
    labels: names of the grades, least relevant first; data holds their numbers, from 0.
    distance_weight: of the squared error of the expected grade beside the cross-entropy.
    """

    data: Path
    out: Path
    validation: Path | None = None
    base: str | Scratch | None = None
    labels: tuple[str, ...] = GRADES
    epochs: int = 3
    rate: float = 5e-5
    batch_tokens: int = 4096
    max_tokens: int = 128
    distance_weight: float = 0.3
    seed: int = 0
    device: str = "auto"


@dataclass(slots=True)
class _Best:
    """The weights of the epoch that did best on the validation pairs."""

    path: Path
    score: float = -1.0
    epoch: int = 0


def tune(options: Options) -> dict[str, Any]:
    """Trains and writes the checkpoint; returns what metrics.json holds.

    A run that was killed goes on, to the same weights, when it is started again with the same options; its
    state is in `<out>.training/` until it is done. Raises ModelError for wrong data, options or checkpoints.
    """
    if options.out.exists() and any(options.out.iterdir()):
        raise ModelError(f"{options.out} is not empty; name a new directory")
    training, validation = read_split(options)
    work = options.out.with_name(f"{options.out.name}.training")
    _refuse_another_run(options, work)
    model, tokenizer_files = start(options, training, work)
    model.to(resolve_device(options.device))
    window = min(options.max_tokens, model.config.max_position_embeddings)
    tokenizer = PairTokenizer.load(tokenizer_files, max_tokens=window, vocab_size=model.config.vocab_size)
    _mark_run(options, work)
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in training])
    batches = grouped([len(pair) for pair in encoded], batch_tokens=options.batch_tokens)
    best = _Best(work / "best.pt")

    def after_step(progress: Progress) -> None:
        if progress.step % len(batches) == 0:
            keep_if_best(model, tokenizer, validation, best, progress.step // len(batches))

    progress = train(
        model,
        lambda batch: ordinal_loss(
            model(input_ids=batch.ids, token_type_ids=batch.segments, attention_mask=batch.mask).logits,
            batch.labels,
            batch.weights,
            distance_weight=options.distance_weight,
        ),
        lambda epoch: epoch_of(encoded, training, options, epoch),
        Schedule(steps=len(batches) * options.epochs, rate=options.rate, decay=0.9),
        work / "progress.pt",
        seed=options.seed,
        optimizers_of=adamw,
        after_step=after_step,
    )
    return finish(options, model, tokenizer, tokenizer_files, validation, best, progress, work)


def read_split(options: Options) -> tuple[list[LabelledPair], list[LabelledPair]]:
    """Training and validation pairs; no query is in both.

    Without a validation file, a tenth of the queries by hash are for validation, the same ones in every run.
    """
    grades = len(options.labels)
    if grades < 2 or len(set(options.labels)) < grades:
        raise ModelError("labels must be at least two different names, least relevant first")
    pairs = read_labelled(options.data, grades=grades)
    if options.validation is not None:
        validation = read_labelled(options.validation, grades=grades)
        held_out = {pair.query for pair in validation}
        training = [pair for pair in pairs if pair.query not in held_out]
        if len(training) < len(pairs):
            log.info("left out %d pairs whose queries are in the validation file", len(pairs) - len(training))
    else:
        validation = [pair for pair in pairs if _held_out(pair.query)]
        training = [pair for pair in pairs if not _held_out(pair.query)]
    if not training or not validation:
        raise ModelError(
            f"{options.data}: {len(training)} training and {len(validation)} validation pairs; "
            "give more queries, or a validation file with others"
        )
    return training, validation


def start(options: Options, training: Sequence[LabelledPair], work: Path) -> tuple[Model, Path]:
    """The model before training, float32, and the directory of its tokenizer's files."""
    labels = dict(enumerate(options.labels))
    torch.manual_seed(options.seed)
    if isinstance(options.base, Scratch):
        return _from_scratch(options, options.base, training, work / "tokenizer")
    directory = locate(options.base)
    config = read_config(directory)
    if _is_pruned(config):
        raise UnsupportedCheckpoint(
            f"{directory} is pruned, and transformers 5 cannot train what it cannot load"
        )
    model = BertForSequenceClassification.from_pretrained(
        directory,
        id2label=labels,
        label2id={name: grade for grade, name in labels.items()},
        ignore_mismatched_sizes=True,  # another number of grades gets a new last layer
        dtype=torch.float32,
        attn_implementation="eager",  # on a CPU under bf16 autocast, twice as fast to train as sdpa
    )
    return model, directory


def epoch_of(
    encoded: Sequence[EncodedPair], training: Sequence[LabelledPair], options: Options, epoch: int
) -> list[Batch]:
    """One pass over the training pairs, in batches of like length; depends on seed and epoch alone."""
    rng = np.random.default_rng([options.seed, epoch])
    shuffled = rng.permutation(len(training)).tolist()  # other neighbours among equal lengths each time
    weights = grade_weights([pair.grade for pair in training], len(options.labels))
    batches = []
    for places in grouped([len(encoded[i]) for i in shuffled], batch_tokens=options.batch_tokens):
        rows = [shuffled[place] for place in places]
        grades = [training[i].grade for i in rows]
        batches.append(
            padded_batch(
                [encoded[i] for i in rows],
                torch.tensor([graded_target(grade, grades=len(options.labels)) for grade in grades]),
                torch.tensor([weights[grade] for grade in grades]),
            )
        )
    return [batches[place] for place in rng.permutation(len(batches))]


def grade_weights(grades: Sequence[int], count: int) -> list[float]:
    """What a pair of each grade weighs: the inverse square root of how common the grade is, mean 1.

    The root is the middle between letting the common grades decide and letting rare ones' noise decide.
    """
    common = Counter(grades)
    raw = [common[grade] ** -0.5 if common[grade] else 0.0 for grade in range(count)]
    mean = sum(raw[grade] * common[grade] for grade in range(count)) / len(grades)
    return [weight / mean for weight in raw]


def padded_batch(pairs: Sequence[EncodedPair], labels: torch.Tensor, weights: torch.Tensor) -> Batch:
    """Encoded pairs as a batch; padding is masked, so that its id does not matter."""
    shape = (len(pairs), max(len(pair) for pair in pairs))
    ids, segments, mask = (np.zeros(shape, np.int64) for _ in range(3))
    for row, pair in enumerate(pairs):
        ids[row, : len(pair)] = pair.ids
        segments[row, pair.first_segment : len(pair)] = 1
        mask[row, : len(pair)] = 1
    return Batch(torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(mask), labels, weights)


def adamw(model: nn.Module, schedule: Schedule) -> list[torch.optim.Optimizer]:
    """AdamW as BERT is fine-tuned with: no weight decay for biases and norms."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": schedule.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [torch.optim.AdamW(groups, lr=schedule.rate)]


def logits_of(model: Model, tokenizer: PairTokenizer, pairs: Sequence[LabelledPair]) -> np.ndarray:
    """(n, grades) float64, in the pairs' order."""
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in pairs])
    logits = np.zeros((len(pairs), model.config.num_labels))
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        for places in grouped([len(pair) for pair in encoded], batch_tokens=8192):
            empty = torch.empty(0)
            batch = padded_batch([encoded[i] for i in places], empty, empty).to(device)
            output = model(input_ids=batch.ids, token_type_ids=batch.segments, attention_mask=batch.mask)
            logits[places] = output.logits.double().cpu().numpy()
    model.train()
    return logits


def keep_if_best(
    model: Model, tokenizer: PairTokenizer, validation: Sequence[LabelledPair], best: _Best, epoch: int
) -> None:
    """Measures an epoch on the validation pairs; keeps its weights where none before ranked better."""
    probabilities = probabilities_of(logits_of(model, tokenizer, validation), 1.0)
    metrics = _evaluation(validation, probabilities).metrics()
    score = float(np.nanmean([metrics["spearman"], metrics["ndcg10"]]))
    log.info(
        "epoch %d: qwk %.4f  spearman %.4f  ndcg10 %.4f",
        epoch,
        *(metrics[m] for m in ("qwk", "spearman", "ndcg10")),
    )
    if best.path.exists() and best.epoch == 0:  # a resumed run
        saved = torch.load(best.path, weights_only=True)
        best.score, best.epoch = saved["score"], saved["epoch"]
    if score > best.score:
        best.score, best.epoch = score, epoch
        torch.save({"model": model.state_dict(), "score": score, "epoch": epoch}, best.path)


def finish(
    options: Options,
    model: Model,
    tokenizer: PairTokenizer,
    tokenizer_files: Path,
    validation: Sequence[LabelledPair],
    best: _Best,
    progress: Progress,
    work: Path,
) -> dict[str, Any]:
    """Calibrates the best epoch, writes the checkpoint, and measures what was written."""
    saved = torch.load(best.path, weights_only=True)
    model.load_state_dict(saved["model"])
    truth = np.array([pair.grade for pair in validation])
    temperature = fitted_temperature(truth, logits_of(model, tokenizer, validation), np.ones(len(truth)))
    model.config.headroom = {"temperature": temperature}
    model.cpu().save_pretrained(options.out)
    for name in TOKENIZER_FILES:
        if (tokenizer_files / name).exists():
            shutil.copyfile(tokenizer_files / name, options.out / name)
    scores = Classifier.load(options.out, options.device).score(
        [(pair.query, pair.title) for pair in validation]
    )
    evaluation = _evaluation(validation, scores.probabilities)
    metrics = {
        "schema": 1,
        "validation": evaluation.metrics(),
        "validation_intervals": as_json(intervals(evaluation, seed=options.seed)),
        "ndcg10_random_order": evaluation.random_order_ndcg10(),
        "temperature": temperature,
        "best_epoch": saved["epoch"],
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
        "options": {name: str(value) for name, value in asdict(options).items()},
    }
    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(work)
    return metrics


def _evaluation(pairs: Sequence[LabelledPair], probabilities: np.ndarray) -> Evaluation:
    return Evaluation([pair.query for pair in pairs], [pair.grade for pair in pairs], probabilities)


def _from_scratch(
    options: Options, shape: Scratch, training: Sequence[LabelledPair], directory: Path
) -> tuple[Model, Path]:
    lines = sorted({text for pair in training for text in (pair.query, pair.title)})
    tokenizer = train_tokenizer(lines, size=shape.vocabulary)
    save_tokenizer(tokenizer, directory, max_tokens=shape.max_tokens)
    vocabulary = tokenizer.get_vocab_size()  # little text fills less than was asked for
    vectors = cooccurrence_vectors(
        tokenized(tokenizer, lines),
        vocab_size=vocabulary,
        dimensions=shape.hidden,
        first_context=len(alphabet()),
        seed=options.seed,
    )
    model = new_model(
        vocab_size=vocabulary,
        layers=shape.layers,
        heads=shape.heads,
        hidden=shape.hidden,
        feed_forward=4 * shape.hidden,
        max_tokens=shape.max_tokens,
        vectors=vectors,
        seed=options.seed,
        labels=options.labels,
    )
    return model, directory


def _held_out(query: str) -> bool:
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:8]) % VALIDATION_SHARE == 0


def _is_pruned(config: ModelConfig) -> bool:
    return any(len(kept) < config.num_heads for kept in config.kept_heads)


def _refuse_another_run(options: Options, work: Path) -> None:
    """Refuses to go on with the state of a run that had other options."""
    mark = work / MARK
    if mark.exists() and mark.read_text(encoding="utf-8") != _said(options):
        raise ModelError(f"{work} holds an unfinished run with other options; finish or remove it")


def _mark_run(options: Options, work: Path) -> None:
    """Once nothing can be refused any more: a wrong option must not stand in the way of the right one."""
    work.mkdir(parents=True, exist_ok=True)
    (work / MARK).write_text(_said(options), encoding="utf-8")


def _said(options: Options) -> str:
    return json.dumps({name: str(value) for name, value in asdict(options).items()}, indent=1)
