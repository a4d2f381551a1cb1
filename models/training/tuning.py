"""Fine-tunes a classifier on somebody's own labelled pairs: `headroom train`.

Starts from a BERT checkpoint (a classifier or a plain encoder) or from nothing, keeps the epoch that ranks
the validation queries best, calibrates its temperature there, and writes a checkpoint with metrics.json.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from torch import nn
from transformers import BertForSequenceClassification

from models.checkpoint.tensors import TOKENIZER_FILES
from models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from models.classifier import Classifier
from models.device import autocast, resolve_device
from models.quality.evaluation import Evaluation, as_json, intervals, within_range
from models.quality.labelled import LabelledPair
from models.training.batches import Batch, grouped, tokenized
from models.training.data import graded_target
from models.training.embeddings import cooccurrence_vectors
from models.training.evaluate import fitted_temperature, probabilities_of
from models.training.job import Job, Options, Scratch, mark_run, prepare
from models.training.loop import Progress, Schedule, ordinal_loss, train
from models.training.network import Model, new_model
from models.training.plan import Plan, plan_for
from models.training.vocabulary import alphabet, save_tokenizer, train_tokenizer

log = logging.getLogger(__name__)

LOSS_PAIRS = 2_000
"""Training pairs, the first ones of the file, whose loss is told before and after."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """How good the network is at one time.

    loss: what is trained, on the validation pairs. metrics: of models.quality.evaluation, on the same.
    """

    loss: float
    metrics: dict[str, float]

    @property
    def order(self) -> tuple[float, float]:
        """Better is larger: how well it ranks (Spearman and NDCG@10), where the pairs tell; then the loss."""
        ranking = [self.metrics[name] for name in ("spearman", "ndcg10") if np.isfinite(self.metrics[name])]
        return float(np.mean(ranking)) if ranking else -1.0, -self.loss


@dataclass(slots=True)
class _Best:
    """The weights of the epoch that did best on the validation pairs, and how good they are."""

    path: Path
    standing: _Standing | None = None
    epoch: int = 0


def tune(job: Job | Options) -> dict[str, Any]:
    """Trains and writes the checkpoint; returns what metrics.json holds.

    A run that was killed goes on, to the same weights, when it is started again with the same options; its
    state is in `<out>.training/` until it is done. Raises ModelError for wrong data, options or checkpoints.
    """
    job = job if isinstance(job, Job) else prepare(job)
    options, training, validation = job.options, job.training, job.validation
    model, tokenizer_files = start(job)
    model.to(resolve_device(options.device))
    window = min(options.max_tokens, model.config.max_position_embeddings)
    tokenizer = PairTokenizer.load(tokenizer_files, max_tokens=window, vocab_size=model.config.vocab_size)
    mark_run(options)
    encoded = tokenizer.encode([(pair.query, pair.title) for pair in training])
    plan = plan_for(
        [len(pair) for pair in encoded],
        width=model.config.hidden_size,
        from_scratch=job.base is None,
        epochs=options.epochs,
        rate=options.rate,
        batch_tokens=options.batch_tokens,
    )
    log.info(
        "%d steps: %d epochs of %d batches of up to %d tokens; learning rate up to %.2g",
        *(plan.steps, plan.epochs, plan.batches, plan.batch_tokens, plan.rate),
    )
    best = _Best(options.work / "best.pt")
    seen = training[:LOSS_PAIRS]
    before = standing(model, tokenizer, validation, options), loss_on(model, tokenizer, seen, options)
    _report("start", before[0])

    def after_step(progress: Progress) -> None:
        if progress.step % plan.batches == 0:
            keep_if_best(model, tokenizer, validation, options, best, progress.step // plan.batches)

    progress = train(
        model,
        lambda batch: ordinal_loss(
            model(input_ids=batch.ids, token_type_ids=batch.segments, attention_mask=batch.mask).logits,
            batch.labels,
            batch.weights,
            distance_weight=options.distance_weight,
        ),
        lambda epoch: epoch_of(encoded, training, options, plan, epoch),
        plan.schedule,
        options.work / "progress.pt",
        seed=options.seed,
        optimizers_of=adamw,
        after_step=after_step,
    )
    saved = torch.load(best.path, weights_only=True)
    model.load_state_dict(saved["model"])
    after = _Standing(saved["loss"], saved["metrics"]), loss_on(model, tokenizer, seen, options)
    learnt = {
        "steps": progress.step,
        "epochs": plan.epochs,
        "best_epoch": saved["epoch"],
        "batch_tokens": plan.batch_tokens,
        "rate": plan.rate,
        "loss": {
            "training": {"before": before[1], "after": after[1]},
            "validation": {"before": before[0].loss, "after": after[0].loss},
        },
        "validation_before": before[0].metrics,
        "better": after[0].order > before[0].order,
        "tokens": progress.tokens,
        "seconds": progress.seconds,
    }
    return finish(job, model, tokenizer, tokenizer_files, learnt)


def start(job: Job) -> tuple[Model, Path]:
    """The model before training, float32, and the directory of its tokenizer's files.

    A temperature that the checkpoint has is folded into its last layer: the training goes on from the
    probabilities that it serves.
    """
    options = job.options
    labels = dict(enumerate(options.labels))
    torch.manual_seed(options.seed)
    if job.base is None:
        assert isinstance(options.base, Scratch)
        return _from_scratch(options, options.base, job.training, options.work / "tokenizer")
    directory, config = job.base
    model = BertForSequenceClassification.from_pretrained(
        directory,
        id2label=labels,
        label2id={name: grade for grade, name in labels.items()},
        ignore_mismatched_sizes=True,  # another number of grades gets a new last layer
        dtype=torch.float32,
        attn_implementation="eager",  # on a CPU under bf16 autocast, twice as fast to train as sdpa
    )
    if len(config.labels) == len(labels):
        with torch.no_grad():
            for part in model.classifier.parameters():
                part.div_(config.temperature)
    return model, directory


def epoch_of(
    encoded: Sequence[EncodedPair], training: Sequence[LabelledPair], options: Options, plan: Plan, epoch: int
) -> list[Batch]:
    """One pass over the training pairs, in batches of like length; depends on seed and epoch alone."""
    rng = np.random.default_rng([options.seed, epoch])
    shuffled = rng.permutation(len(training)).tolist()  # other neighbours among equal lengths each time
    targets, weights = _targets(training, options)
    batches = []
    for places in grouped([len(encoded[i]) for i in shuffled], batch_tokens=plan.batch_tokens):
        rows = [shuffled[place] for place in places]
        batches.append(padded_batch([encoded[i] for i in rows], targets[rows], weights[rows]))
    return [batches[place] for place in rng.permutation(len(batches))]


def _targets(pairs: Sequence[LabelledPair], options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """What is to be predicted for each pair, (n, grades) float32, and what it weighs, (n,) float32."""
    grades = [pair.grade for pair in pairs]
    count = len(options.labels)
    weights = torch.tensor(grade_weights(grades, count))
    by_grade = torch.tensor([graded_target(grade, grades=count) for grade in range(count)])
    return by_grade[grades], weights[grades]


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
    with torch.no_grad(), autocast(device):
        for places in grouped([len(pair) for pair in encoded], batch_tokens=8192):
            empty = torch.empty(0)
            batch = padded_batch([encoded[i] for i in places], empty, empty).to(device)
            output = model(input_ids=batch.ids, token_type_ids=batch.segments, attention_mask=batch.mask)
            logits[places] = output.logits.double().cpu().numpy()
    model.train()
    return logits


def loss_on(model: Model, tokenizer: PairTokenizer, pairs: Sequence[LabelledPair], options: Options) -> float:
    """The loss that is trained, on these pairs, without dropout."""
    return _loss(logits_of(model, tokenizer, pairs), pairs, options)


def _loss(logits: np.ndarray, pairs: Sequence[LabelledPair], options: Options) -> float:
    targets, weights = _targets(pairs, options)
    loss = ordinal_loss(torch.from_numpy(logits), targets, weights, distance_weight=options.distance_weight)
    return float(loss)


def standing(
    model: Model, tokenizer: PairTokenizer, validation: Sequence[LabelledPair], options: Options
) -> _Standing:
    """How good the model is on the validation pairs."""
    logits = logits_of(model, tokenizer, validation)
    metrics = _evaluation(validation, probabilities_of(logits, 1.0)).metrics()
    return _Standing(_loss(logits, validation, options), metrics)


def keep_if_best(
    model: Model,
    tokenizer: PairTokenizer,
    validation: Sequence[LabelledPair],
    options: Options,
    best: _Best,
    epoch: int,
) -> None:
    """Measures an epoch on the validation pairs; keeps its weights where none before was better."""
    now = standing(model, tokenizer, validation, options)
    _report(f"epoch {epoch}", now)
    if best.standing is None and best.path.exists():  # a resumed run
        saved = torch.load(best.path, weights_only=True)
        best.standing, best.epoch = _Standing(saved["loss"], saved["metrics"]), saved["epoch"]
    if best.standing is None or now.order > best.standing.order:
        best.standing, best.epoch = now, epoch
        torch.save({"model": model.state_dict(), "epoch": epoch, **asdict(now)}, best.path)


def _report(when: str, now: _Standing) -> None:
    log.info(
        "%s: validation loss %.4f  qwk %.4f  spearman %.4f  ndcg10 %.4f",
        *(when, now.loss, *(now.metrics[name] for name in ("qwk", "spearman", "ndcg10"))),
    )


def finish(
    job: Job, model: Model, tokenizer: PairTokenizer, tokenizer_files: Path, learnt: dict[str, Any]
) -> dict[str, Any]:
    """Calibrates the model, writes the checkpoint, and measures what was written.

    learnt: what metrics.json says beyond that.
    """
    options, validation = job.options, job.validation
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
        "validation_intervals": as_json(within_range(intervals(evaluation, seed=options.seed))),
        "validation_queries": evaluation.queries,
        "ndcg10_random_order": evaluation.random_order_ndcg10(),
        "temperature": temperature,
        **learnt,
        "options": {name: str(value) for name, value in asdict(options).items()},
    }
    written = orjson.dumps(metrics, option=orjson.OPT_INDENT_2)  # what is not defined is null
    (options.out / "metrics.json").write_bytes(written + b"\n")
    shutil.rmtree(options.work)
    plain: dict[str, Any] = orjson.loads(written)
    return plain


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
